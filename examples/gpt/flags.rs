//! What the command line says, and what it means.

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use clap::{Parser, ValueEnum};
use stageline::remote::Token;
use stageline::schedule::{Placement, Schedule, schedule_named};
use stageline::{Clip, DeviceName, Precision, Recompute, Watchdog};

use crate::config::Settings;
use crate::cut::training_flops;
use crate::log::Outputs;
use crate::model::Shape;

/// What no flag that counts something needs to go beyond.
pub const LARGEST: usize = 65_536;

/// More threads a stage take longer to start than to train.
const MOST_CORES: usize = 1024;

/// So do more stages.
const MOST_REPLICAS: usize = 1024;

/// The default number of steps.
const SHORTEST_SCHEDULE: usize = 400;

/// Trains a byte-level GPT, cut into pipeline stages, on text.
#[derive(Parser)]
pub struct Flags {
    /// A text file or a folder of them [default: the Rust sources in the cargo registry]
    #[arg(long)]
    data: Option<PathBuf>,
    /// P: how many stages the model is cut into
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// M: how many micro-batches a batch is cut into, for each replica; also the gradient accumulation count
    #[arg(long, default_value_t = 8)]
    micro_batches: usize,
    /// R: how many times there are all stages, each time with M micro-batches of every batch; gradients are added up once a step
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    /// In how many groups of micro-batches gradients are summed, before these sums are added up: R replicas come to the bits of
    /// one with R times the micro-batches, in R groups [default: as many as replicas]
    #[arg(long, value_name = "GROUPS")]
    gradient_groups: Option<usize>,
    /// Samples in a micro-batch
    #[arg(long, default_value_t = 4)]
    micro_batch_size: usize,
    /// The order of forwards and backwards: gpipe, 1f1b or eager-1f1b; zb-h1 or zb-h2, with split backwards; and with 2 stages a
    /// worker interleaved or looped-breadth-first, or in a V zb-v, v-half, v-min or dualpipe-v
    #[arg(long, default_value = "1f1b", value_parser = schedule_named)]
    schedule: &'static (dyn Schedule + Sync),
    /// Optimizer steps
    #[arg(long, default_value_t = SHORTEST_SCHEDULE)]
    steps: usize,
    /// Over how many steps the learning rate rises and falls [default: all steps, or 400 where they are fewer: a short run is then
    /// the beginning of a longer one]
    #[arg(long, value_name = "STEPS")]
    schedule_steps: Option<usize>,
    /// Transformer blocks
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// The size of an activation
    #[arg(long, default_value_t = 128)]
    width: usize,
    /// The length of a sample, in bytes
    #[arg(long, default_value_t = 128)]
    context: usize,
    /// Samples a step that steps and learning rate are right for: with other ones, as with another M, a warning says what that
    /// changes
    #[arg(long, default_value_t = 32)]
    tuned_for: usize,
    /// The highest learning rate, reached after the warm-up
    #[arg(long, default_value_t = 2e-3)]
    learning_rate: f64,
    /// The global norm to which the gradients of a step are clipped; 0 does not clip
    #[arg(long, default_value_t = 1.0)]
    clip: f64,
    /// In what stages compute: full, bf16 or f16; parameters and their sums stay in f32
    #[arg(long, default_value_t = Precision::Full)]
    precision: Precision,
    /// Every how many steps the log has each parameter's gradient and update norms; 0 is never
    #[arg(long, default_value_t = 0)]
    health_every: usize,
    /// What steps the parameters: `adafactor` remembers little more than a row and a column of each
    #[arg(long, default_value = "adamw")]
    optimizer: OptimizerName,
    /// What stages compute again in backwards instead of keeping it: attention, whole blocks, or as little as fits the memory
    #[arg(long, default_value = "none")]
    recompute: RecomputeName,
    /// Whether stages that are done with a step wait for the others, or begin the next one: the same bits, and less idle time
    /// in schedules such as zb-h2 and zb-v, where most steps need not be clipped
    #[arg(long, default_value = "together")]
    flush: FlushName,
    /// What each device has, in GB, all CPUs being one [default: of the host what is free; GPUs are not asked]. A training that
    /// is estimated to need more is refused, with the ways out
    #[arg(long, value_name = "GB")]
    memory: Option<f64>,
    /// The seed of parameters, samples and split
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Every how many steps workers wait for their device after every action: times, and the bubble, are then those of a GPU
    /// too, and the throughput is that of the other steps; 0 is never
    #[arg(long, default_value_t = 0)]
    synchronise_every: usize,
    /// The TFLOP/s that one device can do at most in this precision, such as 989 for an H200 in bf16: the log and the progress
    /// then have the model FLOP utilisation, the tokens a second x FLOPs of training on one, as a share of that of all devices
    #[arg(long)]
    peak_tflops: Option<f64>,
    /// `cpu` or `cuda:0`, or a list of them for consecutive workers, one replica after the other; devices of other hosts as `stageline serve` prints them there,
    /// such as `iroh:<id>/0` or `ws://gpu-2:4433/0`
    #[arg(long, default_value = "cpu")]
    device: String,
    /// A file whose first line is the secret of the hosts that serve devices
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Micro-batches that a channel between two stages holds [default: all]
    #[arg(long)]
    channel_capacity: Option<usize>,
    /// Cores that one stage's kernels may use [default: the machine's, divided among the stages of all replicas]
    #[arg(long)]
    cores_per_stage: Option<usize>,
    /// Instead of training to the end, proves over so many steps [100 if no number is given] that this configuration trains as
    /// one full batch on one device does
    #[arg(long, num_args = 0..=1, default_missing_value = "100")]
    verify: Option<usize>,
    /// Writes checkpoints into this folder: every so often, at the end, on the first Ctrl-C or SIGTERM, which then ends the
    /// training, and after an error
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,
    /// After every how many steps
    #[arg(long, default_value_t = 100)]
    every: usize,
    /// How many checkpoints are kept
    #[arg(long, default_value_t = NonZero::new(3).expect("3 is not 0"))]
    keep: NonZero<usize>,
    /// Goes on from a checkpoint, or from the latest of a folder of them; `latest` is that of `--checkpoint`. Its settings hold
    /// where no others are given; stages, schedule, M and devices are free
    #[arg(long, value_name = "FOLDER")]
    pub resume: Option<PathBuf>,
    /// Ends after so many steps, as Ctrl-C does
    #[arg(long, value_name = "STEPS")]
    stop_after: Option<usize>,
    /// After how many seconds in which nothing begins a warning says what every stage is doing; ten times that later the
    /// training ends with an error. 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    watchdog: u32,
    /// Reads settings from a TOML file: flags by their names, with `_` for `-`; flags count more
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting, such as `micro_batches=16`; counts more than the file, and less than a flag
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Prints all settings as a file for `--config`, and does nothing else
    #[arg(long)]
    pub print_config: bool,
    /// Writes a JSON object a line: what is run, every step, every validation, and what came of it
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Writes a few steps for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Writes scalars for TensorBoard into this folder
    #[arg(long, value_name = "FOLDER")]
    tensorboard: Option<PathBuf>,
    /// The step, from 0, whose timeline is in the log and on the page, and with which the trace begins
    #[arg(long, default_value_t = 2)]
    draw_step: usize,
    /// Writes a page about the run
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// An optimizer of burn's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    Adamw,
    Adafactor,
}

/// When stages make their step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlushName {
    Together,
    Ahead,
}

/// What is computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecomputeName {
    None,
    Selective,
    Full,
    Auto,
}

impl RecomputeName {
    /// To begin with.
    pub fn policy(self) -> Recompute {
        match self {
            Self::None | Self::Auto => Recompute::Nothing,
            Self::Selective => Recompute::Selective,
            Self::Full => Recompute::Full,
        }
    }
}

/// Flags that make sense together.
pub struct Job {
    pub data: Option<PathBuf>,
    pub shape: Shape,
    pub training: Training,
    pub running: Running,
    pub seed: u64,
    pub verify: Option<usize>,
    pub outputs: Outputs,
    pub keeping: Keeping,
    /// All flags, for the log and for checkpoints.
    pub settings: Settings,
}

/// Which checkpoints are written.
pub struct Keeping {
    pub folder: Option<PathBuf>,
    pub every: usize,
    pub keep: NonZero<usize>,
    pub stop_after: Option<usize>,
}

/// What is trained how long.
pub struct Training {
    pub steps: usize,
    /// Over how many the learning rate rises and falls.
    pub schedule_steps: usize,
    pub learning_rate: f64,
    pub optimizer: OptimizerName,
    pub clip: Option<Clip>,
    pub health_every: usize,
    /// Of each replica.
    pub micro_batches: usize,
    pub micro_batch_size: usize,
    pub gradient_groups: Option<usize>,
    pub batch_size: usize,
    pub tuned_for: usize,
}

/// Where and in which order it runs.
pub struct Running {
    /// One a stage,
    pub devices: Vec<Device>,
    /// and of each other replica.
    pub elsewhere: Vec<Vec<Device>>,
    pub schedule: &'static (dyn Schedule + Sync),
    pub precision: Precision,
    pub synchronise_every: usize,
    /// The share of what all devices can do at most that training on one token a second takes.
    pub utilisation: Option<f64>,
    pub channel_capacity: Option<usize>,
    pub cores_per_stage: Option<usize>,
    pub recompute: RecomputeName,
    pub flush: FlushName,
    /// What a device has, in bytes, if that was said.
    pub memory: Option<u64>,
    pub watchdog: Option<Watchdog>,
}

impl Flags {
    pub fn schedule_steps(&self) -> usize {
        self.schedule_steps.unwrap_or(self.steps.max(SHORTEST_SCHEDULE))
    }

    fn check_groups(&self) -> Result<()> {
        let (replicas, micro_batches) = (self.replicas, self.micro_batches);
        let groups = self.gradient_groups.unwrap_or(replicas);
        if replicas > 1 {
            ensure!(
                groups == replicas,
                "--gradient-groups {groups}: {replicas} replicas sum in {replicas} groups; leave it out, or give --replicas 1"
            );
        } else {
            ensure!(
                groups > 0 && micro_batches.is_multiple_of(groups),
                "--gradient-groups {groups}: give a number that divides --micro-batches {micro_batches}"
            );
        }
        Ok(())
    }

    /// Refuses what cannot be, before anything is read or started.
    pub fn job(self, settings: Settings) -> Result<Job> {
        for (flag, value) in [
            ("--stages", self.stages),
            ("--micro-batches", self.micro_batches),
            ("--micro-batch-size", self.micro_batch_size),
            ("--width", self.width),
            ("--context", self.context),
            ("--layers + 1", self.layers.saturating_add(1)),
        ] {
            ensure!((1..=LARGEST).contains(&value), "{flag} {value}: give 1 to {LARGEST}");
        }
        ensure!(
            (1..=MOST_REPLICAS).contains(&self.replicas),
            "--replicas {}: give 1 to {MOST_REPLICAS}",
            self.replicas
        );
        self.check_groups()?;
        let cores = self.cores_per_stage.unwrap_or(1);
        ensure!((1..=MOST_CORES).contains(&cores), "--cores-per-stage {cores}: give 1 to {MOST_CORES}");
        ensure!(self.every > 0, "--every 0: give 1 or more");
        ensure!(self.schedule_steps() > 0, "--schedule-steps 0: give 1 or more");
        if self.checkpoint.is_none() {
            ensure!(
                self.stop_after.is_none(),
                "--stop-after: give --checkpoint a folder for what is trained until then"
            );
        }
        ensure!(
            self.verify.is_none() || self.resume.is_none(),
            "--verify proves a training from its beginning: leave --resume out"
        );
        ensure!(
            self.learning_rate > 0.0 && self.learning_rate <= 1.0,
            "--learning-rate {}: give a number above 0 and at most 1",
            self.learning_rate
        );
        ensure!(self.clip >= 0.0 && self.clip.is_finite(), "--clip {}: give 0 or more", self.clip);
        let peak = self.peak_tflops.unwrap_or(1.0);
        ensure!(peak > 0.0 && peak.is_finite(), "--peak-tflops {peak}: give a number above 0");
        let memory = self.memory.unwrap_or(1.0);
        ensure!(memory > 0.0 && memory.is_finite(), "--memory {memory}: give a number of GB above 0");
        let names = DeviceName::parse_list(&self.device).context("--device")?;
        let token = self
            .token_file
            .as_deref()
            .map(|path| Token::read(path).with_context(|| format!("--token-file {}", path.display())));
        let devices = DeviceName::open_all(&names, token.transpose()?.as_ref()).context("--device")?;
        // All stages of a worker are on its device; where there is no plan, building the pipeline says so.
        let placement = self.schedule.plan(self.stages, self.micro_batches).map(|plan| plan.placement());
        let placement = placement.unwrap_or_else(|_| Placement::in_turn(self.stages, 1));
        let workers = self.replicas * placement.workers();
        let used = devices.len().min(workers);
        let of_worker = |worker: usize| devices[worker * used / workers].clone();
        let of_replica = |replica: usize| {
            let first = replica * placement.workers();
            (0..self.stages).map(|stage| of_worker(first + placement.worker(stage))).collect()
        };
        let shape = Shape { layers: self.layers, width: self.width, context: self.context };
        let schedule_steps = self.schedule_steps();
        let of_peak = |tflops: f64| training_flops(shape) / (tflops * 1e12 * used as f64);
        Ok(Job {
            data: self.data,
            shape,
            training: Training {
                steps: self.steps,
                schedule_steps,
                learning_rate: self.learning_rate,
                optimizer: self.optimizer,
                health_every: self.health_every,
                clip: (self.clip > 0.0).then_some(Clip::GlobalNorm(self.clip)),
                micro_batches: self.micro_batches,
                micro_batch_size: self.micro_batch_size,
                gradient_groups: self.gradient_groups,
                batch_size: self.replicas * self.micro_batches * self.micro_batch_size,
                tuned_for: self.tuned_for,
            },
            running: Running {
                devices: of_replica(0),
                elsewhere: (1..self.replicas).map(of_replica).collect(),
                schedule: self.schedule,
                precision: self.precision,
                synchronise_every: self.synchronise_every,
                utilisation: self.peak_tflops.map(of_peak),
                channel_capacity: self.channel_capacity,
                cores_per_stage: self.cores_per_stage,
                recompute: self.recompute,
                flush: self.flush,
                memory: self.memory.map(|gigabytes| (gigabytes * 1e9) as u64),
                watchdog: watchdog(self.watchdog),
            },
            seed: self.seed,
            verify: self.verify,
            outputs: Outputs {
                log: self.log,
                trace: self.trace,
                tensorboard: self.tensorboard,
                report: self.report,
                draw_step: self.draw_step,
                synchronise_every: self.synchronise_every,
            },
            keeping: Keeping {
                folder: self.checkpoint,
                every: self.every,
                keep: self.keep,
                stop_after: self.stop_after,
            },
            settings,
        })
    }
}

/// The watchdog that warns after so many seconds.
fn watchdog(seconds: u32) -> Option<Watchdog> {
    let floor = Duration::from_secs(seconds.into());
    (seconds > 0).then(|| Watchdog { floor, grace: 10 * floor, ..Watchdog::default() })
}
