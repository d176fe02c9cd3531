//! A complete chain of stages becomes a pipeline: how it is to run, and whether it can.

use std::thread::available_parallelism;

use burn::tensor::Device;
use stageline_checkpoint::Checkpoint;
use stageline_schedule::{OneFOneB, Schedule};

use crate::build::assemble::Joined;
#[cfg(feature = "cuda")]
use crate::device::location::between_gpus;
use crate::failure::watchdog::Watchdog;
use crate::model::payload::Payload;
use crate::state::names::Names;
use crate::update::clip::Clip;
use crate::update::finite::OnNonFinite;
use crate::update::flush::FlushConfig;
use crate::update::loss_scale::LossScale;
use crate::update::optimizer_step::Rollback;
use crate::update::precision::Precision;
use stageline_nn::autograd::recompute::Recompute;

/// A complete chain of stages, and how to run it.
#[must_use = "`build` it"]
pub struct PipelineBuilder<In: Payload, Target: Payload> {
    pub(super) stages: Joined<In, Target>,
    /// The devices of replicas other than 0.
    pub(super) elsewhere: Vec<Vec<Device>>,
    pub(super) schedule: Box<dyn Schedule>,
    pub(super) micro_batches: usize,
    pub(super) gradient_groups: Option<usize>,
    pub(super) channel_capacity: Option<usize>,
    pub(super) cores_per_stage: Option<usize>,
    pub(super) precision: Precision,
    pub(super) loss_scale: Option<LossScale>,
    pub(super) tuned_for: Option<usize>,
    pub(super) synchronise_every: Option<usize>,
    pub(super) rollback: Rollback,
    pub(super) ordered_transfers: bool,
    pub(super) watchdog: Option<Watchdog>,
    pub(super) names: Option<Names>,
    pub(super) restore: Option<Checkpoint>,
    pub(super) flush: FlushConfig,
}

impl<In: Payload, Target: Payload> PipelineBuilder<In, Target> {
    pub(crate) fn new(stages: Joined<In, Target>) -> Self {
        Self {
            stages,
            elsewhere: Vec::new(),
            schedule: Box::new(OneFOneB),
            micro_batches: 1,
            gradient_groups: None,
            channel_capacity: None,
            cores_per_stage: None,
            precision: Precision::Full,
            loss_scale: None,
            tuned_for: None,
            synchronise_every: None,
            rollback: Rollback::Kept,
            ordered_transfers: false,
            watchdog: Some(Watchdog::default()),
            names: None,
            restore: None,
            flush: FlushConfig::default(),
        }
    }

    /// The schedule; [`OneFOneB`] if not set.
    pub fn schedule(mut self, schedule: impl Schedule + 'static) -> Self {
        self.schedule = Box::new(schedule);
        self
    }

    /// M: into how many micro-batches a batch is cut, a replica, which is also how many gradients are accumulated before the
    /// optimizers step; 1 if not set. Where the batch grows with it, so does what every step sees: say what the schedule is
    /// for by [`tuned_for`](Self::tuned_for).
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.micro_batches = micro_batches;
        self
    }

    /// One replica more: all stages once more, on these devices, one a stage, under the same plan. Of R replicas each has M of the
    /// R x M micro-batches of a batch, in order: replica 0, which is the one on the stages' own devices, has the first M.
    ///
    /// At the end of a step the sums of every stage's gradients are added up, once, in replica order, and only replica 0's
    /// optimizers step: so the bits are those of one replica with R x M micro-batches, and R
    /// [`gradient_groups`](Self::gradient_groups). They go by the host between GPUs, for the sake of that order. Checkpoints and
    /// modules are those of replica 0, and the same for any R.
    pub fn replica(mut self, devices: impl IntoIterator<Item = Device>) -> Self {
        self.elsewhere.push(devices.into_iter().map(Device::inner).collect());
        self
    }

    /// In how many groups of consecutive micro-batches gradients are summed, before the groups' sums are added up, both in
    /// ascending order; R if not set. Floating-point sums depend on such groups: one replica that is to come to the same bits as R
    /// with M micro-batches each has R x M micro-batches in R groups. With more than one group there are two sums in memory.
    pub fn gradient_groups(mut self, groups: usize) -> Self {
        self.gradient_groups = Some(groups);
        self
    }

    /// How many micro-batches a channel between two stages holds; M if not set, which never holds a sender up. 0 is
    /// a rendezvous.
    pub fn channel_capacity(mut self, capacity: usize) -> Self {
        self.channel_capacity = Some(capacity);
        self
    }

    /// How many cores the kernels of one worker may use; if not set, the machine's cores divided among the workers of all replicas.
    pub fn cores_per_stage(mut self, cores: usize) -> Self {
        self.cores_per_stage = Some(cores);
        self
    }

    /// How many samples a step its learning rates and numbers of steps were chosen for. The first step with another number,
    /// as after a change of M, then warns of what that changes ([`BatchChange`](crate::BatchChange)); nothing is done about it.
    pub fn tuned_for(mut self, samples: usize) -> Self {
        self.tuned_for = Some(samples);
        self
    }

    /// In what forwards and backwards compute; in the precision of the parameters if not set.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// What the loss is multiplied by before the backward; if not set, 1, and with [`Precision::F16`] a dynamic scale.
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.loss_scale = Some(scale);
        self
    }

    /// How gradients are clipped, once a step, when they are added up over all micro-batches; not at all if not set.
    pub fn clip(mut self, clip: Clip) -> Self {
        self.flush.clip = Some(clip);
        self
    }

    /// What is done with a step whose loss or gradients are NaN or infinite; [`OnNonFinite::Stop`] if not set.
    pub fn on_non_finite(mut self, policy: OnNonFinite) -> Self {
        self.flush.on_non_finite = policy;
        self
    }

    /// Examines each parameter's gradient and update in every so many-th step, from the first on; never if not set, or 0.
    ///
    /// It reads parameters and gradients on the host: for a step so examined, about as long as the optimizer takes.
    pub fn health_every(mut self, steps: usize) -> Self {
        self.flush.health_every = steps;
        self
    }

    pub(crate) fn configured_precision(&self) -> Precision {
        self.precision
    }

    pub(crate) fn configured_clip(&self) -> Option<Clip> {
        self.flush.clip
    }

    /// Of a batch.
    pub(crate) fn configured_micro_batches(&self) -> usize {
        self.replicas() * self.micro_batches
    }

    /// By stage and path.
    pub(crate) fn batch_norms(&self) -> &[(usize, String)] {
        &self.stages.owners.batch_norms
    }

    /// The same model, optimizers and clipping, once, on one device, in full precision, without recomputation, and with so many
    /// micro-batches.
    pub(crate) fn reference(mut self, micro_batches: usize) -> Self {
        self.stages.recompute.fill(Recompute::Nothing);
        let first = self.stages.devices[0].clone();
        self.stages.devices.fill(first);
        self.flush = FlushConfig { clip: self.flush.clip, ..FlushConfig::default() };
        Self {
            micro_batches,
            elsewhere: Vec::new(),
            gradient_groups: None,
            schedule: Box::new(OneFOneB),
            channel_capacity: None,
            // One stage computes at a time.
            cores_per_stage: available_parallelism().map_or(None, |cores| Some(cores.get())),
            precision: Precision::Full,
            loss_scale: None,
            tuned_for: None,
            ..self
        }
    }

    /// Whether any stage recomputes something in its backwards.
    pub(crate) fn recomputes(&self) -> bool {
        self.stages.recompute.iter().any(|recompute| *recompute != Recompute::Nothing)
    }

    /// The same, where every stage keeps all that its backwards need.
    pub(crate) fn without_recomputation(mut self) -> Self {
        self.stages.recompute.fill(Recompute::Nothing);
        self
    }

    /// The same without clipping.
    pub(crate) fn unclipped(mut self) -> Self {
        self.flush.clip = None;
        self
    }

    /// Every how many steps, from the first on, workers wait for their device after every action, so that recordings have the
    /// time of the device ([`Clock::Synchronised`](crate::Clock)); 0 is never. If not set, 20 with devices other than the host's
    /// CPU, which are asynchronous: without such steps the bubble is that of enqueueing. Else 0: on CPUs both clocks are the same. It
    /// slows such a step down: the throughput is that of the others.
    pub fn synchronise_every(mut self, steps: usize) -> Self {
        self.synchronise_every = Some(steps);
        self
    }

    /// Whether every stage keeps copies of its parameters and optimizer states during the flush, until all stages have stepped; true
    /// if not set. With them, an error in the middle of a flush undoes the step on all stages. Without them the flush needs as
    /// much memory less (of Adam in f32, 12 bytes a parameter); such an error is then [`StepError::Torn`](crate::StepError), and
    /// the training has to resume from a checkpoint. [`Pipeline::steps`] then waits for all stages after every step, as
    /// [`Pipeline::step`] does.
    pub fn rollback(mut self, keeps_copies: bool) -> Self {
        self.rollback = if keeps_copies { Rollback::Kept } else { Rollback::Off };
        self
    }

    /// When a pipeline that stands still is warned of and given up; [`Watchdog::default`] if not set, and `None` never.
    pub fn watchdog(mut self, watchdog: impl Into<Option<Watchdog>>) -> Self {
        self.watchdog = watchdog.into();
        self
    }

    /// What parameters are called in checkpoints; by their stage and their path there if not set, which ties a checkpoint to the
    /// cut.
    pub fn names(mut self, names: Names) -> Self {
        self.names = Some(names);
        self
    }

    /// Goes on from there: parameters, optimizer states, learning rates, the loss scale, and the number of steps.
    ///
    /// With the same batches and configuration it goes on to the same bits, whatever the cut, schedule and devices, and on any number
    /// of replicas that comes to the same [`gradient_groups`](Self::gradient_groups); the
    /// optimizers and schedulers of the stages must be those of before. What burn draws from its own random number generator, as
    /// its own dropout does, is not part of it ([`Dropout`](crate::Dropout) is).
    pub fn restore(mut self, checkpoint: Checkpoint) -> Self {
        self.restore = Some(checkpoint);
        self
    }

    /// Workers issue their transfers in the plan's global order on any devices, as they always do between GPUs; those of several
    /// replicas as if these shared them.
    ///
    /// Where steps are not the same from one to the next, it makes workers wait for each other's transfers; on devices that
    /// need no order it is for tests.
    pub fn ordered_transfers(mut self) -> Self {
        self.ordered_transfers = true;
        self
    }
}
