//! Stages in order, joined by their types, become a pipeline.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use stageline_checkpoint::Checkpoint;
use stageline_schedule::{Checked, OneFOneB, Schedule, check};

use crate::clip::Clip;
use crate::error::BuildError;
use crate::finite::OnNonFinite;
use crate::flush::{FlushConfig, Trained};
use crate::layout::{Layout, Restored};
use crate::link::link;
use crate::location::communication_streams;
use crate::loss_scale::{LossScale, Scaler};
use crate::mismatch::Mismatch;
use crate::names::Names;
use crate::owners::Owners;
use crate::payload::Payload;
use crate::pipeline::{Door, Pipeline, Seats, Stepping};
use crate::precision::Precision;
use crate::recompute::Recompute;
use crate::rehearsal::Parameters;
use crate::runner::{Runner, Source, StageRunner};
use crate::seed::materialize;
use crate::sink::{ToLoss, ToNext};
use crate::stage::{LossStage, Stage};
use crate::threads::{Sender, bounded};
use crate::tie::{Ties, tie};
use crate::unify::unify;
use crate::watchdog::Watchdog;
use crate::weight::Weight;

/// What a stage needs besides its module: a device, an optimizer, and a learning rate.
#[derive(Clone)]
pub struct StageConfig {
    device: Device,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
    recompute: Recompute,
}

impl StageConfig {
    /// A stage on `device` that steps `optimizer` at `learning_rate`: a burn scheduler, which counts optimizer steps,
    /// or a number.
    pub fn new(
        device: Device,
        optimizer: impl Into<ModuleOptimizer>,
        learning_rate: impl Into<ModuleLrScheduler>,
    ) -> Self {
        let (optimizer, learning_rate) = (optimizer.into(), learning_rate.into());
        Self { device, optimizer, learning_rate, recompute: Recompute::Nothing }
    }

    /// What it computes again in its backwards; nothing if not set.
    #[must_use]
    pub fn recompute(self, recompute: Recompute) -> Self {
        Self { recompute, ..self }
    }

    /// The same, on another device.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }
}

/// A module and its configuration, until it is placed.
struct Unplaced<M> {
    stage: usize,
    module: M,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

impl<M: Module> Unplaced<M> {
    /// The parameters exist, before any thread starts.
    fn new(stage: usize, module: M, config: StageConfig) -> Self {
        materialize(&module);
        // By way of `valid`, which drops burn's gradient checkpointing: inputs could not join such a graph.
        let module = module.valid().train();
        Self { stage, module, optimizer: config.optimizer, learning_rate: config.learning_rate }
    }

    /// On its device.
    fn place(self, site: &mut Site) -> (Device, Trained<M>) {
        let device = site.devices[self.stage].clone();
        let module = unify(self.module.fork(&device));
        let mut trained = Trained::new(module, site.precision, self.optimizer, self.learning_rate);
        if let Some(restored) = site.restored[self.stage].take() {
            site.unused.extend(trained.restore(restored).err().unwrap_or_default());
        }
        (device, trained)
    }
}

/// Where the stages joined so far are put up.
struct Site {
    capacity: usize,
    precision: Precision,
    devices: Vec<Device>,
    /// What each stage shares with others.
    ties: Vec<Ties>,
    /// What each stage goes on from.
    restored: Vec<Option<Restored>>,
    /// What optimizers could not use of it.
    unused: Vec<(ParamId, String)>,
    runners: Vec<Box<dyn Runner>>,
}

impl Site {
    fn ties_of(&mut self, stage: usize) -> Ties {
        std::mem::take(&mut self.ties[stage])
    }
}

/// Puts up the stages joined so far, and gives the input of the next one.
///
/// It waits for `build`, because a channel is made with its capacity, and a transfer with both its devices.
type Wire<Out> = Box<dyn FnOnce(&mut Site) -> Source<Out>>;

/// The stages joined so far, from a batch's input to the last one's output.
#[must_use = "end the chain with `loss` and `build` it"]
pub struct Chain<In: Payload, Out: Payload> {
    feed: Sender<Vec<In>>,
    devices: Vec<Device>,
    recompute: Vec<Recompute>,
    owners: Owners,
    wire: Wire<Out>,
}

impl Pipeline<(), ()> {
    /// Begins a chain of stages, in order.
    pub fn builder<In: Payload>() -> Chain<In, In> {
        let (feed, source) = bounded(1);
        let wire: Wire<In> = Box::new(|_| Source::Batch(source));
        Chain { feed, devices: Vec::new(), recompute: Vec::new(), owners: Owners::default(), wire }
    }
}

impl<In: Payload, Out: Payload> Chain<In, Out> {
    /// Appends a stage that takes what the chain gives.
    pub fn stage<S: Stage<Input = Out>>(mut self, module: S, config: StageConfig) -> Chain<In, S::Output> {
        let stage = self.devices.len();
        self.devices.push(config.device.clone().inner());
        self.recompute.push(config.recompute);
        let unplaced = Unplaced::new(stage, module, config);
        self.owners.add(stage, &unplaced.module, &unplaced.optimizer);
        let before = self.wire;
        let wire = move |site: &mut Site| {
            let source = before(site);
            let (device, trained) = unplaced.place(site);
            let (downstream, upstream) = link(site.capacity, device.clone(), site.devices[stage + 1].clone());
            let (ties, sink) = (site.ties_of(stage), ToNext::new(downstream));
            site.runners.push(Box::new(StageRunner::new(stage, device, trained, source, sink, ties)));
            Source::Link(upstream)
        };
        let (feed, devices, recompute, owners) = (self.feed, self.devices, self.recompute, self.owners);
        Chain { feed, devices, recompute, owners, wire: Box::new(wire) }
    }

    /// Ends the chain with the stage that makes the loss.
    pub fn loss<L: LossStage<Input = Out>>(mut self, module: L, config: StageConfig) -> PipelineBuilder<In, L::Target> {
        let stage = self.devices.len();
        self.devices.push(config.device.clone().inner());
        self.recompute.push(config.recompute);
        let unplaced = Unplaced::new(stage, module, config);
        self.owners.add(stage, &unplaced.module, &unplaced.optimizer);
        let before = self.wire;
        let (targets, target_feed) = bounded(1);
        let wire = move |site: &mut Site| {
            let source = before(site);
            let (device, trained) = unplaced.place(site);
            let (ties, sink) = (site.ties_of(stage), ToLoss::new(target_feed, device.clone()));
            site.runners.push(Box::new(StageRunner::new(stage, device, trained, source, sink, ties)));
        };
        PipelineBuilder {
            inputs: self.feed,
            targets,
            devices: self.devices,
            recompute: self.recompute,
            owners: self.owners,
            wire: Box::new(wire),
            weight: L::weight,
            schedule: Box::new(OneFOneB),
            micro_batches: 1,
            channel_capacity: None,
            cores_per_stage: None,
            precision: Precision::Full,
            loss_scale: None,
            tuned_for: None,
            synchronise_every: 0,
            ordered_transfers: false,
            watchdog: Some(Watchdog::default()),
            names: None,
            restore: None,
            flush: FlushConfig::default(),
        }
    }
}

/// A complete chain of stages, and how to run it.
#[must_use = "`build` it"]
pub struct PipelineBuilder<In: Payload, Target: Payload> {
    inputs: Sender<Vec<In>>,
    targets: Sender<Vec<Target>>,
    devices: Vec<Device>,
    recompute: Vec<Recompute>,
    owners: Owners,
    wire: Box<dyn FnOnce(&mut Site)>,
    weight: fn(&Target) -> Weight,
    schedule: Box<dyn Schedule>,
    micro_batches: usize,
    channel_capacity: Option<usize>,
    cores_per_stage: Option<usize>,
    precision: Precision,
    loss_scale: Option<LossScale>,
    tuned_for: Option<usize>,
    synchronise_every: usize,
    ordered_transfers: bool,
    watchdog: Option<Watchdog>,
    names: Option<Names>,
    restore: Option<Checkpoint>,
    flush: FlushConfig,
}

impl<In: Payload, Target: Payload> PipelineBuilder<In, Target> {
    /// The schedule; [`OneFOneB`] if not set.
    pub fn schedule(mut self, schedule: impl Schedule + 'static) -> Self {
        self.schedule = Box::new(schedule);
        self
    }

    /// M: into how many micro-batches a batch is cut, which is also how many gradients are accumulated before the
    /// optimizers step; 1 if not set. Where the batch grows with it, so does what every step sees: say what the schedule is
    /// for by [`tuned_for`](Self::tuned_for).
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.micro_batches = micro_batches;
        self
    }

    /// How many micro-batches a channel between two stages holds; M if not set, which never holds a sender up. 0 is
    /// a rendezvous.
    pub fn channel_capacity(mut self, capacity: usize) -> Self {
        self.channel_capacity = Some(capacity);
        self
    }

    /// How many cores the kernels of one worker may use; if not set, the machine's cores divided among the workers.
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

    pub(crate) fn configured_micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// By stage and path.
    pub(crate) fn batch_norms(&self) -> &[(usize, String)] {
        &self.owners.batch_norms
    }

    /// The same model, optimizers and clipping, on one device, in full precision, and with so many micro-batches.
    pub(crate) fn reference(mut self, micro_batches: usize) -> Self {
        let first = self.devices[0].clone();
        self.devices.fill(first);
        self.flush = FlushConfig { clip: self.flush.clip, ..FlushConfig::default() };
        Self {
            micro_batches,
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

    /// The same without clipping.
    pub(crate) fn unclipped(mut self) -> Self {
        self.flush.clip = None;
        self
    }

    /// Every how many steps, from the first on, workers wait for their device after every action, so that recordings have the
    /// time of the device ([`Clock::Synchronised`](crate::Clock)); 0, never, if not set. On an asynchronous device it slows
    /// such a step down: the throughput is that of the others.
    pub fn synchronise_every(mut self, steps: usize) -> Self {
        self.synchronise_every = steps;
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
    /// With the same batches and configuration it goes on to the same bits, whatever the cut, schedule and devices; the
    /// optimizers and schedulers of the stages must be those of before. What burn draws from its own random number generator, as
    /// its own dropout does, is not part of it ([`Dropout`](crate::Dropout) is).
    pub fn restore(mut self, checkpoint: Checkpoint) -> Self {
        self.restore = Some(checkpoint);
        self
    }

    /// Workers issue their transfers in the plan's global order on any devices, as they always do between GPUs.
    ///
    /// Where steps are not the same from one to the next, it makes workers wait for each other's transfers; on devices that
    /// need no order it is for tests.
    pub fn ordered_transfers(mut self) -> Self {
        self.ordered_transfers = true;
        self
    }

    /// Writes the plan, checks it, and starts one thread a worker.
    ///
    /// # Errors
    /// [`BuildError`], which names the values and the way out.
    pub fn build(self) -> Result<Pipeline<In, Target>, BuildError> {
        if let Some(stage) = self.owners.clipping {
            return Err(BuildError::ClippingOptimizer { stage });
        }
        if let Some(bound) = self.flush.clip.map(Clip::bound).filter(|bound| !bound.is_finite() || *bound <= 0.0) {
            return Err(BuildError::Clip { bound });
        }
        if let Some(stage) = self.owners.plain_batch_norm.filter(|_| self.precision != Precision::Full) {
            return Err(BuildError::BatchNormPrecision { stage, precision: self.precision });
        }
        let loss_scale = self.loss_scale.unwrap_or_else(|| LossScale::of(self.precision));
        if !loss_scale.is_sound() {
            return Err(BuildError::LossScale { scale: loss_scale });
        }
        if let Some(watchdog) = self.watchdog.filter(|watchdog| !watchdog.is_sound()) {
            return Err(BuildError::Watchdog { watchdog });
        }
        let plan = self.checked_plan()?;
        let workers = plan.plan().workers();
        let cores = match self.cores_per_stage {
            Some(0) => return Err(BuildError::NoCores),
            Some(cores) => cores,
            None => (available_parallelism().map_or(1, NonZero::get) / workers).max(1),
        };
        if let Some(stages) = self.owners.misshapen {
            return Err(BuildError::TiedShapes { stages });
        }
        if let Some(stages) = self.owners.half_frozen() {
            return Err(BuildError::HalfFrozen { stages });
        }
        let mut ties: Vec<Ties> = self.devices.iter().map(|_| Ties::default()).collect();
        for (stages, ids) in self.owners.shared {
            tie(&mut ties, &self.devices, stages, ids, plan.plan().micro_batches());
        }
        let streams = match self.ordered_transfers {
            true => (0..self.devices.len()).map(|stage| Some(plan.placement().worker(stage))).collect(),
            false => communication_streams(&self.devices),
        };
        let (capacity, precision, devices) = (plan.capacity(), self.precision, self.devices);
        let stages = devices.iter().cloned().zip(Parameters::of(&self.owners.tensors, &devices, precision)).collect();
        let layout = Layout::new(self.owners.tensors, self.names.as_ref())?;
        let restored = self.restore.as_ref().map(|checkpoint| layout.restore(checkpoint)).transpose();
        let restored = restored.map_err(BuildError::Checkpoint)?.map(|stages| stages.into_iter().map(Some).collect());
        let restored = restored.unwrap_or_else(|| devices.iter().map(|_| None).collect());
        let mut site = Site { capacity, precision, devices, ties, restored, unused: Vec::new(), runners: Vec::new() };
        (self.wire)(&mut site);
        Mismatch::unless_empty(layout.unused(site.unused)).map_err(BuildError::Checkpoint)?;
        let door = Door { inputs: self.inputs, targets: self.targets, weight: self.weight };
        let progress = self.restore.map(|checkpoint| checkpoint.progress);
        let stepping = Stepping {
            scaler: Scaler::resumed(loss_scale, progress.and_then(|progress| progress.loss_scale)),
            tuned_for: self.tuned_for,
            flush: self.flush,
            synchronise_every: self.synchronise_every,
            watchdog: self.watchdog,
            recompute: self.recompute.into(),
        };
        let mut pipeline =
            Pipeline::start(Arc::new(plan), site.runners, cores, door, stepping, Seats { streams, stages }, layout)?;
        progress.into_iter().for_each(|progress| pipeline.resume(progress));
        Ok(pipeline)
    }

    fn checked_plan(&self) -> Result<Checked, BuildError> {
        let (stages, micro_batches, schedule) = (self.devices.len(), self.micro_batches, self.schedule.name());
        let plan = self.schedule.plan(stages, micro_batches);
        // A plan is the schedule of its own shape: this refuses what was written for another.
        let plan = plan.and_then(|plan| plan.plan(stages, micro_batches));
        let plan = plan.map_err(|cause| BuildError::Schedule { schedule, cause })?;
        // A channel never holds more than every micro-batch.
        let capacity = self.channel_capacity.map_or(micro_batches, |capacity| capacity.min(micro_batches));
        check(plan, capacity).map_err(BuildError::Check)
    }
}
