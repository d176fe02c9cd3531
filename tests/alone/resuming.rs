//! Tests the warnings of a pipeline that resumes from a checkpoint with other settings, which change the trained
//! values.

use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use stageline::{Batch, Pipeline, StageConfig};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;

use crate::messages::Messages;
use crate::mlp::{Mlp, Target, device};
use crate::ran_in_a_process_of_its_own;

const WIDTH: usize = 3;

/// The warnings that were logged since the test last read them.
static WARNINGS: Messages = Messages::new();

/// The settings of a pipeline that the test changes when a training resumes. `groups` is the number of groups of
/// micro-batches whose gradients are summed separately.
#[derive(Clone, Copy)]
struct Settings {
    replicas: usize,
    micro_batches: usize,
    groups: usize,
    learning_rate: f64,
}

#[test]
fn other_micro_batches_groups_and_learning_rates_are_reported_with_both_values() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let builder = |settings: Settings| {
        let Settings { replicas, micro_batches, groups, learning_rate } = settings;
        let model = Mlp::new(2, WIDTH, 1);
        let names = stageline::Names::new().part("", &model);
        let config = StageConfig::new(device(), AdamWConfig::new().init(), learning_rate);
        let builder = model.split(2, &config).names(names).micro_batches(micro_batches).gradient_groups(groups);
        (1..replicas).fold(builder, |builder, _| builder.replica([device(), device()]))
    };
    let same = Settings { replicas: 1, micro_batches: 4, groups: 2, learning_rate: 0.01 };
    let mut pipeline: Pipeline<Tensor<2>, Tensor<2>, Target> = builder(same).build().unwrap();
    let (input, target) = Mlp::batch(8, WIDTH, false, 1);
    pipeline.step(Batch::new(input, target)).unwrap();
    let kept = pipeline.checkpoint().unwrap();
    let warnings = |settings: Settings| {
        let subscriber = tracing_subscriber::registry().with(LevelFilter::WARN).with(&WARNINGS);
        let built = tracing::subscriber::with_default(subscriber, || builder(settings).restore(kept.clone()).build());
        drop(built.unwrap());
        WARNINGS.take()
    };
    assert_eq!(warnings(same), [""; 0]);
    assert_eq!(warnings(Settings { replicas: 2, micro_batches: 2, ..same }), [""; 0], "the same sums on two replicas");
    let found = warnings(Settings { micro_batches: 8, ..same });
    assert!(found.len() == 1 && found[0].contains("have 4 micro-batches, and those of this pipeline 8"), "{found:?}");
    let found = warnings(Settings { groups: 1, ..same });
    assert!(found.len() == 1 && found[0].contains("have 2 groups of gradients"), "{found:?}");
    let found = warnings(Settings { learning_rate: 0.02, ..same });
    assert!(found.len() == 1 && found[0].contains("learning rate 0.01") && found[0].contains("has 0.02"), "{found:?}");
}
