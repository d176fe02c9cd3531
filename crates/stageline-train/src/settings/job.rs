//! Validates the flags and makes a [`Job`] from them, whose settings are valid and do not contradict each other.

use std::path::Path;

use anyhow::{Result, ensure};

use super::check::check;
use super::flags::TrainingFlags;
use super::keeping::Keeping;
use super::merge::Settings;
use super::running::Running;
use super::training::Training;
use super::values::RecomputeBy;
use crate::outputs::log::Outputs;

/// A run's validated settings: its hyperparameters, execution, seed, checkpoints and output files.
pub struct Job {
    pub training: Training,
    pub running: Running,
    pub seed: u64,
    /// Number of steps of a `--verify` run, which compares pipeline training with full-batch training on one device.
    /// `None` for any other run.
    pub verify: Option<usize>,
    pub outputs: Outputs,
    pub keeping: Keeping,
    /// The value of every setting of the run, for the log and for checkpoints.
    pub settings: Settings,
}

impl Job {
    /// Parses and validates a command line of flags for a test. Returns the training run's settings, or the error
    /// message.
    #[cfg(all(test, feature = "flex"))]
    pub fn of_line(flags: &str) -> Result<Self, String> {
        use std::collections::BTreeMap;

        use clap::{Args, Command, FromArgMatches};

        let command = TrainingFlags::augment_args(Command::new("train"));
        let words = ["train"].into_iter().chain(flags.split_whitespace());
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        let flags = TrainingFlags::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        Self::of(flags, Settings(BTreeMap::new())).map_err(|error| format!("{error:#}"))
    }

    /// Validates a run's flags and opens its devices, before any data is read or a thread is started.
    ///
    /// # Errors
    /// Returns an error if a flag's value is out of its range, if two flags contradict each other, or if a device
    /// cannot be opened.
    pub fn of(flags: TrainingFlags, settings: Settings) -> Result<Self> {
        check(&flags)?;
        Ok(Self {
            training: Training::of(&flags)?,
            running: Running::of(&flags)?,
            keeping: Keeping::of(&flags),
            seed: flags.seed,
            verify: flags.verify,
            outputs: Outputs {
                log: flags.log,
                trace: flags.trace,
                tensorboard: flags.tensorboard,
                report: flags.report,
                draw_step: flags.draw_step,
            },
            settings,
        })
    }

    /// Sets the number of steps to that of `--epochs`, and stores the length of the learning-rate schedule as the
    /// setting `schedule_steps`. `samples` is the number of samples in an epoch; `None` if the data has no epochs. Does
    /// nothing if `--epochs` is unset.
    ///
    /// # Errors
    /// Returns an error if the data has no epochs, or if the warm-up or the decay does not fit the schedule.
    pub fn count_epochs(&mut self, samples: Option<u64>) -> Result<()> {
        if let Some(schedule) = self.training.count_epochs(samples)? {
            self.settings.0.insert("schedule_steps".to_owned(), schedule.into());
        }
        Ok(())
    }

    /// Checks the settings of a run that builds a pipeline without training it.
    ///
    /// # Errors
    /// Returns an error for `--verify`, which compares training runs. Outputs that will not be written cause only a
    /// warning, because a settings file may be shared with training runs.
    pub fn check_untrained(&self) -> Result<()> {
        ensure!(
            self.verify.is_none(),
            "--verify compares trainings, and this run does not train: give data and --steps"
        );
        // A run that resumes only reads checkpoints in this folder.
        let folder = self.keeping.folder.as_deref().filter(|_| self.keeping.resume.is_none());
        self.warn_of_unwritten(folder, "this run does not train");
        Ok(())
    }

    /// Checks the settings of a run that only compares training runs (`--verify`). Does nothing for any other run.
    ///
    /// # Errors
    /// Returns an error for `--recompute auto`, which needs a memory estimate. Outputs that will not be written cause
    /// only a warning.
    pub fn check_verified(&self) -> Result<()> {
        if self.verify.is_none() {
            return Ok(());
        }
        ensure!(
            self.running.recompute != RecomputeBy::Auto,
            "--verify estimates no memory, which --recompute auto needs: give --recompute selective or full"
        );
        self.warn_of_unwritten(self.keeping.folder.as_deref(), "this run only compares trainings");
        Ok(())
    }

    /// Warns that this run ignores the output files in its settings, and writes no checkpoints to the folder
    /// `checkpoints`. `reason` says why.
    fn warn_of_unwritten(&self, checkpoints: Option<&Path>, reason: &str) {
        let Outputs { log, trace, tensorboard, report, .. } = &self.outputs;
        let best = &self.keeping.best;
        let outputs = [log, trace, tensorboard, report, best].into_iter().filter_map(|path| path.as_deref());
        outputs
            .chain(checkpoints)
            .for_each(|path| tracing::warn!("{} is not written, because {reason}", path.display()));
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    #[test]
    fn epochs_decide_the_number_of_steps_and_the_length_of_the_schedule() {
        let line = "--epochs 2.5 --micro-batches 2 --micro-batch-size 3";
        let mut job = Job::of_line(line).unwrap();
        job.count_epochs(Some(13)).unwrap();
        // 32.5 samples are more than 5 steps of 6 samples.
        assert_eq!((job.training.steps, &job.settings.0["schedule_steps"]), (6, &6.into()));
        let expected = Job::of_line("--steps 6 --schedule-steps 6").unwrap().training.learning_rate;
        assert_eq!(job.training.learning_rate, expected);
        let mut job = Job::of_line(&format!("{line} --schedule-steps 90")).unwrap();
        job.count_epochs(Some(13)).unwrap();
        assert_eq!((job.training.steps, &job.settings.0["schedule_steps"]), (6, &90.into()));
        let mut job = Job::of_line("--epochs 1.1 --micro-batches 1 --micro-batch-size 11 --warm-up 500").unwrap();
        let error = job.count_epochs(Some(10)).unwrap_err();
        assert!(format!("{error:#}").contains("500") && job.training.steps == 1, "{error:#}");
        let error = Job::of_line(line).unwrap().count_epochs(None).unwrap_err().to_string();
        assert_eq!(error, "--epochs: the data does not tell how many samples it has; give --steps");
        let error = Job::of_line("--epochs=-1").err().unwrap();
        assert!(error.contains("--epochs"), "{error}");
    }
}
