//! Tests the watchdog's warning: a pipeline that stalls for a while logs one warning, and then continues.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Tensor;
use stageline::{Batch, Pipeline, Stage, Watchdog};

use crate::injection::{WARNINGS, listen};
use crate::mlp::{Layer, Mlp, config};
use crate::ran_in_a_process_of_its_own;

/// The duration of the stall in the watchdog's test, far beyond the watchdog's time limit.
const LONG: Duration = Duration::from_secs(3);

/// A stage for tests of stalls. It returns its input, and first sleeps if the input has a large number.
#[derive(Module, Debug, Default)]
struct Late {}

impl Stage for Late {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        if input.clone().max().into_scalar::<f32>() > 100.0 {
            sleep(LONG);
        }
        input
    }
}

#[test]
fn a_temporary_stall_is_warned_of_once_a_step() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    listen();
    let Mlp { layers, error } = Mlp::new(0, 4, 1);
    let chain = Pipeline::builder().stage(Late::default(), config()).loss::<(Vec<Layer>, _)>((layers, error), config());
    let watchdog = Watchdog { floor: Duration::from_millis(500), factor: 0.0, grace: Duration::from_secs(600) };
    let mut pipeline = chain.micro_batches(1).watchdog(watchdog).build().unwrap();
    let mut step = |scale: f64| {
        let (input, target) = Mlp::batch(4, 4, false, 1);
        pipeline.step(Batch::new(input * scale + scale, target)).unwrap();
        WARNINGS.swap(0, Ordering::Relaxed)
    };
    step(1e-3);
    assert_eq!(step(1e6), 1);
    assert_eq!(step(1e6), 1);
}
