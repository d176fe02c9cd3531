//! Tests a signal during a training whose data source hangs: the training ends with a checkpoint of all its steps.
//!
//! A thread that hangs in the data source cannot be left behind, so such a training ends its process. The test
//! therefore runs it in a process of its own.

#![cfg(feature = "flex")]

use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::{Device, Tensor};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;
use stageline::checkpoint::Saved;
use stageline::nn::Linear;
use stageline::{Batch, LossStage, Row, Stage, Weight};
use stageline_train::{Data, NoFlags, Program};

/// The environment variable with the folder for the checkpoints of the process that the test starts.
const FOLDER: &str = "STAGELINE_TEST_FOLDER";

/// The step whose batch the hanging data source of this test never returns.
const HANGS_AT: usize = 3;

/// A layer of this test's model, whose loss is the sum of its squared errors.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for Layer {
    type Target = Tensor<2>;

    fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (output - target).square().sum()
    }

    fn weight(&self, target: &Tensor<2>) -> Weight {
        target.dims()[0].into()
    }
}

/// A source of batches for a test that never returns the batch of the step `HANGS_AT`.
struct Hangs;

impl Data for Hangs {
    type Input = Tensor<2>;
    type Target = Tensor<2>;

    fn batch(&self, step: usize, samples: usize) -> anyhow::Result<Batch<Tensor<2>, Tensor<2>>> {
        if step == HANGS_AT {
            loop {
                thread::park();
            }
        }
        let ones = Tensor::ones([samples, 2], &Device::flex());
        Ok(Batch::new(ones.clone(), ones))
    }
}

/// Trains on a source of batches that hangs, and sends this process a signal once the training waits for a batch. The
/// test starts it in a process of its own.
#[test]
#[ignore = "is started by another test, because it ends its process"]
fn child_whose_data_hang() {
    let folder = env::var(FOLDER).unwrap();
    let settings =
        [("steps", "10"), ("micro_batches", "2"), ("micro_batch_size", "3"), ("checkpoint", folder.as_str())];
    let run = Program::<NoFlags>::new().configured(settings).unwrap();
    let run = run.on_step(|report, _| {
        if report.step + 1 == HANGS_AT {
            thread::spawn(|| {
                thread::sleep(Duration::from_millis(300));
                raise(SIGTERM).unwrap();
            });
        }
    });
    let layer = |device: &Device| Layer { linear: LinearConfig::new(2, 2).init(device).into() };
    let row = Row::new(layer, 2, move |_, device| layer(device), layer);
    let ended = run.train(&row, &Hangs).map(drop);
    panic!("the training has returned, although a thread hangs: {ended:?}");
}

#[test]
fn a_signal_ends_a_training_whose_data_hang_with_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["child_whose_data_hang", "--exact", "--ignored", "--nocapture"];
    let mut child = Command::new(env::current_exe().unwrap());
    let mut child = child.args(arguments).env(FOLDER, folder.path()).stdout(Stdio::null()).spawn().unwrap();
    // The limit of a minute is for a hang, and tests no speed.
    let ended = (0..1200).find_map(|_| {
        thread::sleep(Duration::from_millis(50));
        child.try_wait().unwrap()
    });
    let Some(status) = ended else {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("the signal has not ended the training");
    };
    assert!(status.success(), "{status}");
    assert_eq!(Saved::open(folder.path()).unwrap().manifest().progress.steps, HANGS_AT as u64);
}
