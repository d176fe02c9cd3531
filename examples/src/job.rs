//! Resolves the flags into a [`Job`], whose existence means that they are valid and do not contradict each other.

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use stageline::remote::Token;
use stageline::schedule::{Placement, Schedule};
use stageline::{Clip, DeviceName, Precision, Watchdog};

use crate::config::Settings;
use crate::flags::{Flags, FlushName, OptimizerName, RecomputeName};
use crate::log::Outputs;
use crate::model::{Shape, costs};

/// The largest allowed value of flags that count something, such as stages and micro-batches.
pub const LARGEST: usize = 65_536;

/// The largest allowed value of `--cores-per-stage`, because more threads take longer to start than to train.
const MOST_CORES: usize = 1024;

/// The largest allowed value of `--replicas`, because the threads of more replicas take longer to start than to train.
const MOST_REPLICAS: usize = 1024;

/// The validated settings of a run: the model, its training, the execution, and the outputs.
pub struct Job {
    pub data: Option<PathBuf>,
    pub shape: Shape,
    pub training: Training,
    pub running: Running,
    pub seed: u64,
    /// The number of steps over which the run verifies the pipeline against full-batch training, instead of training to
    /// the end.
    pub verify: Option<usize>,
    /// The number of bytes of text that the trained model writes at the end of the run.
    pub sample: usize,
    pub outputs: Outputs,
    pub keeping: Keeping,
    /// The value of every setting of the run, for the log and for checkpoints.
    pub settings: Settings,
}

/// The checkpoints that the run writes: their folder, the interval between them in steps, and the number to keep.
pub struct Keeping {
    pub folder: Option<PathBuf>,
    pub every: usize,
    pub keep: NonZero<usize>,
    /// The number of steps after which the training ends early, with a checkpoint.
    pub stop_after: Option<usize>,
}

/// The hyperparameters of the training: steps, learning rate, optimizer and batch size.
pub struct Training {
    pub steps: usize,
    /// The number of steps over which the learning rate rises and falls.
    pub schedule_steps: usize,
    pub learning_rate: f64,
    pub optimizer: OptimizerName,
    pub clip: Option<Clip>,
    pub health_every: usize,
    /// The number of micro-batches that each replica trains on in a step (M).
    pub micro_batches: usize,
    pub micro_batch_size: usize,
    pub gradient_groups: Option<usize>,
    /// The number of samples in a step, over all replicas.
    pub batch_size: usize,
    pub tuned_for: usize,
}

/// The execution of the training: devices, schedule, precision, memory and limits.
pub struct Running {
    /// The device of each stage in the first replica.
    pub devices: Vec<Device>,
    /// The device of each stage in every replica except the first.
    pub elsewhere: Vec<Vec<Device>>,
    pub schedule: &'static (dyn Schedule + Sync),
    pub precision: Precision,
    pub synchronise_every: Option<usize>,
    /// The model FLOP utilisation at one token a second: the share of the peak FLOP/s of all devices that this takes.
    /// It is `None` if the peak is not known.
    pub utilisation: Option<f64>,
    pub channel_capacity: Option<usize>,
    pub cores_per_stage: Option<usize>,
    pub recompute: RecomputeName,
    pub flush: FlushName,
    pub rollback: bool,
    /// The memory of each device, in bytes, if `--memory` is given.
    pub memory: Option<u64>,
    pub watchdog: Option<Watchdog>,
}

impl Job {
    /// Validates the flags of a run and opens its devices, before any data is read or a thread is started.
    ///
    /// # Errors
    /// Returns an error if the value of a flag is out of its range, two flags contradict each other, or a device cannot
    /// be opened.
    pub fn of(flags: Flags, settings: Settings) -> Result<Self> {
        check(&flags)?;
        let names = DeviceName::parse_list(&flags.device).context("--device")?;
        let devices = devices(&flags, &names)?;
        // All stages of a worker share its device. If the schedule has no plan of this shape, any placement will do:
        // building the pipeline returns that error.
        let placement = flags.schedule.plan(flags.stages, flags.micro_batches).map(|plan| plan.placement());
        let placement = placement.unwrap_or_else(|_| Placement::in_turn(flags.stages, 1));
        let workers = flags.replicas * placement.workers();
        let used = devices.len().min(workers);
        let device_of_worker = |worker: usize| devices[worker * used / workers].clone();
        let devices_of_replica = |replica: usize| {
            let first = replica * placement.workers();
            (0..flags.stages).map(|stage| device_of_worker(first + placement.worker(stage))).collect()
        };
        let shape = Shape { layers: flags.layers, width: flags.width, context: flags.context };
        let schedule_steps = flags.schedule_steps();
        // A backward takes twice the FLOPs of a forward. Recomputed work does not count (Chowdhery et al., 2022,
        // arXiv:2204.02311, appendix B).
        let flops_of_a_byte = || 3.0 * costs(shape).flops() / shape.context as f64;
        let share_of_peak = |tflops: f64| flops_of_a_byte() / (tflops * 1e12 * used as f64);
        Ok(Self {
            data: flags.data,
            shape,
            training: Training {
                steps: flags.steps,
                schedule_steps,
                learning_rate: flags.learning_rate,
                optimizer: flags.optimizer,
                health_every: flags.health_every,
                clip: (flags.clip > 0.0).then_some(Clip::GlobalNorm(flags.clip)),
                micro_batches: flags.micro_batches,
                micro_batch_size: flags.micro_batch_size,
                gradient_groups: flags.gradient_groups,
                batch_size: flags.replicas * flags.micro_batches * flags.micro_batch_size,
                tuned_for: flags.tuned_for,
            },
            running: Running {
                devices: devices_of_replica(0),
                elsewhere: (1..flags.replicas).map(devices_of_replica).collect(),
                schedule: flags.schedule,
                precision: flags.precision,
                synchronise_every: flags.synchronise_every,
                utilisation: flags.peak_tflops.map(share_of_peak),
                channel_capacity: flags.channel_capacity,
                cores_per_stage: flags.cores_per_stage,
                recompute: flags.recompute,
                flush: flags.flush,
                rollback: flags.rollback,
                memory: flags.memory.map(|gigabytes| (gigabytes * 1e9) as u64),
                watchdog: watchdog(flags.watchdog),
            },
            seed: flags.seed,
            verify: flags.verify,
            sample: flags.sample,
            outputs: Outputs {
                log: flags.log,
                trace: flags.trace,
                tensorboard: flags.tensorboard,
                report: flags.report,
                draw_step: flags.draw_step,
            },
            keeping: Keeping {
                folder: flags.checkpoint,
                every: flags.every,
                keep: flags.keep,
                stop_after: flags.stop_after,
            },
            settings,
        })
    }
}

/// Validates the flags of a run as far as this needs no device.
fn check(flags: &Flags) -> Result<()> {
    for (flag, value) in [
        ("--stages", flags.stages),
        ("--micro-batches", flags.micro_batches),
        ("--micro-batch-size", flags.micro_batch_size),
        ("--width", flags.width),
        ("--context", flags.context),
        ("--layers + 1", flags.layers.saturating_add(1)),
    ] {
        ensure!((1..=LARGEST).contains(&value), "{flag} {value}: give 1 to {LARGEST}");
    }
    ensure!((1..=MOST_REPLICAS).contains(&flags.replicas), "--replicas {}: give 1 to {MOST_REPLICAS}", flags.replicas);
    check_groups(flags)?;
    let cores = flags.cores_per_stage.unwrap_or(1);
    ensure!((1..=MOST_CORES).contains(&cores), "--cores-per-stage {cores}: give 1 to {MOST_CORES}");
    ensure!(flags.every > 0, "--every 0: give 1 or more");
    ensure!(flags.schedule_steps() > 0, "--schedule-steps 0: give 1 or more");
    if flags.checkpoint.is_none() {
        ensure!(flags.stop_after.is_none(), "--stop-after: give --checkpoint a folder, or the trained steps are lost");
    }
    ensure!(
        flags.verify.is_none() || flags.resume.is_none(),
        "--verify proves a training from its beginning: leave --resume out"
    );
    ensure!(
        flags.learning_rate > 0.0 && flags.learning_rate <= 1.0,
        "--learning-rate {}: give a number above 0 and at most 1",
        flags.learning_rate
    );
    ensure!(flags.clip >= 0.0 && flags.clip.is_finite(), "--clip {}: give 0 or more", flags.clip);
    let peak = flags.peak_tflops.unwrap_or(1.0);
    ensure!(peak > 0.0 && peak.is_finite(), "--peak-tflops {peak}: give a number above 0");
    let memory = flags.memory.unwrap_or(1.0);
    ensure!(memory > 0.0 && memory.is_finite(), "--memory {memory}: give a number of GB above 0");
    Ok(())
}

/// Validates that gradients can be summed in the requested number of groups.
fn check_groups(flags: &Flags) -> Result<()> {
    let (replicas, micro_batches) = (flags.replicas, flags.micro_batches);
    let groups = flags.gradient_groups.unwrap_or(replicas);
    if replicas > 1 {
        ensure!(
            groups == replicas,
            "--gradient-groups {groups}: {replicas} replicas sum gradients in {replicas} groups; give \
             --gradient-groups {replicas}, which gives other bits, or --replicas {groups}"
        );
    } else {
        ensure!(
            groups > 0 && micro_batches.is_multiple_of(groups),
            "--gradient-groups {groups}: give a number that divides --micro-batches {micro_batches}"
        );
    }
    Ok(())
}

/// Opens the devices that `--device` names, and connects to the devices of other hosts.
fn devices(flags: &Flags, names: &[DeviceName]) -> Result<Vec<Device>> {
    let read = |path: &PathBuf| Token::read(path).with_context(|| format!("--token-file {}", path.display()));
    let token = flags.token_file.as_ref().map(read).transpose()?;
    DeviceName::open_all(names, token.as_ref()).context("--device")
}

/// Returns a watchdog that warns after this number of seconds without an action, and gives up after ten times as many
/// more; `None` for 0 seconds.
fn watchdog(seconds: u32) -> Option<Watchdog> {
    let floor = Duration::from_secs(seconds.into());
    (seconds > 0).then(|| Watchdog { floor, grace: 10 * floor, ..Watchdog::default() })
}
