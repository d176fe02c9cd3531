//! [`BuildError`]: why a pipeline cannot be built; each message names the invalid values and a remedy.

use stageline_schedule::{CheckError, ScheduleError};

use crate::device::remote::{LostHost, RemoteError};
use crate::failure::refused_fallback::RefusedFallback;
use crate::failure::watchdog::Watchdog;
use crate::state::mismatch::Mismatch;
use crate::state::names::NameError;
use crate::update::loss_scale::LossScale;
use crate::update::precision::Precision;

/// The error that says why [`PipelineBuilder::build`](crate::PipelineBuilder::build) cannot build a pipeline. All
/// worker threads that `build` had started have ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The configured schedule has no plan for the pipeline's number of stages and micro-batches.
    #[error("the `{schedule}` schedule has no plan: {cause}")]
    Schedule {
        /// The name of the configured schedule.
        schedule: &'static str,
        /// The schedule's own error, which says why it has no plan for these numbers of stages and micro-batches.
        cause: ScheduleError,
    },
    /// The plan (the order of all actions) that the schedule generated is invalid, for example because its workers
    /// would deadlock.
    #[error("the plan is rejected: {0}")]
    Check(CheckError),
    /// A stage's device is on another host and cannot be used, because the connection to that host failed.
    #[error(transparent)]
    Host(RemoteError),
    /// Hosts became unreachable while the modules of stages were copied from or to their devices. The thread that
    /// copied the modules is abandoned together with them. Start `stageline serve` on these hosts again, and restart
    /// this program.
    #[error(
        "hosts were lost while modules were copied from or to them: {}; start `stageline serve` there again, or name devices of \
         other hosts, and restart this program",
        hosts.iter().map(LostHost::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsLost {
        /// The unreachable hosts, each with the stages whose modules are on the host's devices or are copied there.
        hosts: Vec<LostHost>,
    },
    /// The checkpoint to restore has impossible step counts: more optimizer steps than training steps, or more steps
    /// than training can resume from.
    #[error(
        "the checkpoint claims {optimizer_steps} optimizer steps in {steps} steps; at most {most} optimizer steps can be resumed, and \
         not more than there were steps: take another checkpoint"
    )]
    Steps {
        /// The number of training steps in the rejected checkpoint.
        steps: u64,
        /// The number of optimizer steps in the rejected checkpoint. It does not count training steps that the
        /// optimizers skipped.
        optimizer_steps: u64,
        /// The maximum number of optimizer steps in a checkpoint that training can resume from.
        most: u64,
    },
    /// The checkpoint's loss scale is outside the range that the pipeline's dynamic loss scale allows.
    #[error(
        "the checkpoint has the loss scale {scale:e}, which must be between {lowest:e} and {highest:e}: take another checkpoint or, \
         if the scale is too small, lower `lowest` of the dynamic loss scale"
    )]
    RestoredLossScale {
        /// The loss scale in the checkpoint to restore. It is not between `lowest` and `highest`.
        scale: f64,
        /// The lowest permitted value of the dynamic loss scale, from the pipeline's settings
        /// ([`DynamicLossScale::lowest`](crate::DynamicLossScale::lowest)).
        lowest: f64,
        /// The highest permitted value of the dynamic loss scale: the largest f32 value.
        highest: f64,
    },
    /// Two stages have the same (tied) parameter, but in different shapes. Give one of them a parameter id of its own,
    /// or transpose the parameter in the forward pass.
    #[error(
        "stages {} and {} have a parameter of the same id in different shapes; give one of them a parameter id of its own, or \
         transpose it in the forward", stages.0, stages.1
    )]
    TiedShapes {
        /// Zero-based indices of two stages that share a tied parameter: the first stage that trains it, and a stage
        /// where it has another shape.
        stages: (usize, usize),
    },
    /// One stage trains a (tied) parameter that is frozen in another stage. The frozen copy would become stale. Freeze
    /// both copies, or give the frozen one a parameter id of its own.
    #[error(
        "stage {} trains a parameter that is frozen in stage {}; freeze both, or give the frozen one a parameter id of its own",
        stages.0, stages.1
    )]
    HalfFrozen {
        /// Zero-based indices of the two stages that share the parameter: the stage that trains it, and the stage that
        /// has frozen it.
        stages: (usize, usize),
    },
    /// The configured bound for gradient clipping is not positive and finite.
    #[error("gradients cannot be clipped to {bound}; give a bound that is positive and finite")]
    Clip {
        /// The rejected bound for gradient clipping: the maximum global norm, or the maximum magnitude of a gradient
        /// element.
        bound: f64,
    },
    /// The configured loss-scale settings are invalid.
    #[error(
        "the settings of the loss scale are invalid: {scale:?}; give scales from 1.2e-38 to 3.4e38, a lowest that is not above the \
         initial one, a growth above 1, a back-off between 0 and 1, and an interval of at least 1 step"
    )]
    LossScale {
        /// The invalid loss-scale settings, as the user gave them.
        scale: LossScale,
    },
    /// A stage has one of burn's own batch norms, which cannot compute in the configured lower precision. Use
    /// [`AccumulatedBatchNorm`](crate::AccumulatedBatchNorm) instead, or train in full precision.
    #[error(
        "stage {stage} has burn's own batch norm, which cannot compute in {precision}; replace it by an \
         `AccumulatedBatchNorm`, or train in full precision"
    )]
    BatchNormPrecision {
        /// Zero-based index of the first stage that contains one of burn's own batch norms.
        stage: usize,
        /// The configured precision (bf16 or f16), which burn's own batch norm does not support.
        precision: Precision,
    },
    /// A stage's device does not support the dtype that the stage computes in, such as bf16. One of the stage's
    /// parameters has this dtype, or it is the dtype of the configured precision.
    #[error(
        "stage {stage} computes in {dtype}{place}, and its device {device} does not: it computes in {supported}; choose one of these \
         types, by `.precision(...)` (`--precision`) or by a cast of the parameters, or another device",
        place = first_in(parameter)
    )]
    ElementType {
        /// Zero-based index of the first stage that computes in a dtype that its device does not support.
        stage: usize,
        /// The path, in the stage's module, of the first parameter that has the unsupported dtype or would be rounded
        /// to it. Empty for a stage without float parameters.
        parameter: String,
        /// The dtype, such as `bf16`, that the stage's device does not support.
        dtype: String,
        /// The name of the device that does not support its stage's dtype.
        device: String,
        /// The float dtypes that the stage's device supports, separated by commas.
        supported: String,
    },
    /// Stageline has no kernel for an operation of a layer on its stage's device, and the settings
    /// ([`Fallbacks`](crate::Fallbacks)) refuse to fall back to burn's own kernels.
    /// [`Fallbacks::Warn`](crate::Fallbacks::Warn) permits them.
    #[error(transparent)]
    Fallback(Box<RefusedFallback>),
    /// A stage's device is on another host and was opened directly through burn, so Stageline does not know which
    /// kernels that host has. Open the device with [`DeviceName::open_all`](crate::DeviceName::open_all) instead, which
    /// queries the host's server.
    #[error(
        "stage {stage} is on {device}, a device of another host whose kernels are not known; open the device by \
         `DeviceName::open_all`, which asks its server"
    )]
    UnknownServer {
        /// Zero-based index of the first stage whose device was opened directly through burn.
        stage: usize,
        /// burn's name for the stage's device on another host.
        device: String,
    },
    /// The list of devices for a data-parallel replica is too long or too short: it needs one device for each stage.
    #[error(
        "replica {replica} was given {devices} devices for {stages} stages; give it one a stage, by `.replica([...])`"
    )]
    ReplicaDevices {
        /// Zero-based index of the replica with the wrong number of devices.
        replica: usize,
        /// The number of devices that the user gave for the replica. It differs from `stages`.
        devices: usize,
        /// P, the number of stages of the pipeline. Each stage needs one device in each replica.
        stages: usize,
    },
    /// The micro-batches' gradients cannot be summed in the configured number of groups
    /// ([`gradient_groups`](crate::PipelineBuilder::gradient_groups)). With one replica, this number must divide the
    /// number of micro-batches. With several replicas, it must be the number of replicas.
    #[error(
        "the gradients of {replicas} replicas with {micro_batches} micro-batches each cannot be summed in {groups} groups: one \
         replica sums in any number of groups that divides its micro-batches, and several in one group each; give \
         `.gradient_groups(...)` such a number, or leave it unset"
    )]
    GradientGroups {
        /// The rejected number of groups of micro-batches whose gradients are summed separately.
        groups: usize,
        /// R, the number of data-parallel replicas of the pipeline.
        replicas: usize,
        /// M, the number of micro-batches that each data-parallel replica runs in a step.
        micro_batches: usize,
    },
    /// The model has a batch norm with running statistics, and the pipeline has several data-parallel replicas. The
    /// statistics would differ between the replicas, because each replica sees only its own part of a batch.
    #[error(
        "stage {stage} has a batch norm at `{path}`, whose running statistics would be those of one replica's part of every batch; \
         train it with one replica and more micro-batches, or take a norm without running statistics, such as a layer norm"
    )]
    BatchNormReplicas {
        /// Zero-based index of the stage that contains the batch norm with running statistics.
        stage: usize,
        /// The path, in the stage's module, of the batch norm with running statistics.
        path: String,
    },
    /// A stage's optimizer clips the gradients of each parameter separately. Remove its clipping and use
    /// [`PipelineBuilder::clip`](crate::PipelineBuilder::clip), which considers all gradients together.
    #[error(
        "the optimizer of stage {stage} clips each parameter's gradients separately; remove its clipping, and clip all \
         gradients together with `.clip(Clip::GlobalNorm(...))`"
    )]
    ClippingOptimizer {
        /// Zero-based index of the first stage whose optimizer clips gradients itself.
        stage: usize,
    },
    /// The configured number of CPU cores for the kernels of each stage
    /// ([`cores_per_stage`](crate::PipelineBuilder::cores_per_stage)) is 0, so no kernel could run.
    #[error("0 cores a stage: every stage needs at least 1 core")]
    NoCores,
    /// The operating system could not start a worker's thread, which would run one or more stages.
    #[error("the thread of worker {worker} could not be started: {cause}; lower the number of stages")]
    Spawn {
        /// Zero-based index of the worker whose thread did not start.
        worker: usize,
        /// The operating system's error, which says why the worker's thread did not start.
        cause: std::io::Error,
    },
    /// The operating system could not start the thread that copies modules to devices of other hosts.
    #[error("the thread that copies modules to other hosts could not be started: {cause}")]
    Assembly {
        /// The operating system's error, which says why the thread that copies modules did not start.
        cause: std::io::Error,
    },
    /// The configured [`Names`](crate::Names), which name the parameters in checkpoints, have no name for one of the
    /// parameters. Give `Names` the part of the model that contains it.
    #[error("parameter `{path}` of stage {stage} has no name; give `Names` the part of the model that it is in")]
    Unnamed {
        /// Zero-based index of the stage that contains the parameter without a name.
        stage: usize,
        /// The path, in the stage's module, of the parameter without a name, such as `0.linear.weight`.
        path: String,
    },
    /// Two parameters would have the same name in checkpoints, so a checkpoint could not distinguish them. Give each
    /// part of the model a name of its own.
    #[error(
        "two parameters are called `{name}`, in stages {} and {}; give each part of the model a name of its own", stages.0, stages.1
    )]
    OneNameTwice {
        /// The name that two parameters of the model have in checkpoints.
        name: String,
        /// Zero-based indices of the stages that contain the two parameters with the same name.
        stages: (usize, usize),
    },
    /// The checkpoint to restore belongs to a different model: its parameters or optimizer states do not match the
    /// pipeline's.
    #[error("the checkpoint is of another model; build the one that it was made of, or take another checkpoint:{0}")]
    Checkpoint(Mismatch),
    /// The configured time limits of the watchdog, which detects stalls, are invalid: `floor` must be above 0, and
    /// `factor` must be finite and not negative.
    #[error(
        "the limits {watchdog:?} are invalid: give a floor above 0 and a factor that is finite and not negative, or no watchdog"
    )]
    Watchdog {
        /// The invalid time limits of the watchdog, which detects stalls.
        watchdog: Watchdog,
    },
    /// The operating system could not start the thread pool that runs a worker's CPU kernels, such as matrix products.
    /// Give each stage fewer cores.
    #[error("the {cores} threads of worker {worker} could not be started: {cause}; give each stage fewer cores")]
    Pool {
        /// Zero-based index of the worker whose thread pool for CPU kernels could not be started.
        worker: usize,
        /// The number of threads to start in the worker's thread pool for CPU kernels: one for each of its CPU cores.
        cores: usize,
        /// The error message, which says why the worker's thread pool for CPU kernels did not start.
        cause: String,
    },
}

/// Returns the part of an error message that names the first parameter with an unsupported dtype. `parameter` is the
/// path of this parameter; if it is empty, the result is empty, too.
fn first_in(parameter: &str) -> String {
    if parameter.is_empty() { String::new() } else { format!(" (first in `{parameter}`)") }
}

impl From<NameError> for BuildError {
    fn from(error: NameError) -> Self {
        match error {
            NameError::Unnamed { stage, path } => Self::Unnamed { stage, path },
            NameError::Repeated { name, stages } => Self::OneNameTwice { name, stages },
        }
    }
}
