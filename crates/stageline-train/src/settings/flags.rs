//! The command-line flags that all training programs share. The doc comment of each field is its help text.
//!
//! The headings of `--help` group the flags by purpose. Settings under `Training` determine the trained parameters bit
//! for bit (on CPUs), and a resumed run takes them from its checkpoint. `setting::OF_THE_RUN` lists the other headings.

use std::num::NonZero;
use std::path::PathBuf;

use clap::{Args, Command};
use stageline::{OptimizerState, Precision};

use super::values::{
    CutBy, DecayName, FallbacksName, FlushName, Length, LossScaleBy, NonFiniteName, OptimizerName, RecomputeBy,
    ScheduleBy, SpeedsBy,
};

/// The default number of training steps, if the program sets no other default.
const STEPS: usize = 400;

/// The command-line flags that all training programs share, in addition to a program's own flags for its model and
/// data.
#[derive(Args)]
pub struct TrainingFlags {
    /// Number of workers (P). Each worker runs one stage of the model, or several stages (chunks) if the schedule says
    /// so
    #[arg(help_heading = "Pipeline", long, default_value_t = 2)]
    pub stages: usize,
    /// Number of stages per worker (V), also called chunks. Only the schedules interleaved and looped-breadth-first
    /// allow a choice
    #[arg(help_heading = "Pipeline", long, value_name = "V")]
    pub chunks: Option<usize>,
    /// Partition of the model's layers into stages. `counted` balances FLOPs and parameters. `measured` balances the
    /// layers' times on the first device. A list such as 0,3,6 gives the index of the first layer of every stage. In
    /// models of the Hugging Face hub, each block is two layers: attention and feed-forward
    #[arg(help_heading = "Pipeline", long, default_value = "counted", value_name = "CUT")]
    pub cut: CutBy,
    /// Relative speed of each device in the list of --device, such as 1,2,1. Faster devices get more layers. `measured`
    /// times a matrix product on each device at the start. If unset, all devices count as equally fast
    #[arg(help_heading = "Pipeline", long, value_name = "SPEEDS")]
    pub speeds: Option<SpeedsBy>,
    /// Number of micro-batches (M) into which each replica splits its share of a batch. Their gradients are accumulated
    #[arg(help_heading = "Training", long, default_value_t = 8)]
    pub micro_batches: usize,
    /// Number of data-parallel replicas of the pipeline (R). Each replica trains on M micro-batches (--micro-batches)
    /// of every batch. The gradients of all replicas are added once per step
    #[arg(help_heading = "Training", long, default_value_t = 1)]
    pub replicas: usize,
    /// Number of groups in which the micro-batches' gradients are added: first within each group, then over the groups.
    /// If unset, it is the number of replicas. One replica with R times the micro-batches, in R groups, trains the same
    /// values, bit for bit, as R replicas
    #[arg(help_heading = "Training", long, value_name = "GROUPS")]
    pub gradient_groups: Option<usize>,
    /// Number of samples in a micro-batch
    #[arg(help_heading = "Training", long, default_value_t = 4)]
    pub micro_batch_size: usize,
    /// Schedule: the order of forward and backward passes. gpipe, 1f1b and eager-1f1b have one stage per worker: gpipe
    /// keeps the activations of all micro-batches, 1f1b of at most P, and eager-1f1b of more than 1f1b, so that slow
    /// transfers delay it less. zb-h1 and zb-h2 also split each backward pass in two to idle less; zb-h1 needs the
    /// memory of 1f1b, and zb-h2 about twice that. interleaved and looped-breadth-first have 2 stages per worker, or
    /// --chunks. zb-v, v-half, v-min and dualpipe-v have 2 stages per worker in a V: the first worker has the first and
    /// the last stage. zb-v idles least at the memory of 1f1b; v-half needs about half and v-min a third of that.
    /// `search` finds the plan with the shortest simulated step. The path of a CSV file gives a plan, as `stageline
    /// search --csv` writes it
    #[arg(help_heading = "Pipeline", long, default_value = "1f1b")]
    pub schedule: ScheduleBy,
    /// Number of optimizer steps
    #[arg(help_heading = "Training", long, default_value_t = STEPS)]
    pub steps: usize,
    /// Number of epochs (passes over the training data) to train, instead of --steps. 0 is the same as unset. --epochs
    /// or --steps on the command line overrides both flags of a settings file, which override those of a checkpoint
    #[arg(help_heading = "Training", long, default_value_t = 0.0)]
    pub epochs: f64,
    /// Length of the learning-rate schedule (warm-up and decay), in steps. If unset, it is the number of steps of
    /// --epochs, or --steps, but at least the default of --steps, so that a short run trains like the beginning of a
    /// longer one
    #[arg(help_heading = "Training", long, value_name = "STEPS")]
    pub schedule_steps: Option<usize>,
    /// Batch size, in samples, for which the number of steps and the learning rate were chosen. If the run's batch size
    /// differs, a warning says what that changes; nothing is rescaled. If unset, it is the batch size at the start of
    /// the training
    #[arg(help_heading = "Training", long, value_name = "SAMPLES")]
    pub tuned_for: Option<usize>,
    /// Peak learning rate, which is reached at the end of the warm-up
    #[arg(help_heading = "Training", long, default_value_t = 2e-3)]
    pub learning_rate: f64,
    /// Length of the warm-up, in which the learning rate rises to its peak: a number of steps, a share of
    /// --schedule-steps such as 3%, or `samples:N`, which does not depend on the batch size
    #[arg(help_heading = "Training", long, value_name = "LENGTH", default_value = "10%")]
    pub warm_up: Length,
    /// Shape in which the learning rate falls from its peak to its lowest value: half a cosine, a line, or one minus a
    /// square root. `none` keeps the learning rate at its peak
    #[arg(help_heading = "Training", long, value_enum, default_value = "cosine", value_name = "SHAPE")]
    pub decay: DecayName,
    /// Length of the decay at the end of the schedule, in the same forms as --warm-up. Before the decay, the learning
    /// rate stays at its peak. If unset, the decay begins right after the warm-up
    #[arg(help_heading = "Training", long, value_name = "LENGTH")]
    pub decay_length: Option<Length>,
    /// Learning rate at the end of the decay and from then on. If unset, it is a tenth of the peak
    #[arg(help_heading = "Training", long, value_name = "RATE")]
    pub lowest_rate: Option<f64>,
    /// Weight decay of all parameters except norms and biases
    #[arg(help_heading = "Training", long, default_value_t = 0.1)]
    pub weight_decay: f32,
    /// Global norm to which a step's gradients are clipped; 0 turns gradient clipping off
    #[arg(help_heading = "Training", long, default_value_t = 1.0)]
    pub clip: f64,
    /// Precision of forward and backward passes: full, bf16 or f16. Trained parameters and gradient sums stay in f32
    #[arg(help_heading = "Training", long, default_value_t = Precision::Full)]
    pub precision: Precision,
    /// Loss scale, by which the loss is multiplied before the backward pass: a number, or `dynamic`. If unset, it is
    /// `dynamic` with f16, and otherwise 1
    #[arg(help_heading = "Training", long, value_name = "FACTOR")]
    pub loss_scale: Option<LossScaleBy>,
    /// Policy for a step whose loss or gradients are NaN or infinite. `stop` ends the training run with an error.
    /// `skip` continues without updating the parameters in this step. An overflow that a lower dynamic --loss-scale may
    /// avoid is always skipped
    #[arg(help_heading = "Training", long, default_value = "stop")]
    pub on_non_finite: NonFiniteName,
    /// Interval between evaluations of the held-out samples, in steps; 0 evaluates only before and after training
    #[arg(help_heading = "Training", long, default_value_t = 0)]
    pub validate_every: usize,
    /// Early stopping: number of consecutive evaluations without a lower validation loss after which training ends.
    /// Needs --validate-every. The run ends with the last parameters, not the best. 0 trains to the last step
    #[arg(help_heading = "Training", long, value_name = "EVALUATIONS", default_value_t = 0)]
    pub patience: usize,
    /// Interval, in steps, at which the log records the gradient and update norms of each parameter; 0 turns this off
    #[arg(help_heading = "Measurement", long, default_value_t = 0)]
    pub health_every: usize,
    /// Interval, in steps, at which the gradient noise is measured, from the gradients of the micro-batches; 0 turns
    /// this off. `stageline advise` computes from it up to which batch size larger batches pay off
    #[arg(help_heading = "Measurement", long, default_value_t = 10)]
    pub noise_every: usize,
    /// Optimizer. `adafactor` needs the least memory of the adaptive ones: its state for a parameter matrix is little
    /// more than one row and one column. `sgd` has no momentum. `muon` updates the blocks' matrices with Muon, and all
    /// other parameters with AdamW, both at the learning rate of AdamW
    #[arg(help_heading = "Training", long, default_value = "adamw")]
    pub optimizer: OptimizerName,
    /// AdamW's first beta: decay rate of the moving average of gradients [default: 0.9]
    #[arg(help_heading = "Training", long, value_name = "BETA")]
    pub beta1: Option<f64>,
    /// AdamW's second beta: decay rate of the moving average of squared gradients [default: 0.999]
    #[arg(help_heading = "Training", long, value_name = "BETA")]
    pub beta2: Option<f64>,
    /// AdamW's epsilon, which is added to the square root of the second moment [default: 1e-8]
    #[arg(help_heading = "Training", long)]
    pub epsilon: Option<f64>,
    /// Activations that stages recompute in the backward pass instead of keeping them (activation checkpointing).
    /// `none` recomputes nothing. `selective` recomputes attention, and `feed-forward` the feed-forward parts. `full`
    /// recomputes all blocks, `first:N` the first N blocks of a stage, and `every:N` every N-th block. `blocks:0,2,3`
    /// recomputes the blocks with these indices, counted from 0 in each stage. A half of a block that is alone in a
    /// stage counts as a block. `segments:N` recomputes segments of N blocks and keeps only the inputs of segments.
    /// `sqrt` does the same with segments of about sqrt(L) blocks, where L is the number of a stage's blocks. `auto`
    /// recomputes only as much as the training run needs to fit into memory
    #[arg(help_heading = "Memory", long, default_value = "none")]
    pub recompute: RecomputeBy,
    /// How a stage continues after its part of a step: `together` waits for the other stages, and `ahead` begins the
    /// next step. Both train the same values, bit for bit. `ahead` idles less in schedules such as zb-h2 and zb-v, if
    /// most steps need no gradient clipping
    #[arg(help_heading = "Pipeline", long, default_value = "together")]
    pub flush: FlushName,
    /// Whether stages keep copies of parameters and optimizer states during the flush (the optimizer step at the end of
    /// a training step). With copies, an error in the flush rolls the step back on all stages. Without copies, such an
    /// error ends the training run, but the flush needs 12 bytes less per parameter with AdamW
    #[arg(
        help_heading = "Memory",
        long,
        alias = "undo",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub rollback: bool,
    /// Memory that keeps optimizer states between steps: that of the `device` or that of the `host`. With `host`, each
    /// state is copied to the device only while its parameter is updated. The device then needs 8 bytes less per
    /// parameter with AdamW, but every step takes longer because of the copies. The trained values are the same, bit
    /// for bit. On CPUs this changes nothing, because both memories are the same
    #[arg(help_heading = "Memory", long, default_value_t = OptimizerState::Device, value_name = "device|host")]
    pub optimizer_state: OptimizerState,
    /// Memory of each device, in GB. All CPUs count as one device. A training run with a larger memory estimate is
    /// rejected, and the error proposes other flags; without a training, so is a model with larger parameters. If unset, it is the host's free memory, and the total memory of a
    /// GPU that reports it
    #[arg(help_heading = "Memory", long, value_name = "GB")]
    pub memory: Option<f64>,
    /// Number of batches to prefetch, each on a thread of its own. With N, training does not wait for data as long as
    /// reading one batch takes less time than N steps
    #[arg(help_heading = "Memory", long, default_value_t = 16, value_name = "BATCHES")]
    pub read_ahead: usize,
    /// Seed of the initial parameters, the order of samples, and the choice of held-out text
    #[arg(help_heading = "Training", long, default_value_t = 0)]
    pub seed: u64,
    /// Interval, in steps, between synchronised steps, in which workers wait for their device after every action. On
    /// GPUs and devices of other hosts, only synchronised steps show the devices' times and bubbles (idle times), and
    /// only the other steps show the throughput. 0 turns this off. If unset, it is 20 with GPUs or devices of other
    /// hosts, and otherwise 0
    #[arg(help_heading = "Measurement", long, value_name = "STEPS")]
    pub synchronise_every: Option<usize>,
    /// Peak TFLOP/s of one device in the precision of --precision, such as 989 for an H200 in bf16. If set, the log and
    /// the progress bar show the model FLOP utilisation (MFU): the training run's FLOPs per second / the peak FLOP/s of
    /// all devices. A device that is listed twice counts once
    #[arg(help_heading = "Measurement", long)]
    pub peak_tflops: Option<f64>,
    /// Device for all stages, such as `cpu`, `cuda:0` or `vulkan:0`, or a list such as `cuda:0,cuda:1`, with at most
    /// one device per worker. The first devices are those of the first replica. If there are fewer devices than
    /// workers, consecutive workers share one. `cuda:all` stands for all CUDA devices. A device of another host has the
    /// name that `stageline serve` prints on that host, such as `iroh:<id>/0` or `ws://gpu-2:4433/0`
    #[arg(help_heading = "Devices", long, default_value = "cpu")]
    pub device: String,
    /// Policy for an operation, such as attention, for which the stage's device has no fast kernel. `refuse` ends the
    /// run with an error that names the layer, before the first step or in the first forward pass. `warn` names the
    /// layer in a warning, and trains with slower operations. If unset, GPUs refuse and CPUs warn. Attention with heads
    /// too large for the kernels is an error only if `refuse` is given
    #[arg(help_heading = "Devices", long)]
    pub fallbacks: Option<FallbacksName>,
    /// File whose first line is the secret token of the hosts that serve devices to this run
    #[arg(help_heading = "Devices", long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Capacity of the channel between two stages, in micro-batches. A stage waits before it sends to a full channel.
    /// If unset, a channel holds all micro-batches of a step, so no stage waits
    #[arg(help_heading = "Pipeline", long)]
    pub channel_capacity: Option<usize>,
    /// Number of cores that the kernels of one worker may use. If unset, all workers share the machine's cores evenly.
    /// Operations of burn itself use one core unless the program is built with the feature `rayon`
    #[arg(help_heading = "Devices", long)]
    pub cores_per_stage: Option<usize>,
    /// Trains only this number of steps (100 if the number is left out), and verifies the result: it must equal that of
    /// training with full batches on one device, within tolerances
    #[arg(help_heading = "Measurement", long, num_args = 0..=1, default_missing_value = "100")]
    pub verify: Option<usize>,
    /// Folder for checkpoints. They are written before the first step of a run that has none there, every --every steps,
    /// at the end, after an error, and on the first Ctrl-C or SIGTERM, which ends the run
    #[arg(help_heading = "Checkpoints", long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,
    /// Interval between checkpoints, in steps
    #[arg(help_heading = "Checkpoints", long, default_value_t = 100)]
    pub every: usize,
    /// Number of checkpoints to keep; older ones are deleted
    #[arg(help_heading = "Checkpoints", long, default_value_t = NonZero::new(3).expect("3 is not 0"))]
    pub keep: NonZero<usize>,
    /// Separate folder for the one checkpoint with the lowest validation loss. Needs --validate-every. The loss at the
    /// end counts too, but not the one before the first step. If the flag is given again, a resumed run keeps comparing
    /// with the best loss so far
    #[arg(help_heading = "Checkpoints", long, value_name = "FOLDER")]
    pub best_checkpoint: Option<PathBuf>,
    /// Checkpoint from which the training resumes, or a folder, whose latest checkpoint is used. `latest` looks in the
    /// folder of --checkpoint. `auto` does the same, but starts from the beginning if there is no checkpoint. Without
    /// --checkpoint, new checkpoints go to the folder of the old one. The settings under `Training` and the program's
    /// own, such as its model and data, come from the checkpoint, unless they are given again. Other settings, such as
    /// --stages and --device, do not. The number of micro-batches may change, but not the number of samples in a batch
    #[arg(help_heading = "Checkpoints", long, value_name = "FOLDER")]
    pub resume: Option<PathBuf>,
    /// Number of steps after which the run ends early, with a checkpoint. The steps of earlier runs of this training
    /// count too
    #[arg(help_heading = "Checkpoints", long, value_name = "STEPS")]
    pub stop_after: Option<usize>,
    /// Stall timeout: number of seconds without a new action after which a warning says what every stage is doing. If
    /// no action follows for ten times as many further seconds, the training run ends with an error. 0 turns this off
    #[arg(help_heading = "Pipeline", long, value_name = "SECONDS", default_value_t = 60)]
    pub watchdog: u32,
    /// TOML file of settings. Each setting is named like its flag, with `_` instead of `-`. Flags on the command line
    /// override the file
    #[arg(help_heading = "Settings", long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Sets one setting, such as `micro_batches=16`; overrides --config, and flags override it
    #[arg(help_heading = "Settings", long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Prints the settings as a file for --config, without those that are computed from others, and exits
    #[arg(help_heading = "Settings", long)]
    pub print_config: bool,
    /// File for the log, with one JSON object per line: the run, each step, each validation and the final result. A
    /// resumed run adds to an existing log, and any other run replaces it
    #[arg(help_heading = "Outputs", long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// File for a trace of five steps, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(help_heading = "Outputs", long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Folder for TensorBoard event files
    #[arg(help_heading = "Outputs", long, value_name = "FOLDER")]
    pub tensorboard: Option<PathBuf>,
    /// Step whose timeline --log and --report show, and with which --trace begins, counted from 0 at the start of this
    /// run. If only some steps are synchronised (see --synchronise-every), it is the first synchronised step from this
    /// one on, or the last synchronised step if none follows
    #[arg(help_heading = "Outputs", long, default_value_t = 2)]
    pub draw_step: usize,
    /// File for an HTML page that reports on the run
    #[arg(help_heading = "Outputs", long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

impl TrainingFlags {
    /// Returns the number of samples in a training step, over all micro-batches and replicas.
    pub fn batch_size(&self) -> usize {
        self.replicas.saturating_mul(self.micro_batches).saturating_mul(self.micro_batch_size)
    }

    /// Returns the batch size, in samples, for which the learning rate and the number of steps were chosen. It is
    /// `--tuned-for`, or the batch size of this run if the flag is unset.
    pub fn tuned_for(&self) -> usize {
        self.tuned_for.unwrap_or(self.batch_size())
    }

    /// Returns the length of the learning-rate schedule in steps: `--schedule-steps` or, if that is unset, `--steps`,
    /// but at least 400. [`with_schedule`](Self::with_schedule) sets `--schedule-steps`, unless `--epochs` decides the
    /// number of steps.
    pub fn schedule_steps(&self) -> usize {
        self.schedule_steps.unwrap_or(self.steps.max(STEPS))
    }

    /// Sets `--schedule-steps`, the length of the learning-rate schedule, if it is unset: to `--steps`, but at least
    /// the program's default of `--steps`, which is read from `command`. Leaves it unset with `--epochs`, because the
    /// number of steps then depends on the data.
    pub fn with_schedule(self, command: &Command) -> Self {
        if self.epochs > 0.0 {
            return self;
        }
        let steps = command.get_arguments().find(|flag| flag.get_id() == "steps");
        let default = steps.and_then(|flag| flag.get_default_values().first()?.to_str()?.parse().ok());
        let schedule_steps = self.schedule_steps.unwrap_or(self.steps.max(default.unwrap_or(STEPS)));
        Self { schedule_steps: Some(schedule_steps), ..self }
    }
}
