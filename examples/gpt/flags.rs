//! What the command line says.

use std::num::NonZero;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use stageline::schedule::{Schedule, schedule_named};
use stageline::{Precision, Recompute};

/// The default number of steps.
const SHORTEST_SCHEDULE: usize = 400;

/// Trains a byte-level GPT, cut into pipeline stages, on text.
#[derive(Parser)]
pub struct Flags {
    /// A text file or a folder of them [default: the Rust sources in the cargo registry]
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// P: how many stages the model is cut into
    #[arg(long, default_value_t = 2)]
    pub stages: usize,
    /// M: how many micro-batches a batch is cut into, for each replica; also the gradient accumulation count
    #[arg(long, default_value_t = 8)]
    pub micro_batches: usize,
    /// R: how many times there are all stages, each time with M micro-batches of every batch; gradients are added up once a step
    #[arg(long, default_value_t = 1)]
    pub replicas: usize,
    /// In how many groups of micro-batches gradients are summed, before these sums are added up: R replicas come to the bits of
    /// one with R times the micro-batches, in R groups [default: as many as replicas]
    #[arg(long, value_name = "GROUPS")]
    pub gradient_groups: Option<usize>,
    /// Samples in a micro-batch
    #[arg(long, default_value_t = 4)]
    pub micro_batch_size: usize,
    /// The order of forwards and backwards: gpipe, 1f1b or eager-1f1b; zb-h1 or zb-h2, with split backwards; and with 2 stages a
    /// worker interleaved or looped-breadth-first, or in a V zb-v, v-half, v-min or dualpipe-v
    #[arg(long, default_value = "1f1b", value_parser = schedule_named)]
    pub schedule: &'static (dyn Schedule + Sync),
    /// Optimizer steps
    #[arg(long, default_value_t = SHORTEST_SCHEDULE)]
    pub steps: usize,
    /// Over how many steps the learning rate rises and falls [default: all steps, or 400 where they are fewer: a short run is then
    /// the beginning of a longer one]
    #[arg(long, value_name = "STEPS")]
    pub schedule_steps: Option<usize>,
    /// Transformer blocks
    #[arg(long, default_value_t = 4)]
    pub layers: usize,
    /// The size of an activation
    #[arg(long, default_value_t = 128)]
    pub width: usize,
    /// The length of a sample, in bytes
    #[arg(long, default_value_t = 128)]
    pub context: usize,
    /// Samples a step that steps and learning rate are right for: with other ones, as with another M, a warning says what that
    /// changes
    #[arg(long, default_value_t = 32)]
    pub tuned_for: usize,
    /// The highest learning rate, reached after the warm-up
    #[arg(long, default_value_t = 2e-3)]
    pub learning_rate: f64,
    /// The global norm to which the gradients of a step are clipped; 0 does not clip
    #[arg(long, default_value_t = 1.0)]
    pub clip: f64,
    /// In what stages compute: full, bf16 or f16; parameters and their sums stay in f32
    #[arg(long, default_value_t = Precision::Full)]
    pub precision: Precision,
    /// Every how many steps the log has each parameter's gradient and update norms; 0 is never
    #[arg(long, default_value_t = 0)]
    pub health_every: usize,
    /// What steps the parameters: `adafactor` remembers little more than a row and a column of each
    #[arg(long, default_value = "adamw")]
    pub optimizer: OptimizerName,
    /// What stages compute again in backwards instead of keeping it: attention, whole blocks, or as little as fits the memory
    #[arg(long, default_value = "none")]
    pub recompute: RecomputeName,
    /// Whether stages that are done with a step wait for the others, or begin the next one: the same bits, and less idle time
    /// in schedules such as zb-h2 and zb-v, where most steps need not be clipped
    #[arg(long, default_value = "together")]
    pub flush: FlushName,
    /// Whether stages keep copies of parameters and optimizer states during the flush, so that an error in it undoes the step on all
    /// of them; without, the flush needs 12 bytes a parameter less under AdamW, and such an error ends the training
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "true|false")]
    pub rollback: bool,
    /// What each device has, in GB, all CPUs being one [default: of the host what is free; GPUs are not asked]. A training that
    /// is estimated to need more is refused, with the ways out
    #[arg(long, value_name = "GB")]
    pub memory: Option<f64>,
    /// The seed of parameters, samples and split
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Every how many steps workers wait for their device after every action: times, and the bubble, are then those of a GPU
    /// too, or of another host, and the throughput is that of the other steps; 0 is never [default: 20 with GPUs and devices of
    /// other hosts, else 0]
    #[arg(long, value_name = "STEPS")]
    pub synchronise_every: Option<usize>,
    /// The TFLOP/s that one device can do at most in this precision, such as 989 for an H200 in bf16: the log and the progress
    /// then have the model FLOP utilisation, the tokens a second x FLOPs of training on one, as a share of that of all devices
    #[arg(long)]
    pub peak_tflops: Option<f64>,
    /// `cpu` or `cuda:0`, or a list of them for consecutive workers, one replica after the other; devices of other hosts as `stageline serve` prints them there,
    /// such as `iroh:<id>/0` or `ws://gpu-2:4433/0`
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// A file whose first line is the secret of the hosts that serve devices
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Micro-batches that a channel between two stages holds [default: all]
    #[arg(long)]
    pub channel_capacity: Option<usize>,
    /// Cores that one stage's kernels may use [default: the machine's, divided among the stages of all replicas]
    #[arg(long)]
    pub cores_per_stage: Option<usize>,
    /// Instead of training to the end, proves over so many steps [100 if no number is given] that this configuration trains as
    /// one full batch on one device does
    #[arg(long, num_args = 0..=1, default_missing_value = "100")]
    pub verify: Option<usize>,
    /// Writes checkpoints into this folder: every so often, at the end, on the first Ctrl-C or SIGTERM, which then ends the
    /// training, and after an error
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,
    /// After every how many steps
    #[arg(long, default_value_t = 100)]
    pub every: usize,
    /// How many checkpoints are kept
    #[arg(long, default_value_t = NonZero::new(3).expect("3 is not 0"))]
    pub keep: NonZero<usize>,
    /// Goes on from a checkpoint, or from the latest of a folder of them; `latest` is that of `--checkpoint`. Its settings hold
    /// where no others are given; stages, schedule, M and devices are free
    #[arg(long, value_name = "FOLDER")]
    pub resume: Option<PathBuf>,
    /// Ends after so many steps, as Ctrl-C does
    #[arg(long, value_name = "STEPS")]
    pub stop_after: Option<usize>,
    /// After how many seconds in which nothing begins a warning says what every stage is doing; ten times that later the
    /// training ends with an error. 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub watchdog: u32,
    /// How many bytes the trained model writes at the end, on the first of the devices, if that is one of this host
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub sample: usize,
    /// Reads settings from a TOML file: flags by their names, with `_` for `-`; flags count more
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting, such as `micro_batches=16`; counts more than the file, and less than a flag
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Prints all settings as a file for `--config`, and does nothing else
    #[arg(long)]
    pub print_config: bool,
    /// Writes a JSON object a line: what is run, every step, every validation, and what came of it
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Writes a few steps for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Writes scalars for TensorBoard into this folder
    #[arg(long, value_name = "FOLDER")]
    pub tensorboard: Option<PathBuf>,
    /// The step, from 0, whose timeline is in the log and on the page, and with which the trace begins
    #[arg(long, default_value_t = 2)]
    pub draw_step: usize,
    /// Writes a page about the run
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
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

impl Flags {
    pub fn schedule_steps(&self) -> usize {
        self.schedule_steps.unwrap_or(self.steps.max(SHORTEST_SCHEDULE))
    }
}
