//! Resolves the flags into a [`Job`], whose existence means that they are valid and do not contradict each other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, FloatDType};
use stageline::remote::Token;
use stageline::{
    Clip, DeviceName, Fallbacks, LossScale, OnNonFinite, OptimizerState, Precision, WarmupDecay, Watchdog,
    device_speeds,
};

use super::check::check;
use super::flags::TrainingFlags;
use super::keeping::Keeping;
use super::merge::Settings;
use super::rate::Rate;
use super::values::{CutBy, FallbacksName, FlushName, NonFiniteName, OptimizerName, RecomputeBy, ScheduleBy, SpeedsBy};
use crate::optimizers::adamw::AdamW;
use crate::outputs::log::Outputs;
use crate::terminal::say;

/// The validated settings of a run: its hyperparameters, execution, seed, checkpoints and output files.
pub struct Job {
    pub training: Training,
    pub running: Running,
    pub seed: u64,
    /// The number of steps that the run trains by the pipeline and with full batches on one device, to compare the two.
    /// `None` for a run that does not compare them.
    pub verify: Option<usize>,
    pub outputs: Outputs,
    pub keeping: Keeping,
    /// The value of every setting of the run, for the log and for checkpoints.
    pub settings: Settings,
}

/// The hyperparameters of the training: steps, learning rate, optimizer and batch size.
pub struct Training {
    /// The number of training steps. With `epochs`, [`Job::count_epochs`] sets it.
    pub steps: usize,
    /// The number of passes over the training data that decides the number of steps; 0 if `--steps` does.
    pub epochs: f64,
    pub learning_rate: WarmupDecay,
    rate: Rate,
    pub optimizer: OptimizerName,
    /// The settings of AdamW. The other optimizers use its weight decay.
    pub adamw: AdamW,
    pub clip: Option<Clip>,
    pub loss_scale: Option<LossScale>,
    pub on_non_finite: OnNonFinite,
    pub health_every: usize,
    pub noise_every: usize,
    pub validate_every: usize,
    /// The number of micro-batches (M) on which each replica trains in a step.
    pub micro_batches: usize,
    pub micro_batch_size: usize,
    pub gradient_groups: Option<usize>,
    /// The number of samples in a training step, over all micro-batches and replicas.
    pub batch_size: usize,
    pub tuned_for: usize,
}

/// The settings that say how a training run is executed: workers, devices, schedule, precision, memory and watchdog.
pub struct Running {
    /// The number of workers (P) of each data-parallel replica.
    pub workers: usize,
    pub replicas: usize,
    pub chunks: Option<usize>,
    pub cut: CutBy,
    pub schedule: ScheduleBy,
    /// The devices of the workers, in the order of the workers, one replica after the other. If there are fewer devices
    /// than workers, consecutive workers share a device.
    pub devices: Vec<Device>,
    /// The relative speed of each entry in `devices`; `None` if all are equally fast. The cut (the partition of the
    /// layers into stages) gives faster devices more layers.
    pub speeds: Option<Vec<f64>>,
    pub precision: Precision,
    /// The reaction to an operation that has no kernel on the stage's device; `None` if `--fallbacks` is unset.
    pub fallbacks: Option<Fallbacks>,
    pub synchronise_every: Option<usize>,
    /// The peak throughput of all devices of the run together, in FLOP/s; `None` if `--peak-tflops` is unset.
    pub peak_flops: Option<f64>,
    pub channel_capacity: Option<usize>,
    pub cores_per_stage: Option<usize>,
    pub recompute: RecomputeBy,
    pub flush: FlushName,
    pub rollback: bool,
    pub optimizer_state: OptimizerState,
    /// The memory of each device in bytes, as `--memory` gives it; `None` if the flag is unset.
    pub memory: Option<u64>,
    /// The number of batches that are read in advance, each by a thread of its own.
    pub read_ahead: usize,
    pub watchdog: Option<Watchdog>,
}

impl Job {
    /// Parses and validates a line of flags for a test. Returns the validated settings of the training, or the text of
    /// the error.
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

    /// Validates the flags of a run and opens its devices, before any data is read or a thread is started.
    ///
    /// # Errors
    /// Returns an error if the value of a flag is out of its range, if two flags contradict each other, or if a device
    /// cannot be opened.
    pub fn of(flags: TrainingFlags, settings: Settings) -> Result<Self> {
        check(&flags)?;
        if flags.flush == FlushName::Ahead && (!flags.rollback || flags.replicas > 1) {
            tracing::warn!("--flush ahead has no effect with --rollback false or with several replicas");
        }
        let (rate, batch_size, keeping) = (Rate::of(&flags), flags.batch_size(), Keeping::of(&flags));
        let devices = devices(&flags)?;
        let used = devices.len().min(flags.replicas * flags.stages);
        Ok(Self {
            training: Training {
                steps: flags.steps,
                epochs: flags.epochs,
                learning_rate: rate.before_data()?,
                rate,
                optimizer: flags.optimizer,
                adamw: AdamW {
                    betas: [flags.beta1.unwrap_or(0.9), flags.beta2.unwrap_or(0.999)],
                    epsilon: flags.epsilon.unwrap_or(1e-8),
                    weight_decay: flags.weight_decay,
                },
                health_every: flags.health_every,
                noise_every: flags.noise_every,
                validate_every: flags.validate_every,
                clip: (flags.clip > 0.0).then_some(Clip::GlobalNorm(flags.clip)),
                loss_scale: flags.loss_scale.map(|scale| scale.0),
                on_non_finite: on_non_finite(flags.on_non_finite),
                micro_batches: flags.micro_batches,
                micro_batch_size: flags.micro_batch_size,
                gradient_groups: flags.gradient_groups,
                batch_size,
                tuned_for: flags.tuned_for(),
            },
            running: Running {
                workers: flags.stages,
                replicas: flags.replicas,
                chunks: flags.chunks,
                cut: flags.cut,
                schedule: flags.schedule,
                speeds: flags.speeds.as_ref().map(|list| speeds(list, &devices, flags.precision)).transpose()?,
                devices,
                precision: flags.precision,
                fallbacks: flags.fallbacks.map(fallbacks),
                synchronise_every: flags.synchronise_every,
                peak_flops: flags.peak_tflops.map(|tflops| tflops * 1e12 * used as f64),
                channel_capacity: flags.channel_capacity,
                cores_per_stage: flags.cores_per_stage,
                recompute: flags.recompute,
                flush: flags.flush,
                rollback: flags.rollback,
                optimizer_state: flags.optimizer_state,
                memory: flags.memory.map(|gigabytes| (gigabytes * 1e9) as u64),
                read_ahead: flags.read_ahead,
                watchdog: watchdog(flags.watchdog),
            },
            seed: flags.seed,
            verify: flags.verify,
            outputs: Outputs {
                log: flags.log,
                trace: flags.trace,
                tensorboard: flags.tensorboard,
                report: flags.report,
                draw_step: flags.draw_step,
            },
            keeping,
            settings,
        })
    }
}

fn on_non_finite(name: NonFiniteName) -> OnNonFinite {
    match name {
        NonFiniteName::Stop => OnNonFinite::Stop,
        NonFiniteName::Skip => OnNonFinite::Skip,
    }
}

fn fallbacks(name: FallbacksName) -> Fallbacks {
    match name {
        FallbacksName::Refuse => Fallbacks::Refuse,
        FallbacksName::Warn => Fallbacks::Warn,
    }
}

impl Job {
    /// Sets the number of steps to that of `--epochs`, and the length of the learning rate schedule to the same number if
    /// it is unset. `samples` is the number of samples in an epoch, if the data has one. Does nothing without `--epochs`.
    ///
    /// # Errors
    /// Returns an error if the data has no epochs.
    pub fn count_epochs(&mut self, samples: Option<u64>) -> Result<()> {
        let training = &mut self.training;
        if training.epochs == 0.0 {
            return Ok(());
        }
        let samples = samples.context("--epochs: the data does not tell how many samples it has; give --steps")?;
        // Without the small number, 1.1 epochs of 10 samples would be 12 samples.
        training.steps = (training.epochs * samples as f64 / training.batch_size as f64 - 1e-9).ceil() as usize;
        let schedule = training.rate.steps.unwrap_or(training.steps.max(1));
        training.learning_rate = training.rate.schedule(schedule)?;
        self.settings.0.insert("schedule_steps".to_owned(), schedule.into());
        Ok(())
    }

    /// Checks the settings of a run that builds a pipeline and does not train it.
    ///
    /// # Errors
    /// Returns an error if the settings ask for a comparison of trainings (`--verify`). Outputs that will not be
    /// written cause only a warning, because a settings file may serve training runs, too.
    pub fn check_untrained(&self) -> Result<()> {
        ensure!(
            self.verify.is_none(),
            "--verify compares trainings, and this run does not train: give data and --steps"
        );
        self.warn_of_unwritten(None, "this run does not train");
        Ok(())
    }

    /// Checks the settings of a run that only compares trainings (`--verify`). Does nothing for another run.
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

    /// Warns about every output that the settings name but this run does not write, and about the folder `checkpoints`.
    /// `reason` says why.
    fn warn_of_unwritten(&self, checkpoints: Option<&Path>, reason: &str) {
        let Outputs { log, trace, tensorboard, report, .. } = &self.outputs;
        let outputs = [log, trace, tensorboard, report].into_iter().filter_map(|path| path.as_deref());
        outputs
            .chain(checkpoints)
            .for_each(|path| tracing::warn!("{} is not written, because {reason}", path.display()));
    }
}

/// Opens the devices that `--device` names, and connects to the devices of other hosts.
fn devices(flags: &TrainingFlags) -> Result<Vec<Device>> {
    let names = DeviceName::parse_list(&flags.device).context("--device")?;
    let read = |path: &PathBuf| Token::read(path).with_context(|| format!("--token-file {}", path.display()));
    let token = flags.token_file.as_ref().map(read).transpose()?;
    DeviceName::open_all(&names, token.as_ref()).context("--device")
}

/// Returns the relative speed of each device in the list `devices`: the number that `--speeds` gives, or a measured
/// number. `--speeds measured` measures matrix products in the training's precision. If a device is listed several
/// times, its entries share its measured speed.
fn speeds(by: &SpeedsBy, devices: &[Device], precision: Precision) -> Result<Vec<f64>> {
    match by {
        SpeedsBy::List(speeds) => {
            let (given, count) = (speeds.len(), devices.len());
            ensure!(
                given == count,
                "--speeds: {given} speeds for {count} devices; give one for each entry of --device"
            );
            Ok(speeds.clone())
        }
        SpeedsBy::Measured => {
            let (dtype, name) = match precision {
                Precision::Full => (FloatDType::F32, "f32"),
                Precision::Bf16 => (FloatDType::BF16, "bf16"),
                Precision::F16 => (FloatDType::F16, "f16"),
            };
            let measured = device_speeds(devices, dtype);
            let entries = |device: &Device| devices.iter().filter(|other| *other == device).count() as f64;
            let shown = devices.iter().zip(&measured);
            let shown: Vec<_> =
                shown.map(|(device, speed)| format!("{} {speed:.2}", DeviceName::shown(device))).collect();
            say(format_args!("measured speeds in {name}: {}", shown.join(", ")))?;
            Ok(devices.iter().zip(measured).map(|(device, speed)| speed / entries(device)).collect())
        }
    }
}

/// Returns a watchdog that warns of a stall after `seconds` seconds without a new activity of any worker (or later, if
/// actions are slow). It ends the training 10 x `seconds` seconds after the warning. Returns `None` if `seconds` is 0.
fn watchdog(seconds: u32) -> Option<Watchdog> {
    let floor = Duration::from_secs(seconds.into());
    (seconds > 0).then(|| Watchdog { floor, grace: 10 * floor, ..Watchdog::default() })
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
