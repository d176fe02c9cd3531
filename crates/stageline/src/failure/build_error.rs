//! The errors of building a pipeline.

use crate::device::remote::RemoteError;
use crate::failure::watchdog::Watchdog;
use crate::state::mismatch::Mismatch;
use crate::state::names::NameError;
use crate::update::loss_scale::LossScale;
use crate::update::precision::Precision;
use stageline_schedule::{CheckError, ScheduleError};

/// Why a pipeline cannot be built. Threads that have started, if any, have ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The schedule has no plan for this number of stages and micro-batches.
    #[error("the `{schedule}` schedule has no plan: {cause}")]
    Schedule {
        /// The schedule.
        schedule: &'static str,
        /// Why.
        cause: ScheduleError,
    },
    /// The plan cannot run.
    #[error("the plan is refused: {0}")]
    Check(CheckError),
    /// The host of a stage, which was connected, gives no sessions for transfers.
    #[error(transparent)]
    Host(RemoteError),
    /// The checkpoint claims numbers of steps that cannot be.
    #[error(
        "the checkpoint claims {optimizer_steps} optimizer steps in {steps} steps; at most {most} optimizer steps can be resumed, and \
         not more than there were steps: take another checkpoint"
    )]
    Steps {
        /// Steps in all, according to the checkpoint.
        steps: u64,
        /// The steps that stepped the optimizers, according to the checkpoint.
        optimizer_steps: u64,
        /// The most optimizer steps that can be resumed.
        most: u64,
    },
    /// Two stages have the same parameter in different shapes.
    #[error(
        "stages {} and {} have a parameter of the same id in different shapes; give one of them a parameter id of its own, or \
         transpose it in the forward", stages.0, stages.1
    )]
    TiedShapes {
        /// The stages.
        stages: (usize, usize),
    },
    /// A parameter is trained in one place and frozen in another, where it would fall behind.
    #[error(
        "stage {} trains a parameter that is frozen in stage {}; freeze both, or give the frozen one a parameter id of its own",
        stages.0, stages.1
    )]
    HalfFrozen {
        /// The stage that trains it, and the one in which it is frozen.
        stages: (usize, usize),
    },
    /// Gradients cannot be clipped to this.
    #[error("gradients cannot be clipped to {bound}; give a bound that is positive and finite")]
    Clip {
        /// The bound.
        bound: f64,
    },
    /// A scale of the loss that cannot be.
    #[error(
        "the loss cannot be scaled by {scale:?}; give positive and finite scales, a lowest that is not above the initial one, a \
         growth above 1, a back-off between 0 and 1, and an interval of at least 1 step"
    )]
    LossScale {
        /// The scale.
        scale: LossScale,
    },
    /// A stage has a batch norm that cannot compute in a lower precision.
    #[error(
        "stage {stage} has a batch norm of burn's, which cannot compute in {precision}; make it an `AccumulatedBatchNorm`, or \
         leave the precision full"
    )]
    BatchNormPrecision {
        /// The stage.
        stage: usize,
        /// The precision asked for.
        precision: Precision,
    },
    /// A replica has more or fewer devices than stages.
    #[error(
        "replica {replica} was given {devices} devices for {stages} stages; give it one a stage, by `.replica([...])`"
    )]
    ReplicaDevices {
        /// The replica.
        replica: usize,
        /// How many devices it was given.
        devices: usize,
        /// How many stages there are.
        stages: usize,
    },
    /// Gradients cannot be summed in so many groups.
    #[error(
        "the gradients of {replicas} replicas with {micro_batches} micro-batches each cannot be summed in {groups} groups: one \
         replica sums in any number of groups that divides its micro-batches, and several in one group each; give \
         `.gradient_groups(...)` such a number, or leave it out"
    )]
    GradientGroups {
        /// The number of groups.
        groups: usize,
        /// The number of replicas.
        replicas: usize,
        /// M.
        micro_batches: usize,
    },
    /// Several replicas would each keep statistics of their own part of the batch.
    #[error(
        "stage {stage} has a batch norm at `{path}`, whose running statistics would be those of one replica's part of every batch; \
         train it with one replica and more micro-batches, or take a norm without running statistics, such as a layer norm"
    )]
    BatchNormReplicas {
        /// The stage.
        stage: usize,
        /// Where it is in it.
        path: String,
    },
    /// A stage's optimizer clips gradients by itself.
    #[error(
        "the optimizer of stage {stage} clips each parameter's gradients by themselves; take its clipping out, and clip all \
         of them together with `.clip(Clip::GlobalNorm(...))`"
    )]
    ClippingOptimizer {
        /// The stage.
        stage: usize,
    },
    /// No core was given to a stage.
    #[error("0 cores a stage: every stage needs at least 1 core")]
    NoCores,
    /// The operating system would not start a worker's thread.
    #[error("the thread of worker {worker} could not be started: {cause}; lower the number of stages")]
    Spawn {
        /// The worker.
        worker: usize,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A stage has a parameter that the names leave out.
    #[error("parameter `{path}` of stage {stage} has no name; give `Names` the part of the model that it is in")]
    Unnamed {
        /// The stage.
        stage: usize,
        /// Where it is in it.
        path: String,
    },
    /// Two parameters have one name.
    #[error(
        "two parameters are called `{name}`, in stages {} and {}; give each part of the model a name of its own", stages.0, stages.1
    )]
    OneNameTwice {
        /// The name.
        name: String,
        /// The stages.
        stages: (usize, usize),
    },
    /// The checkpoint is of another model.
    #[error("the checkpoint is of another model; build the one that it was made of, or take another checkpoint:{0}")]
    Checkpoint(Mismatch),
    /// The watchdog's limits are no times.
    #[error(
        "{watchdog:?} cannot watch: give a floor above 0 and a factor that is finite and not negative, or no watchdog"
    )]
    Watchdog {
        /// Its limits.
        watchdog: Watchdog,
    },
    /// The operating system would not start the threads of a worker's kernels.
    #[error("the pool of {cores} cores of worker {worker} could not be started: {cause}; lower the cores a stage")]
    Pool {
        /// The worker.
        worker: usize,
        /// The cores asked for.
        cores: usize,
        /// What went wrong.
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
