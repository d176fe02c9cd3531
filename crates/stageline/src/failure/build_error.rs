//! [`BuildError`]: why a pipeline cannot be built, with the values and the way out.

use crate::device::remote::RemoteError;
use crate::failure::watchdog::Watchdog;
use crate::state::mismatch::Mismatch;
use crate::state::names::NameError;
use crate::update::loss_scale::LossScale;
use crate::update::precision::Precision;
use stageline_schedule::{CheckError, ScheduleError};

/// Why a pipeline cannot be built. Any threads that were started have ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The schedule has no plan for this number of stages and micro-batches.
    #[error("the `{schedule}` schedule has no plan: {cause}")]
    Schedule {
        /// The name of the schedule.
        schedule: &'static str,
        /// The reason why the schedule has no plan.
        cause: ScheduleError,
    },
    /// The plan failed the check that it can run to its end.
    #[error("the plan is rejected: {0}")]
    Check(CheckError),
    /// The connected host of a stage does not open the sessions that transfers need.
    #[error(transparent)]
    Host(RemoteError),
    /// The checkpoint's step counts are impossible.
    #[error(
        "the checkpoint claims {optimizer_steps} optimizer steps in {steps} steps; at most {most} optimizer steps can be resumed, and \
         not more than there were steps: take another checkpoint"
    )]
    Steps {
        /// The number of steps, according to the checkpoint.
        steps: u64,
        /// The number of steps in which the optimizers stepped, according to the checkpoint.
        optimizer_steps: u64,
        /// The largest number of optimizer steps from which training can resume.
        most: u64,
    },
    /// Two stages have the same parameter in different shapes.
    #[error(
        "stages {} and {} have a parameter of the same id in different shapes; give one of them a parameter id of its own, or \
         transpose it in the forward", stages.0, stages.1
    )]
    TiedShapes {
        /// The two stages.
        stages: (usize, usize),
    },
    /// A parameter is trained in one stage and frozen in another, whose copy would become stale.
    #[error(
        "stage {} trains a parameter that is frozen in stage {}; freeze both, or give the frozen one a parameter id of its own",
        stages.0, stages.1
    )]
    HalfFrozen {
        /// The stage that trains the parameter, and the stage in which it is frozen.
        stages: (usize, usize),
    },
    /// The bound for clipping gradients is not positive and finite.
    #[error("gradients cannot be clipped to {bound}; give a bound that is positive and finite")]
    Clip {
        /// The bound for clipping that was given.
        bound: f64,
    },
    /// The settings of the loss scale are invalid.
    #[error(
        "the loss cannot be scaled by {scale:?}; give positive and finite scales, a lowest that is not above the initial one, a \
         growth above 1, a back-off between 0 and 1, and an interval of at least 1 step"
    )]
    LossScale {
        /// The settings of the loss scale that were given.
        scale: LossScale,
    },
    /// A stage has a batch norm of burn's, which cannot compute in a lower precision.
    #[error(
        "stage {stage} has a batch norm of burn's, which cannot compute in {precision}; make it an `AccumulatedBatchNorm`, or \
         leave the precision full"
    )]
    BatchNormPrecision {
        /// The stage with the batch norm.
        stage: usize,
        /// The configured precision.
        precision: Precision,
    },
    /// A replica was given more or fewer devices than there are stages.
    #[error(
        "replica {replica} was given {devices} devices for {stages} stages; give it one a stage, by `.replica([...])`"
    )]
    ReplicaDevices {
        /// The replica with the wrong number of devices.
        replica: usize,
        /// The number of devices that the replica was given.
        devices: usize,
        /// The number of stages, P.
        stages: usize,
    },
    /// The number of gradient groups does not fit the replicas and micro-batches.
    #[error(
        "the gradients of {replicas} replicas with {micro_batches} micro-batches each cannot be summed in {groups} groups: one \
         replica sums in any number of groups that divides its micro-batches, and several in one group each; give \
         `.gradient_groups(...)` such a number, or leave it unset"
    )]
    GradientGroups {
        /// The number of groups that was given.
        groups: usize,
        /// The number of replicas.
        replicas: usize,
        /// The number of micro-batches of each replica, M.
        micro_batches: usize,
    },
    /// A batch norm's running statistics would differ between replicas, because each replica sees only its part of a
    /// batch.
    #[error(
        "stage {stage} has a batch norm at `{path}`, whose running statistics would be those of one replica's part of every batch; \
         train it with one replica and more micro-batches, or take a norm without running statistics, such as a layer norm"
    )]
    BatchNormReplicas {
        /// The stage with the batch norm.
        stage: usize,
        /// The path of the batch norm in the stage's module.
        path: String,
    },
    /// A stage's optimizer clips gradients itself, one parameter at a time.
    #[error(
        "the optimizer of stage {stage} clips each parameter's gradients separately; remove its clipping, and clip all \
         gradients together with `.clip(Clip::GlobalNorm(...))`"
    )]
    ClippingOptimizer {
        /// The stage with that optimizer.
        stage: usize,
    },
    /// The stages were given 0 cores each.
    #[error("0 cores a stage: every stage needs at least 1 core")]
    NoCores,
    /// The operating system did not start a worker's thread.
    #[error("the thread of worker {worker} could not be started: {cause}; lower the number of stages")]
    Spawn {
        /// The worker whose thread did not start, counted from 0.
        worker: usize,
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// The configured `Names` leave out a parameter.
    #[error("parameter `{path}` of stage {stage} has no name; give `Names` the part of the model that it is in")]
    Unnamed {
        /// The stage with the parameter.
        stage: usize,
        /// The path of the parameter in the stage's module.
        path: String,
    },
    /// Two parameters have the same name.
    #[error(
        "two parameters are called `{name}`, in stages {} and {}; give each part of the model a name of its own", stages.0, stages.1
    )]
    OneNameTwice {
        /// The name that both parameters have.
        name: String,
        /// The stages of the two parameters.
        stages: (usize, usize),
    },
    /// The checkpoint belongs to another model.
    #[error("the checkpoint is of another model; build the one that it was made of, or take another checkpoint:{0}")]
    Checkpoint(Mismatch),
    /// The watchdog's limits are invalid.
    #[error(
        "the limits {watchdog:?} are invalid: give a floor above 0 and a factor that is finite and not negative, or no watchdog"
    )]
    Watchdog {
        /// The limits of the watchdog that were given.
        watchdog: Watchdog,
    },
    /// The operating system did not start the threads for a worker's kernels.
    #[error("the pool of {cores} cores of worker {worker} could not be started: {cause}; lower the cores a stage")]
    Pool {
        /// The worker whose kernel threads did not start, counted from 0.
        worker: usize,
        /// The number of cores that the worker was given.
        cores: usize,
        /// The error with which the thread pool failed to start.
        cause: String,
    },
}

impl From<NameError> for BuildError {
    fn from(error: NameError) -> Self {
        match error {
            NameError::Unnamed { stage, path } => Self::Unnamed { stage, path },
            NameError::Repeated { name, stages } => Self::OneNameTwice { name, stages },
        }
    }
}
