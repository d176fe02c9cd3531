//! Tests of the health reports of parameters (norms, zeros, histograms, second moments) against closed forms.

use burn::module::ParamGroup;
use burn::optim::{AdamWConfig, ModuleOptimizer, RmsPropConfig, SgdConfig};
use stageline::{Batch, Clip, Histogram, StageConfig, StepReport, Update};

use crate::mlp::{Mlp, Target, config, device};

const WIDTH: usize = 4;
const RATE: f64 = 0.5;

fn batch(seed: u64) -> Batch<burn::tensor::Tensor<2>, Target> {
    let (input, target) = Mlp::batch(9, WIDTH, true, seed);
    Batch::new(input, target)
}

/// Tests the norms that a health report contains under plain gradient descent: a parameter's update is the learning
/// rate times its gradient, and the norms of all gradients together give the global gradient norm.
#[test]
fn norms_match_the_closed_form_of_gradient_descent() {
    let stage = StageConfig::new(device(), SgdConfig::new().init(), RATE);
    let mut pipeline = Mlp::new(2, WIDTH, 1).split(3, &stage).micro_batches(3).health_every(2).build().unwrap();
    let reports: Vec<StepReport> = (0..3).map(|step| pipeline.step(batch(step)).unwrap()).collect();
    assert!(reports[1].health.is_empty(), "every second step");
    let model = Mlp::join(pipeline.into_modules());
    for report in [&reports[0], &reports[2]] {
        let places: Vec<_> = report.health.iter().map(|health| (health.stage, health.name.as_str())).collect();
        let ends = [
            (0, "stage0.0.linear.weight"),
            (0, "stage0.0.linear.bias"),
            (1, "stage1.0.linear.weight"),
            (1, "stage1.0.linear.bias"),
        ];
        assert_eq!(places, [&ends[..], &[(2, "stage2.1.linear.weight"), (2, "stage2.1.linear.bias")]].concat());
        for health in &report.health {
            assert!((health.update_norm - RATE * health.gradient_norm).abs() < 1e-6, "{health:?}");
            assert!((health.update_ratio() - health.update_norm / health.parameter_norm).abs() < 1e-12);
            let counted: u64 = health.histogram.bins().map(|(_, count)| count).sum();
            let elements = if health.name.ends_with("weight") { WIDTH * WIDTH } else { WIDTH };
            assert_eq!(counted as f64, (1.0 - health.zeros) * elements as f64);
            assert_eq!(health.histogram.bins().count(), Histogram::BINS);
        }
        let Update::Stepped { gradient_norm, .. } = report.update else { panic!("{:?}", report.update) };
        let together = report.health.iter().map(|health| health.gradient_norm.powi(2)).sum::<f64>().sqrt();
        assert!((gradient_norm - together).abs() < 1e-12);
    }
    let last = model.error.linear.bias.as_ref().unwrap().val().into_data();
    let norm = last.iter::<f64>().map(|value| value * value).sum::<f64>().sqrt();
    assert!((reports[2].health[5].parameter_norm - norm).abs() < 1e-12);
}

/// Tests that the gradient norms in a health report are those before clipping, and the norms of parameter updates those
/// after clipping.
#[test]
fn clipping_changes_update_norms_and_not_gradient_norms() {
    let stage = StageConfig::new(device(), SgdConfig::new().init(), RATE);
    let health = |clip: Option<Clip>| {
        let builder = Mlp::new(0, WIDTH, 1).split(1, &stage).micro_batches(2).health_every(1);
        let builder = if let Some(clip) = clip { builder.clip(clip) } else { builder };
        builder.build().unwrap().step(batch(1)).unwrap().health
    };
    let (free, clipped) = (health(None), health(Some(Clip::GlobalNorm(1e-3))));
    let total = |health: &[stageline::ParameterHealth]| {
        health.iter().map(|health| health.update_norm.powi(2)).sum::<f64>().sqrt()
    };
    for (free, clipped) in free.iter().zip(&clipped) {
        assert_eq!(free.gradient_norm, clipped.gradient_norm);
    }
    assert!((total(&clipped) - RATE * 1e-3).abs() < 1e-7, "{}", total(&clipped));
    assert!(total(&free) > total(&clipped));
}

#[test]
fn health_reports_change_no_bit() {
    let train = |every: usize| {
        let builder = Mlp::new(3, WIDTH, 6).split(2, &config()).micro_batches(3).health_every(every);
        let mut pipeline = builder.build().unwrap();
        (0..4).for_each(|step| drop(pipeline.step(batch(step)).unwrap()));
        Mlp::join(pipeline.into_modules()).bits()
    };
    assert_eq!(train(1), train(0));
}

/// Tests that burn's parameter groups work in a pipeline. The first step of Adam moves every element by the learning
/// rate; here weight decay also shrinks the weights, but not the biases.
#[test]
fn parameter_groups_keep_their_own_optimizer_settings() {
    const DECAY: f64 = 0.25;
    let adam = |decay: f64| AdamWConfig::new().with_epsilon(1e-12).with_weight_decay(decay as f32);
    let optimizer = adam(DECAY).init().with_group(ParamGroup::from_predicate("bias"), adam(0.0).build(), None);
    let stage = StageConfig::new(device(), optimizer, RATE);
    let model = Mlp::new(1, WIDTH, 2);
    let mut pipeline = model.clone().split(2, &stage).micro_batches(2).build().unwrap();
    pipeline.step(batch(1)).unwrap();
    let after = Mlp::join(pipeline.into_modules());
    for (before, after) in
        [(&model.layers[0].linear, &after.layers[0].linear), (&model.error.linear, &after.error.linear)]
    {
        let weights =
            before.weight.val().into_data().iter::<f64>().map(|value| value * (1.0 - RATE * DECAY)).collect::<Vec<_>>();
        let biases = before.bias.as_ref().unwrap().val().into_data().iter::<f64>().collect::<Vec<_>>();
        let moved = [after.weight.val().into_data(), after.bias.as_ref().unwrap().val().into_data()];
        let moved = moved.iter().flat_map(|data| data.iter::<f64>().collect::<Vec<_>>());
        for (expected, found) in [weights, biases].concat().into_iter().zip(moved) {
            assert!(((found - expected).abs() - RATE).abs() < 1e-5, "{found} from {expected}");
        }
    }
}

/// Tests the second moments v of gradients g in the health reports of parameters. With Adam, v is (1 - beta2) g^2 after
/// the first step, and beta2 v + (1 - beta2) g^2 after the second. Plain gradient descent has no second moments.
#[test]
fn second_moments_match_the_closed_form() {
    const BETA_2: f32 = 0.75;
    let health = |optimizer: ModuleOptimizer, group: bool| {
        let rms = RmsPropConfig::new().with_alpha(BETA_2).build();
        let optimizer =
            if group { optimizer.with_group(ParamGroup::from_predicate("bias"), rms, None) } else { optimizer };
        let stage = StageConfig::new(device(), optimizer, 1e-3);
        let builder = Mlp::new(1, WIDTH, 4).split(2, &stage).micro_batches(3).health_every(1);
        let mut pipeline = builder.build().unwrap();
        [batch(1), batch(2)].map(|batch| pipeline.step(batch).unwrap().health)
    };
    for group in [false, true] {
        let [first, second] = health(AdamWConfig::new().with_beta_2(BETA_2).init(), group);
        for (first, second) in first.iter().zip(&second) {
            let elements = if first.name.ends_with("weight") { WIDTH * WIDTH } else { WIDTH } as f64;
            let share = |health: &stageline::ParameterHealth| {
                (1.0 - f64::from(BETA_2)) * health.gradient_norm.powi(2) / elements
            };
            let expected = [share(first), f64::from(BETA_2) * share(first) + share(second)];
            for (health, expected) in [first, second].into_iter().zip(expected) {
                let found = health.second_moment.unwrap();
                assert!((found - expected).abs() < 1e-5 * expected, "{}: {found} against {expected}", health.name);
            }
        }
    }
    assert!(health(SgdConfig::new().init(), false).iter().flatten().all(|health| health.second_moment.is_none()));
}
