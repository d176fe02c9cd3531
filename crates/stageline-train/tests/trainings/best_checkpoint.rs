//! Tests of `--best-checkpoint` and `--patience`, which compare the validation losses of a training.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::{Device, Tensor};
use stageline::Batch;
use stageline::checkpoint::Saved;
use stageline_report::RunLog;
use stageline_train::Data;
use tempfile::TempDir;

use crate::support::row;
use crate::{read, run};

/// The number of training steps, and the interval between evaluations.
const STEPS: usize = 24;
const EVERY: usize = 3;

/// The first step that is trained on other inputs than the held-out ones, so that the validation loss rises.
const RISES_AT: usize = 10;

/// Data whose held-out samples are those of the first steps.
struct Shifting {
    held_out: f32,
}

fn samples(count: usize, input: [f32; 2]) -> Batch<Tensor<2>, Tensor<2>> {
    let input = Tensor::<1>::from_floats(input, &Device::flex()).unsqueeze::<2>().repeat_dim(0, count);
    Batch::new(input.clone(), input.ones_like())
}

impl Data for Shifting {
    type Input = Tensor<2>;
    type Target = Tensor<2>;

    fn batch(&self, step: usize, count: usize) -> Result<Batch<Tensor<2>, Tensor<2>>> {
        Ok(samples(count, if step < RISES_AT { [1.0, 1.0] } else { [-20.0, 30.0] }))
    }

    fn validation(&self, count: usize) -> Result<Vec<Batch<Tensor<2>, Tensor<2>>>> {
        Ok(vec![samples(count, [self.held_out; 2])])
    }
}

/// A folder for the outputs of trainings.
struct Outputs(TempDir);

impl Outputs {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Trains with the settings `more`, with the log in the file `log` and the best checkpoint in the folder `best`.
    /// Returns the hash of the parameters if the training is complete.
    fn train(&self, best: &str, more: &[(&str, &str)]) -> Result<Option<String>> {
        self.train_with(Shifting { held_out: 1.0 }, best, more)
    }

    /// Trains as [`train`](Self::train) does, on other data.
    fn train_with(&self, data: Shifting, best: &str, more: &[(&str, &str)]) -> Result<Option<String>> {
        let (log, best, steps, every) = (self.text("log"), self.text(best), STEPS.to_string(), EVERY.to_string());
        let common = [("log", &*log), ("best_checkpoint", &best), ("steps", &steps), ("validate_every", &every)];
        let rate = [("learning_rate", "0.02"), ("schedule_steps", "1000"), ("warm_up", "0"), ("decay", "none")];
        let trained = run(&[&common, &rate, more].concat()).train(&row(), data)?;
        Ok(trained.map(|trained| trained.parameters_sha256.unwrap()))
    }

    fn log(&self) -> RunLog {
        read(&self.path("log"))
    }
}

fn outputs() -> Outputs {
    Outputs(tempfile::tempdir().unwrap())
}

/// Returns the validation losses of the evaluations during and after the training, each with its number of steps.
fn losses(log: &RunLog) -> Vec<(usize, f64)> {
    let evaluated = log.validations.iter().filter(|validation| validation.after_steps > 0);
    evaluated.map(|validation| (validation.after_steps, validation.validation_loss)).collect()
}

fn lowest(losses: &[(usize, f64)]) -> usize {
    losses.iter().min_by(|one, other| one.1.total_cmp(&other.1)).unwrap().0
}

/// Returns the number of completed steps of the one checkpoint in a folder.
fn steps(folder: &Path) -> usize {
    let kept = folder.read_dir().unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(kept, 1, "one checkpoint is kept");
    Saved::open(folder).unwrap().manifest().progress.steps as usize
}

#[test]
fn the_checkpoint_with_the_lowest_loss_is_kept_also_over_several_runs() {
    let whole = outputs();
    let trained = whole.train("best", &[]).unwrap().unwrap();
    let losses = losses(&whole.log());
    let best = lowest(&losses);
    assert!(EVERY < best && best < STEPS, "the loss falls and then rises: {losses:?}");
    assert_eq!(
        losses.iter().map(|(steps, _)| *steps).collect::<Vec<_>>(),
        (1..=8).map(|at| at * EVERY).collect::<Vec<_>>()
    );
    assert_eq!(steps(&whole.path("best")), best);

    // The best loss is one of the first run, and the second does not forget it. The second begins at an evaluation.
    for stop in [best + 1, best] {
        let resumed = outputs();
        let kept = resumed.text("kept");
        let (first, both) = (stop.to_string(), [("checkpoint", &*kept)]);
        assert!(resumed.train("best", &[&both[..], &[("stop_after", &first)]].concat()).unwrap().is_none());
        let again = resumed.train("best", &[&both[..], &[("resume", "latest")]].concat()).unwrap().unwrap();
        assert_eq!((again, steps(&resumed.path("best"))), (trained.clone(), best), "stopped after {stop} steps");
    }

    // The best checkpoint is one to resume from.
    let from_best = outputs();
    let resumed = from_best.train("other", &[("resume", &whole.text("best"))]).unwrap().unwrap();
    assert_eq!(resumed, trained);
    assert_eq!(steps(&whole.path("best")), best, "no checkpoint is added to the folder");
    assert!(steps(&from_best.path("other")) >= best, "another folder has the best one of this run");
    // A run into a new folder has a checkpoint there before its first step, so it can be resumed from there at once.
    let (into, stop) = (from_best.text("into"), (best + 1).to_string());
    let moved = [("resume", whole.text("best")), ("checkpoint", into.clone()), ("stop_after", stop)];
    let moved: Vec<_> = moved.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert!(from_best.train("fourth", &moved).unwrap().is_none());
    let names = fs::read_dir(&into).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<_> = names.filter(|name| name.contains("-step-")).collect();
    assert!(names.iter().any(|name| name.ends_with(&format!("-step-{best}"))), "{names:?}");

    let refused = from_best.train("third", &[("resume", &whole.text("best")), ("checkpoint", &whole.text("best"))]);
    assert!(format!("{:#}", refused.unwrap_err()).contains("is a folder of --best-checkpoint"));

    // Steps that overlap pause for evaluations and checkpoints.
    let ahead = outputs();
    ahead.train("best", &[("flush", "ahead")]).unwrap().unwrap();
    assert_eq!(steps(&ahead.path("best")), best);
}

#[test]
fn a_training_whose_loss_no_longer_falls_is_complete() {
    let whole = outputs();
    whole.train("best", &[]).unwrap();
    let best = lowest(&losses(&whole.log()));
    let end = best + 2 * EVERY;
    let ended = outputs();
    let trained = ended.train("best", &[("patience", "2")]).unwrap().expect("it is complete");
    assert_eq!(losses(&ended.log()).last().unwrap().0, end);
    assert_eq!(steps(&ended.path("best")), best);
    let shorter = outputs();
    assert_eq!(shorter.train("best", &[("steps", &end.to_string())]).unwrap(), Some(trained.clone()));

    // An interruption changes nothing, and a run that resumes the complete training makes no step.
    let resumed = outputs();
    let kept = resumed.text("kept");
    let both = [("checkpoint", &*kept), ("patience", "2")];
    // It is interrupted between two evaluations, and at each of two.
    for (runs, stop) in [end - 2 * EVERY, end - EVERY, end - 2].iter().enumerate() {
        let stop = stop.to_string();
        let resume: &[_] = if runs > 0 { &[("resume", "latest")] } else { &[] };
        assert!(resumed.train("best", &[&both[..], &[("stop_after", &stop)], resume].concat()).unwrap().is_none());
    }
    for _ in 0..2 {
        let again = resumed.train("best", &[&both[..], &[("resume", "latest")]].concat()).unwrap();
        assert_eq!(again, Some(trained.clone()));
    }
    assert_eq!(resumed.log().steps.last().unwrap().step, end - 1);
    // Without patience, it continues to its last step.
    let last = [("checkpoint", &*kept), ("patience", "0"), ("resume", "latest")];
    assert!(resumed.train("best", &last).unwrap().is_some());
    assert_eq!(resumed.log().steps.last().unwrap().step, STEPS - 1);
}

#[test]
fn a_folder_with_other_checkpoints_is_refused() {
    let folder = outputs();
    let refused = |best: &str, more: &[(&str, &str)]| format!("{:#}", folder.train(best, more).unwrap_err());
    folder.train("best", &[("checkpoint", &folder.text("kept"))]).unwrap();
    let of_other = "has checkpoints of another training or of --checkpoint; give another folder";
    assert!(refused("best", &[]).contains(of_other), "a new training");
    assert!(refused("best", &[("seed", "3")]).contains(of_other), "another training");
    let resume = [("resume", &*folder.text("kept"))];
    let elsewhere = folder.text("elsewhere");
    let error = refused("kept", &[resume[0], ("checkpoint", &elsewhere)]);
    assert!(error.contains(of_other), "{error}");
    let other = folder.train_with(Shifting { held_out: 2.0 }, "best", &resume);
    let error = format!("{:#}", other.unwrap_err());
    assert!(error.contains("was the best on other held-out samples"), "{error}");
}
