//! Tests that the parameters of a seeded module depend on its seed only.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use stageline::nn::Linear;
use stageline::{Pipeline, StageConfig, seeded};

use crate::mlp::{Error, Layer, bits, device};

const WIDTH: usize = 4;

fn linear() -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(&device().autodiff()).into()
}

/// Tests that a seeded layer gets the same parameters while another thread builds a pipeline of layers without seeds.
/// Both threads use burn's random number generator, of which the process has only one for the CPU.
#[test]
fn a_pipeline_without_seeds_does_not_change_a_seeded_layer() {
    let expected = bits(&seeded(&device(), 7, linear));
    let (built, wait) = mpsc::channel();
    let interrupted = seeded(&device(), 7, || {
        thread::spawn(move || {
            let config = || StageConfig::new(device(), SgdConfig::new().init(), 0.1);
            let chain = Pipeline::builder().stage(Layer { linear: linear() }, config());
            let pipeline = chain.loss(Error { linear: linear() }, config()).micro_batches(2).build();
            built.send(pipeline.map(drop)).unwrap();
        });
        // The other thread can build its pipeline only after this function has returned.
        wait.recv_timeout(Duration::from_millis(500)).unwrap_err();
        linear()
    });
    assert!(bits(&interrupted) == expected);
    wait.recv().unwrap().unwrap();
}

#[test]
fn layers_may_be_seeded_within_a_seeded_model() {
    let layer = |seed| seeded(&device(), seed, linear);
    let model = seeded(&device(), 1, || vec![layer(2), layer(3)]);
    assert!(bits(&model[1]) == bits(&layer(3)));
    assert!(bits(&model[0]) != bits(&model[1]));
}
