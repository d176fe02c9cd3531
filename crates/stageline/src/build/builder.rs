//! [`PipelineBuilder`]: the settings of a pipeline, which is built from a complete chain (all stages of a model in
//! order).
//!
//! The builder stores what the user sets. `validate` checks all settings together, and `start` starts the pipeline.

use burn::tensor::Device;
use stageline_checkpoint::Checkpoint;
use stageline_schedule::{OneFOneB, Schedule};

use crate::build::assemble::Joined;
use crate::build::fallbacks::Fallbacks;
use crate::failure::watchdog::Watchdog;
use crate::model::payload::Payload;
use crate::state::frozen::FrozenFrom;
use crate::state::names::Names;
use crate::threads::cores::Cores;
use crate::update::clip::Clip;
use crate::update::flush::FlushConfig;
use crate::update::loss_scale::LossScale;
use crate::update::not_finite::OnNonFinite;
use crate::update::optimizer_step::Rollback;
use crate::update::precision::Precision;

/// The builder of a pipeline. It holds all stages of a model, and its methods set how they are trained.
/// [`build`](Self::build) validates the settings and starts the pipeline.
#[must_use = "nothing starts before `build`"]
pub struct PipelineBuilder<In: Payload, Out: Payload, Target: Payload> {
    pub(super) stages: Joined<In, Out, Target>,
    /// The device of each stage in every data-parallel replica except replica 0.
    pub(super) replica_devices: Vec<Vec<Device>>,
    pub(super) schedule: Box<dyn Schedule>,
    pub(super) micro_batches: usize,
    pub(super) gradient_groups: Option<usize>,
    pub(super) channel_capacity: Option<usize>,
    pub(super) cores: Option<Cores>,
    pub(super) precision: Precision,
    /// The precision that was set on the model's `Row`. The row may have created frozen parameters in its dtype. If the
    /// pipeline computes in another precision, these parameters are converted to f32.
    pub(super) frozen_in: Precision,
    pub(super) fallbacks: Option<Fallbacks>,
    pub(super) loss_scale: Option<LossScale>,
    pub(super) tuned_for: Option<usize>,
    pub(super) synchronise_every: Option<usize>,
    pub(super) rollback: Rollback,
    pub(super) ordered_transfers: bool,
    pub(super) watchdog: Option<Watchdog>,
    pub(super) names: Option<Names>,
    pub(super) frozen_from: FrozenFrom,
    pub(super) restore: Option<Checkpoint>,
    pub(super) flush: FlushConfig,
}

impl<In: Payload, Out: Payload, Target: Payload> PipelineBuilder<In, Out, Target> {
    pub(crate) fn new(stages: Joined<In, Out, Target>) -> Self {
        Self {
            stages,
            replica_devices: Vec::new(),
            schedule: Box::new(OneFOneB),
            micro_batches: 1,
            gradient_groups: None,
            channel_capacity: None,
            cores: None,
            precision: Precision::Full,
            frozen_in: Precision::Full,
            fallbacks: None,
            loss_scale: None,
            tuned_for: None,
            synchronise_every: None,
            rollback: Rollback::Kept,
            ordered_transfers: false,
            watchdog: Some(Watchdog::default()),
            names: None,
            frozen_from: FrozenFrom::default(),
            restore: None,
            flush: FlushConfig::default(),
        }
    }

    /// Sets the pipeline schedule, which generates the plan of a step (the order of actions on each worker);
    /// [`OneFOneB`] (1F1B) if unset.
    pub fn schedule(mut self, schedule: impl Schedule + 'static) -> Self {
        self.schedule = Box::new(schedule);
        self
    }

    /// Sets the number of micro-batches (M) that each replica runs in a step; 1 if unset.
    ///
    /// M is also the number of gradient accumulation steps: gradients are summed over M micro-batches before the
    /// optimizers step. If batches grow with M, learning rates and step counts that were tuned for another batch size
    /// no longer fit; [`tuned_for`](Self::tuned_for) warns of that.
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.micro_batches = micro_batches;
        self
    }

    /// Adds a data-parallel replica: one more copy of all stages, which runs the same plan on other micro-batches.
    /// `devices` lists one device for each stage, in stage order; with any other number of devices,
    /// [`build`](Self::build) returns an error. Without this call there is one replica, replica 0.
    ///
    /// With R replicas a batch is split into R x M micro-batches, and each replica runs M consecutive ones. Replica 0
    /// runs on the stages' own devices and has the first M micro-batches.
    ///
    /// At the end of a step, the gradient sums of each stage are added in replica order, and only the optimizers of
    /// replica 0 step. To keep that order, gradient sums go through host memory even between GPUs.
    ///
    /// The parameters are therefore bit-identical to those of a single replica that runs R x M micro-batches and sums
    /// their gradients in R groups ([`gradient_groups`](Self::gradient_groups)). Checkpoints and modules are those of
    /// replica 0, and do not depend on R.
    pub fn replica(mut self, devices: impl IntoIterator<Item = Device>) -> Self {
        self.replica_devices.push(devices.into_iter().map(Device::inner).collect());
        self
    }

    /// Sets the number of gradient groups, so that runs with different numbers of replicas can give the same bits. A
    /// gradient group is a range of consecutive micro-batches whose gradients are summed separately. If unset, it is
    /// the number of replicas (R). With several replicas, only R is allowed; with one, the number must divide M.
    /// Otherwise [`build`](Self::build) returns an error.
    ///
    /// Each group is summed in micro-batch order, and then the group sums are added in order; the bits of a
    /// floating-point sum depend on this grouping. One replica with R x M micro-batches in R groups gives the same bits
    /// as R replicas with M micro-batches each. With more than one group, each stage has two gradient sums in memory.
    pub fn gradient_groups(mut self, groups: usize) -> Self {
        self.gradient_groups = Some(groups);
        self
    }

    /// Sets the number of micro-batches that each channel between two stages can buffer. If unset, it is the number of
    /// micro-batches in a step (M), so that no sender ever waits. With 0, a sender waits until the receiver takes the
    /// micro-batch.
    pub fn channel_capacity(mut self, capacity: usize) -> Self {
        self.channel_capacity = Some(capacity);
        self
    }

    /// Sets the number of CPU cores that the kernels of one worker may use; with 0, [`build`](Self::build) returns an
    /// error. If unset, the workers of all replicas share the machine's cores evenly, with at least one for each.
    ///
    /// The layers of `stageline-nn` use all cores of a worker. burn's own operations do so only with the feature
    /// `rayon` of this crate. Without it they use one core, and a number above 1 that is set here logs a warning.
    pub fn cores_per_stage(mut self, cores: usize) -> Self {
        self.cores = Some(Cores::Each(cores));
        self
    }

    /// Sets the number of samples per training step that the learning rates and step counts were chosen for. If unset,
    /// nothing is compared and no warning is logged.
    ///
    /// The first step with another number of samples logs a warning with the consequences
    /// ([`BatchChange`](crate::BatchChange)). Learning rates and step counts are not adjusted.
    pub fn tuned_for(mut self, samples: usize) -> Self {
        self.tuned_for = Some(samples);
        self
    }

    /// Sets the precision of the computations in forward and backward passes. If unset, they compute in the dtype of
    /// the model's parameters, most often f32 ([`Precision::Full`]).
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Sets whether an operation without a Stageline kernel on its stage's device is an error or a warning.
    ///
    /// [`build`](Self::build) checks the operations that a stage lists
    /// ([`Stage::operations`](crate::Stage::operations)). The stage's first forward pass checks all others.
    ///
    /// If unset, such an operation is a warning, with one exception: on a GPU (of this host or another one), `build`
    /// returns an error for a listed operation. Attention whose heads are too large for Stageline's kernels stores its
    /// score matrix, and is only a warning even on GPUs. An operation that only the first forward pass finds is also
    /// only a warning there.
    pub fn fallbacks(mut self, fallbacks: Fallbacks) -> Self {
        self.fallbacks = Some(fallbacks);
        self
    }

    /// Sets the loss scale: the factor that multiplies the loss before its backward pass. The summed gradients are
    /// divided by the same factor. If unset, the factor is dynamic with [`Precision::F16`], and 1 otherwise.
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.loss_scale = Some(scale);
        self
    }

    /// Sets how gradients are clipped. They are clipped once per step, after they are summed over all micro-batches. If
    /// unset, they are not clipped. [`build`](Self::build) returns an error if the clipping bound is not positive and
    /// finite, or if a stage's optimizer clips gradients itself.
    pub fn clip(mut self, clip: Clip) -> Self {
        self.flush.clip = Some(clip);
        self
    }

    /// Sets the policy for a step whose loss or gradients are NaN or infinite: stop with an error, or skip the step.
    /// [`OnNonFinite::Stop`] if unset.
    pub fn on_non_finite(mut self, policy: OnNonFinite) -> Self {
        self.flush.on_non_finite = policy;
        self
    }

    /// Makes every `steps`-th training step, beginning with step 0, report the health of every parameter: training
    /// statistics such as its gradient norm and update norm. If unset or 0, no step reports it.
    ///
    /// [`StepReport::health`](crate::StepReport::health) holds the report. Each report copies parameters and gradients
    /// to host memory, which takes about as long as the optimizer step.
    pub fn health_every(mut self, steps: usize) -> Self {
        self.flush.health_every = steps;
        self
    }

    /// Makes every `steps`-th training step, beginning with step 0, measure the gradient noise: how much the gradients
    /// of micro-batches vary. If unset or 0, no step measures it.
    ///
    /// A measurement computes the squared norm of every micro-batch's gradients. From these norms,
    /// [`StepReport::noise`](crate::StepReport::noise) is estimated. Measurements do not change the trained parameters.
    pub fn noise_every(mut self, steps: usize) -> Self {
        self.flush.noise_every = steps;
        self
    }

    /// Makes every `steps`-th training step, beginning with step 0, a synchronised step. With 0, no step is
    /// synchronised.
    ///
    /// In a synchronised step, workers wait for their device after every action, so that recordings contain actual
    /// device times ([`Clock::Synchronised`](crate::Clock)). A synchronised step is slower than other steps, so it does
    /// not show the usual throughput.
    ///
    /// In all other steps, the recorded times on an asynchronous device are the times when work was enqueued. The
    /// bubble (the workers' idle fraction) is then computed from these times.
    ///
    /// If unset, the interval is 20 if any stage is on a device other than the host's CPU. Otherwise it is 0, because
    /// on a CPU a synchronised step records the same times as any other step.
    pub fn synchronise_every(mut self, steps: usize) -> Self {
        self.synchronise_every = Some(steps);
        self
    }

    /// Sets whether a failed step can be rolled back; true if unset. Every stage then keeps a copy of its pre-step
    /// parameters and optimizer state during the step.
    ///
    /// With these copies, an error while the optimizers step rolls the step back on all stages. Without them, such an
    /// error is [`StepError::Torn`](crate::StepError), and training has to resume from a checkpoint.
    ///
    /// Without the copies, the optimizer step needs less memory: with Adam in f32, 12 bytes less per parameter.
    /// [`Pipeline::steps`](crate::Pipeline::steps) then waits for all stages after every step, as
    /// [`Pipeline::step`](crate::Pipeline::step) does.
    pub fn rollback(mut self, keeps_copies: bool) -> Self {
        self.rollback = if keeps_copies { Rollback::Kept } else { Rollback::Off };
        self
    }

    /// Sets the time limits after which a stalled pipeline is reported and then stopped; [`Watchdog::default`] if
    /// unset. `None` turns the watchdog off. While [`build`](Self::build) copies modules from or to other hosts, it
    /// asks these hosts at intervals of [`Watchdog::floor`] whether they are alive.
    pub fn watchdog(mut self, watchdog: impl Into<Option<Watchdog>>) -> Self {
        self.watchdog = watchdog.into();
        self
    }

    /// Sets the names of parameters in checkpoints. If unset, the name of a parameter consists of its stage and its
    /// path in the stage's module. A checkpoint can then be resumed only with the same partition of the layers into
    /// stages.
    pub fn names(mut self, names: Names) -> Self {
        self.names = Some(names);
        self
    }

    /// Sets where a training run that resumes from a checkpoint of this pipeline takes the values of frozen parameters
    /// from; [`FrozenFrom::Checkpoint`] if unset. With [`FrozenFrom::Model`], checkpoints leave out large frozen
    /// parameters.
    pub fn frozen_from(mut self, source: FrozenFrom) -> Self {
        self.frozen_from = source;
        self
    }

    /// Resumes a training run from a checkpoint. The checkpoint holds the parameters, the optimizer states, the
    /// learning rates, the loss scale and the number of steps. Frozen parameters that the checkpoint leaves out
    /// ([`frozen_from`](Self::frozen_from)) keep the values that they have in the stages.
    ///
    /// The stages must have the same optimizers and learning rate schedulers as before. Three settings may differ from
    /// those in the checkpoint. Training then continues, and a warning names both values:
    ///
    /// - the number of micro-batches,
    /// - the number of gradient groups ([`gradient_groups`](Self::gradient_groups)),
    /// - the learning rate at the checkpoint's last optimizer step.
    ///
    /// With the same batches and settings, training continues bit for bit as if it had not been interrupted. This holds
    /// for any partition, schedule and devices, and for any number of replicas with the same number of gradient groups.
    /// A checkpoint does not contain the state of burn's random number generator, which burn's dropout uses.
    /// [`Dropout`](crate::Dropout) does not depend on it.
    ///
    /// burn restores the states of its optimizers on its default device, which is a GPU if a feature for GPUs is
    /// enabled. The first step moves these states to the devices of their stages.
    /// [`OptimizerState`](crate::OptimizerState) restores them in host memory instead.
    pub fn restore(mut self, checkpoint: Checkpoint) -> Self {
        self.restore = Some(checkpoint);
        self
    }

    /// Makes workers on all devices issue their tensor transfers in one global order, which the plan determines. If
    /// unset, only transfers between GPUs are ordered. Workers with the same index in different replicas are ordered as
    /// if they shared a device.
    ///
    /// This setting is for tests on devices that need no order, such as CPUs. It can cost time, because a worker waits
    /// until all earlier transfers in this order have been issued.
    pub fn ordered_transfers(mut self) -> Self {
        self.ordered_transfers = true;
        self
    }
}
