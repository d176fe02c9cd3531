//! Tests of whole trainings: their logs, and data sources that fail, panic or hang.

#![cfg(feature = "flex")]

mod best_checkpoint;
#[path = "../support/mod.rs"]
mod support;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::ensure;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;
use stageline::checkpoint::Saved;
use stageline::{Batch, CountingAllocator, Pipeline, PipelineBuilder, StageConfig};
use stageline_report::{Measured, RunLog, Unit};
use stageline_train::{Data, HandCut, NoFlags, Program, Run};

use support::{Layer, row};

/// The allocator of this test program, which counts the memory in use. The memory estimate of a training needs it.
/// Without an estimate, no training is refused for lack of memory.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The environment variable that names the output folder of a second process, which a test starts.
const FOLDER: &str = "STAGELINE_TEST_FOLDER";

/// The training step, counted from 0, whose batch never arrives, because a test's data source hangs.
const HANGS_AT: usize = 3;

/// A source of test batches in which all inputs and masks are 1. It can be set to hang, panic or fail at a given step,
/// or to give a batch whose mask is 0.
#[derive(Default)]
struct Ones {
    hangs_at: Option<usize>,
    panics_at: Option<usize>,
    fails_at: Option<usize>,
    masked_at: Option<usize>,
}

impl Data for Ones {
    type Input = Tensor<2>;
    type Target = Tensor<2>;

    fn batch(&self, step: usize, samples: usize) -> anyhow::Result<Batch<Tensor<2>, Tensor<2>>> {
        while self.hangs_at == Some(step) {
            thread::park();
        }
        assert_ne!(Some(step), self.panics_at, "the source panics");
        ensure!(Some(step) != self.fails_at, "the source fails");
        let ones = Tensor::ones([samples, 2], &Device::flex());
        let mask = if Some(step) == self.masked_at { ones.zeros_like() } else { ones.clone() };
        Ok(Batch::new(ones, mask))
    }
}

/// Returns a run of 10 steps, each on two micro-batches of three samples. `settings` can change that.
fn run(settings: &[(&str, &str)]) -> Run<NoFlags> {
    let common = [("micro_batches", "2"), ("micro_batch_size", "3"), ("steps", "10")];
    Program::<NoFlags>::new().configured(common.into_iter().chain(settings.iter().copied())).unwrap()
}

/// Creates a run with the given settings and a log, passes it to `train`, and returns the log.
fn log(settings: &[(&str, &str)], train: impl FnOnce(Run<NoFlags>)) -> RunLog {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    train(run(&[settings, &[("log", path.to_str().unwrap())]].concat()));
    read(&path)
}

fn read(path: &Path) -> RunLog {
    RunLog::read(BufReader::new(File::open(path).unwrap())).unwrap()
}

/// Tests that a first batch without a target does not end the run in the estimate of the memory, and that the step has
/// no throughput.
#[test]
fn a_step_without_a_target_is_skipped() {
    let data = || Ones { masked_at: Some(0), ..Ones::default() };
    let log = log(&[("peak_tflops", "1")], |run| drop(run.train(&row(), data()).unwrap()));
    let [masked, steps @ ..] = &*log.steps else { panic!("there are no steps") };
    assert_eq!((masked.weight, masked.tokens_per_s, masked.model_flop_utilisation), (0.0, 0.0, None));
    assert_eq!(masked.loss, None);
    assert!(steps.len() == 9 && steps.iter().all(|step| step.tokens_per_s > 0.0 && step.loss.is_some()));
    assert!(steps.iter().all(|step| step.model_flop_utilisation.is_some_and(|share| share > 0.0)));
}

/// Tests that a run that `--stop-after` ends before `--draw-step` shows the timeline of its last step.
#[test]
fn a_run_that_stops_early_has_a_timeline() {
    for (stop, drawn) in [("1", 0), ("4", 3), ("9", 5)] {
        let settings = [("stop_after", stop), ("draw_step", "5")];
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().to_str().unwrap();
        let log = log(&[&settings[..], &[("checkpoint", kept)]].concat(), |run| {
            assert!(run.train(&row(), Ones::default()).unwrap().is_none());
        });
        let with_timeline: Vec<_> =
            log.steps.iter().filter(|step| !step.timeline.is_empty()).map(|step| step.step).collect();
        assert_eq!(with_timeline, [drawn], "--stop-after {stop}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_under_the_trace_does_not_lose_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let run = run(&[("trace", "/dev/full"), ("report", page.to_str().unwrap())]);
    let trained = run.train(&row(), Ones::default()).unwrap().unwrap();
    let error = trained.unwritten.first().unwrap_err().to_string();
    assert!(error.contains("/dev/full"), "{error}");
    assert!(fs::read_to_string(page).unwrap().contains("</html>"));
}

#[test]
fn the_log_of_data_without_tokens_counts_samples() {
    let log = log(&[], |run| drop(run.train(&row(), Ones::default()).unwrap()));
    assert_eq!((log.run.unit, log.run.tokens_per_micro_batch), (Unit::Samples, 3.0));
}

#[test]
fn the_log_has_the_memory_of_all_batches() {
    let train = |run: Run<NoFlags>| drop(run.train(&row(), Ones::default()).unwrap());
    let bytes = |settings: &[(&str, &str)]| {
        let run = log(settings, train).run;
        assert!(!run.cut_by_hand, "a row of layers is cut by the training");
        run.batch_bytes
    };
    // A sample has two floats and a target of two, and a batch has six samples.
    assert_eq!(bytes(&[]), (1 + 16) * 6 * 16);
    assert_eq!(bytes(&[("read_ahead", "2")]), (1 + 2) * 6 * 16);
}

/// Returns a model of three stages that is cut by hand, and not by the training.
fn chain() -> HandCut<impl Fn(Vec<StageConfig>) -> PipelineBuilder<Tensor<2>, Tensor<2>, Tensor<2>>> {
    HandCut::new(3, |configs: Vec<StageConfig>| {
        let mut configs = configs.into_iter();
        let mut next = || (Layer::new(&Device::flex().autodiff()), configs.next().unwrap());
        let [first, second, last] = [next(), next(), next()];
        Pipeline::builder().stage(first.0, first.1).stage(second.0, second.1).loss(last.0, last.1)
    })
}

/// Tests the log of a training whose model is cut by hand. The log lists each stage as one layer, so that training
/// speeds can be predicted from it.
#[test]
fn the_log_of_a_chain_has_a_layer_for_each_stage() {
    let train = |run: Run<NoFlags>| drop(run.train(&chain(), Ones::default()).unwrap());
    let log = log(&[("stages", "3")], train);
    let layers: Vec<_> = log.run.layers.iter().map(|layer| (&*layer.name, layer.stage, layer.parameters)).collect();
    // A matrix of 2 x 2 and a bias of 2.
    assert!(log.run.cut_by_hand);
    assert_eq!(layers, [("stage 0", 0, 6), ("stage 1", 1, 6), ("stage 2", 2, 6)]);
    let measured = Measured::of(&log).unwrap();
    assert_eq!(measured.cut(), [0..1, 1..2, 2..3]);
    assert_eq!(measured.balanced(2).unwrap().len(), 2);
}

#[test]
fn a_training_whose_parameters_are_all_frozen_is_refused() {
    let train = |frozen: usize| {
        let model = HandCut::new(3, move |configs: Vec<StageConfig>| {
            let mut configs = configs.into_iter().enumerate();
            let mut next = || {
                let (stage, config) = configs.next().unwrap();
                let layer = Layer::new(&Device::flex().autodiff());
                (if stage < frozen { layer.no_grad() } else { layer }, config)
            };
            let [first, second, last] = [next(), next(), next()];
            Pipeline::builder().stage(first.0, first.1).stage(second.0, second.1).loss(last.0, last.1)
        });
        run(&[("stages", "3")]).train(&model, Ones::default()).map(drop)
    };
    train(1).unwrap();
    let error = train(3).unwrap_err().to_string();
    assert_eq!(error, "all parameters of the model are frozen, so no step changes any; freeze fewer");
}

/// Tests the error of a training that does not fit into the memory. The error proposes another number of stages, unless
/// the program has cut the model by hand.
#[test]
fn no_other_number_of_stages_is_proposed_for_a_chain() {
    let refused = |flags: &[(&str, &str)], by_hand: bool| {
        // One core a stage, so that one stage for all layers has no more threads for matrix products, and thus no more
        // of their buffers, than three stages.
        let run = run(&[flags, &[("stages", "3"), ("memory", "0.000002"), ("cores_per_stage", "1")]].concat());
        let trained = if by_hand {
            run.train(&chain(), Ones::default()).map(drop)
        } else {
            run.train(&row(), Ones::default()).map(drop)
        };
        trained.unwrap_err().to_string()
    };
    let (of_row, of_chain) = (refused(&[], false), refused(&[], true));
    assert!(of_row.contains(" --stages 1: "), "{of_row}");
    assert!(!of_chain.contains("--stages") && of_chain.contains(" --optimizer adafactor"), "{of_chain}");
    // A list has as many entries as there are stages, so it changes with their number.
    let of_list = refused(&[("cut", "0,1,2")], false);
    assert!(of_list.contains(" --stages 1 --cut 0"), "{of_list}");
}

/// Tests a training whose data source fails at one step. The training ends with an error, and its checkpoint has all
/// steps before that one.
#[test]
fn a_data_source_that_panics_or_fails_loses_no_step() {
    for (data, message) in [
        (Ones { panics_at: Some(3), ..Ones::default() }, "the batch of step 3 cannot be made: `Data::batch` panicked"),
        (Ones { fails_at: Some(3), ..Ones::default() }, "the source fails"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = run(&[("checkpoint", folder.path().to_str().unwrap())]).train(&row(), data).map(drop).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(Saved::open(folder.path()).unwrap().manifest().progress.steps, 3);
    }
}

/// Tests a run that resumes from the newest checkpoint while another run is still writing into the folder. It must not
/// resume from the older state that it found at its start.
#[test]
fn a_checkpoint_that_is_saved_after_the_start_of_a_run_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().to_str().unwrap();
    let stop = |resume: &[(&str, &str)], steps| {
        let run = run(&[resume, &[("checkpoint", kept), ("stop_after", steps)]].concat());
        assert!(run.train(&row(), Ones::default()).unwrap().is_none());
    };
    stop(&[], "3");
    let before = run(&[("resume", kept)]);
    let named = run(&[("resume", Saved::open(folder.path()).unwrap().path().to_str().unwrap())]);
    stop(&[("resume", kept)], "5");
    let error = before.train(&row(), Ones::default()).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("--resume: another run has meanwhile saved ") && error.contains("-step-5"), "{error}");
    // A checkpoint that is named is resumed from, also if the newest one is damaged.
    fs::write(Saved::open(folder.path()).unwrap().path().join("manifest.json"), "{}").unwrap();
    assert!(named.train(&row(), Ones::default()).unwrap().is_some());
}

/// Trains on a data source that hangs, and sends its own process a SIGTERM during the wait for the batch. Another test
/// starts it in a new process, because a signal reaches the whole process.
#[test]
#[ignore = "is started by another test, because it sends its process a signal"]
fn child_whose_data_hang() {
    let folder = env::var(FOLDER).unwrap();
    let [kept, log] = ["kept", "run.jsonl"].map(|name| format!("{folder}/{name}"));
    let run = run(&[("checkpoint", kept.as_str()), ("log", log.as_str())]);
    let run = run.on_step(|report, _| {
        if report.step + 1 == HANGS_AT {
            thread::spawn(|| {
                thread::sleep(Duration::from_millis(300));
                raise(SIGTERM).unwrap();
            });
        }
    });
    let ended = run.train(&row(), Ones { hangs_at: Some(HANGS_AT), ..Ones::default() }).unwrap();
    assert!(ended.is_none(), "the training is done, although a batch is missing");
}

/// Runs two trainings, one after the other, each of which a SIGTERM ends. Another test starts it in a new process.
#[test]
#[ignore = "is started by another test, because it sends its process signals"]
fn child_of_two_trainings() {
    let folder = env::var(FOLDER).unwrap();
    for kept in ["first", "second"] {
        let run = run(&[("checkpoint", &format!("{folder}/{kept}"))]);
        let run = run.on_step(|report, _| {
            if report.step == 1 {
                raise(SIGTERM).unwrap()
            }
        });
        assert!(run.train(&row(), Ones::default()).unwrap().is_none(), "the training is done in spite of the signal");
    }
}

/// Runs an ignored test of this file in a process of its own, to which it writes the path of `folder`.
fn succeeds(child: &str, folder: &Path) {
    let arguments = [child, "--exact", "--ignored", "--nocapture"];
    let mut child = Command::new(env::current_exe().unwrap());
    let mut child = child.args(arguments).env(FOLDER, folder).stdout(Stdio::null()).spawn().unwrap();
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
}

/// Tests that the handlers of a training's signals end with the training: the first signal in a second training must
/// not count as the second one, which ends the process.
#[test]
fn a_signal_ends_each_of_two_trainings_with_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    succeeds("child_of_two_trainings", folder.path());
    for kept in ["first", "second"] {
        assert_eq!(Saved::open(&folder.path().join(kept)).unwrap().manifest().progress.steps, 2, "{kept}");
    }
}

/// Tests that a signal ends a training whose data source hangs. The process ends, and its checkpoint and its log have
/// all completed steps.
#[test]
fn a_signal_ends_a_training_whose_data_hang_with_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    succeeds("child_whose_data_hang", folder.path());
    assert_eq!(Saved::open(&folder.path().join("kept")).unwrap().manifest().progress.steps, HANGS_AT as u64);
    let log = read(&folder.path().join("run.jsonl"));
    assert_eq!(log.steps.iter().map(|step| step.step).collect::<Vec<_>>(), (0..HANGS_AT).collect::<Vec<_>>());
}
