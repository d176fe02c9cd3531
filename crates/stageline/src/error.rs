//! Why a pipeline cannot be built, and why a step ended.

use stageline_schedule::{CheckError, ScheduleError};

use crate::batch::BatchError;
use crate::failure::{During, Failure, StageFailure};
use crate::finite::Culprit;
use crate::ledger::LedgerError;
use crate::loss_scale::LossScale;
use crate::mismatch::Mismatch;
use crate::precision::Precision;
use crate::remote::{LostHost, LostWay, RemoteError};
use crate::watchdog::{Stall, Watchdog};

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

/// Why a step or an evaluation ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The batch cannot be cut. The pipeline takes the next batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A stage panicked or returned an error. All workers have stopped and their threads are joined; no stage has stepped.
    #[error(transparent)]
    Stage(Box<StageFailure>),
    /// The stages do not agree on what they summed. All workers have stopped; no stage has stepped.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The loss or a gradient is NaN or infinite. All workers have stopped; no stage has stepped.
    #[error(
        "the loss or a gradient of step {step} is not finite{}; no stage has stepped: look at the data of that micro-batch, \
         lower the learning rate, clip the gradients with `.clip(...)`, or leave such steps out with \
         `.on_non_finite(OnNonFinite::Skip)`",
        culprit.map_or_else(|| ", though not when the step is run again".to_owned(), |culprit| format!(", first {culprit}"))
    )]
    NonFinite {
        /// The step.
        step: usize,
        /// Where it came from; `None` if a second run of the step did not show it again.
        culprit: Option<Culprit>,
    },
    /// Nothing began for longer than the [`Watchdog`] allows. All workers are told to stop; a thread that
    /// does not end within 5 s is left behind with its module. No stage has stepped.
    #[error(
        "the pipeline is given up: {0}\nlook at what the stages at work do, or give it more time with `.watchdog(...)`"
    )]
    Stalled(Box<Stall>),
    /// A stage has made a step that others may not have made, and keeps no copy of what was before
    /// ([`rollback`](crate::PipelineBuilder::rollback)).
    #[error(
        "{cause}; stage {stage} has made the step that failed, other stages may not have, and without rollback it cannot be undone: \
         resume from {}",
        checkpoint.map_or("the beginning, as no checkpoint was taken".to_owned(), |steps| {
            format!("the checkpoint after {steps} steps, the last one that was taken")
        })
    )]
    Torn {
        /// The first stage that has made it.
        stage: usize,
        /// The error that ended the step.
        cause: Box<StepError>,
        /// After how many steps the last checkpoint was taken or restored, if any was.
        checkpoint: Option<usize>,
    },
    /// Hosts of stages do not answer any more. All workers are told to stop; a thread that does not end within 5 s is left behind
    /// with its module. No stage that is still there has stepped.
    #[error(
        "{}, in {during}; start `stageline serve` there again, or name devices of other hosts, and start this program anew, from the \
         last checkpoint on disk: first, {cause}",
        hosts.iter().map(LostHost::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsLost {
        /// The hosts.
        hosts: Vec<LostHost>,
        /// In what.
        during: During,
        /// What was seen first.
        cause: Box<StepError>,
    },
    /// Hosts of stages answer this program, and no tensor gets from one to the other. All workers are told to stop; a thread that
    /// does not end within 5 s is left behind with its module. No stage has stepped.
    #[error(
        "{}, in {during}; look at the network between these hosts, which reach each other by the addresses in their names, and start \
         this program anew, from the last checkpoint: first, {cause}",
        ways.iter().map(LostWay::to_string).collect::<Vec<_>>().join("; ")
    )]
    HostsApart {
        /// From where to where.
        ways: Vec<LostWay>,
        /// In what.
        during: During,
        /// What was seen first.
        cause: Box<StepError>,
    },
    /// An earlier step or evaluation failed.
    #[error(
        "the pipeline stopped in {during}, with the error that it returned; take what it had before with `checkpoint`, \
         build a new pipeline, and let it `restore` that"
    )]
    Stopped {
        /// What failed.
        during: During,
    },
    /// A stage has gone, and with it what a checkpoint needs.
    #[error(
        "stage {stage} is lost: its thread did not end, or panicked outside any action, or its host does not answer; go on from the \
         last checkpoint on disk"
    )]
    Lost {
        /// The stage.
        stage: usize,
    },
    /// What a stage keeps cannot be copied from its device after an error.
    #[error(
        "what stage {stage} keeps cannot be read any more: {failure}; where its device is lost, start the program anew and go on \
         from the last checkpoint on disk"
    )]
    Unreadable {
        /// The stage.
        stage: usize,
        /// What came of reading it.
        failure: Failure,
    },
}
