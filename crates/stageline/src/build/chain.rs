//! Builds a chain (the stages of a model in order). Each stage has a [`StageConfig`]. The compiler checks that each
//! stage takes the output type of the stage before it.

use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{ParamGroup, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use crate::build::assemble::Joined;
use crate::build::assembly::{Assembly, Unplaced};
use crate::build::builder::PipelineBuilder;
use crate::build::ownership::Owners;
use crate::model::payload::Payload;
use crate::model::scoring::Scoring;
use crate::model::stage::{LossStage, Stage};
use crate::pipeline::Pipeline;
use crate::runner::input::{AnySource, FromPrevious};
use crate::runner::output::{CallerChannels, ToCaller, ToNext};
use crate::runner::stage::StageRunner;
use crate::transfer::link::link;
use stageline_nn::params::hollow;
use stageline_nn::{Operation, Recompute};

/// The configuration of a stage: its device, its optimizer, its learning rate and its recomputation (activation
/// checkpointing).
#[derive(Clone)]
pub struct StageConfig {
    device: Device,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
    recompute: Recompute,
    /// The function that adds a separate optimizer for the model's first and last layer; `None` if these two layers use
    /// their stage's optimizer.
    ends: Option<WithGroup>,
}

/// A function that adds a separate optimizer for a group of a stage's parameters to the stage's optimizer.
type WithGroup = Arc<dyn Fn(ModuleOptimizer, ParamGroup) -> ModuleOptimizer + Send + Sync>;

impl StageConfig {
    /// Creates the configuration of a stage that runs on `device` and steps its parameters with `optimizer`.
    /// `learning_rate` is a number or a burn scheduler; a scheduler advances once per optimizer step.
    ///
    /// The optimizer's state, such as Adam's moments, is in device memory. To keep it in host memory, use
    /// [`OptimizerState::of`](crate::OptimizerState::of).
    pub fn new(
        device: Device,
        optimizer: impl Into<ModuleOptimizer>,
        learning_rate: impl Into<ModuleLrScheduler>,
    ) -> Self {
        let (optimizer, learning_rate) = (optimizer.into(), learning_rate.into());
        Self { device, optimizer, learning_rate, recompute: Recompute::Nothing, ends: None }
    }

    /// Sets which part of its forward pass a stage recomputes in its backward passes (activation recomputation, also
    /// called activation checkpointing). If unset, the stage recomputes nothing.
    #[must_use]
    pub fn recompute(self, recompute: Recompute) -> Self {
        Self { recompute, ..self }
    }

    /// Sets a separate optimizer for the first and the last layer of a model, most often its embeddings and its head.
    /// The model must be given as a [`Row`](crate::Row) (first layer, blocks, last layer).
    ///
    /// `add` receives the optimizer of a stage, and the group of those two layers' parameters in the stage. It returns
    /// the stage's optimizer with a separate optimizer for this group. If unset, the two layers use the optimizer of
    /// their stage. `add` is not called for stages that the user added to a chain directly.
    ///
    /// ```
    /// use burn::optim::{AdamWConfig, LionConfig};
    /// # use burn::tensor::Device;
    /// # use stageline::StageConfig;
    ///
    /// let config = StageConfig::new(Device::flex(), LionConfig::new().init(), 1e-4)
    ///     .ends(|optimizer, ends| optimizer.with_group(ends, AdamWConfig::new().build(), None));
    /// ```
    #[must_use]
    pub fn ends(self, add: impl Fn(ModuleOptimizer, ParamGroup) -> ModuleOptimizer + Send + Sync + 'static) -> Self {
        Self { ends: Some(Arc::new(add)), ..self }
    }

    /// Adds the user's separate optimizer for the model's first and last layer, if one was set with `ends`. `ids` has
    /// the parameters of these two layers in this stage. It is empty for a stage in the middle of the model.
    pub(crate) fn with_ends(self, ids: Vec<ParamId>) -> Self {
        let optimizer = match &self.ends {
            Some(add) if !ids.is_empty() => add(self.optimizer, ParamGroup::from_ids(ids)),
            _ => self.optimizer,
        };
        Self { optimizer, ..self }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns a stage's configuration with `device` as the stage's device. Optimizer, learning rate and recomputation
    /// stay as they are.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }
}

/// A function that assembles, for one data-parallel replica, the stages added to a chain so far. Its arguments are the
/// `Assembly` (the replica under construction, to which it adds the stages) and the source of the first stage's input.
/// It returns the source of the next stage's input.
///
/// This function is called in `build`, because the devices and the channel capacity are not known before.
type Wire<In, Out> = Box<dyn Fn(&mut Assembly, AnySource<In>) -> AnySource<Out> + Send>;

/// A chain: the stages of a model in order. A pipeline is built from it. `In` is the input of the first stage, which
/// comes from the batch. `Out` is the output of the last stage so far.
///
/// [`Pipeline::builder`] begins a chain, [`stage`](Self::stage) appends to it, and [`loss`](Self::loss) ends it.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use stageline::{LossStage, Pipeline, StageConfig};
/// # fn build<L: LossStage<Input = Tensor<2>, Output = Tensor<2>>>(first: L, last: L, config: StageConfig) {
/// let pipeline = Pipeline::builder().stage(first, config.clone()).loss(last, config).micro_batches(8).build();
/// # }
/// ```
///
/// A last stage that is appended by `stage` has no loss in the pipeline, so this does not compile:
///
/// ```compile_fail,E0277
/// # use burn::tensor::Tensor;
/// # use stageline::{LossStage, Pipeline, StageConfig};
/// # fn build<L: LossStage<Input = Tensor<2>, Output = Tensor<2>>>(first: L, last: L, config: StageConfig) {
/// let pipeline = Pipeline::builder().stage(first, config.clone()).stage(last, config).micro_batches(8).build();
/// # }
/// ```
#[must_use = "end the chain with `loss` and `build` it"]
pub struct Chain<In: Payload, Out: Payload> {
    devices: Vec<Device>,
    sources: Vec<(usize, Device)>,
    recompute: Vec<Recompute>,
    operations: Vec<Vec<Operation>>,
    owners: Owners,
    wire: Wire<In, Out>,
}

/// A marker trait that no type implements, so that a call that requires it does not compile. The calls of `build` and
/// `micro_batches` on a [`Chain`] require it, because a chain has no loss yet. The compiler's message says to add the
/// last stage with [`Chain::loss`].
#[diagnostic::on_unimplemented(
    message = "a chain ends with `.loss(stage, config)`; the last stage was added by `.stage`",
    label = "the chain has no loss",
    note = "replace the last `.stage(...)` by `.loss(...)`, which returns the builder with all settings and `build`"
)]
pub trait EndsWithLoss {}

impl Pipeline<(), (), ()> {
    /// Creates an empty chain. The stages of a model are then added to it in order: [`stage`](Chain::stage) appends a
    /// stage, and [`loss`](Chain::loss) appends the last one.
    pub fn builder<In: Payload>() -> Chain<In, In> {
        let wire: Wire<In, In> = Box::new(|_, source| source);
        let (devices, sources) = (Vec::new(), Vec::new());
        let (recompute, operations) = (Vec::new(), Vec::new());
        Chain { devices, sources, recompute, operations, owners: Owners::default(), wire }
    }
}

impl<In: Payload, Out: Payload> Chain<In, Out> {
    /// Adds a stage to the chain: records its device, its recomputation setting, its operations
    /// ([`Stage::operations`]), and which of its parameters it owns (steps with its own optimizer). Returns the stage's
    /// module with its optimizer, which the caller still has to copy to the device.
    fn add<S: Stage>(&mut self, module: S, config: StageConfig) -> Unplaced<S> {
        let StageConfig { device, optimizer, learning_rate, recompute, .. } = config;
        let stage = self.devices.len();
        self.devices.push(device.inner());
        self.sources.extend(module.devices().into_iter().map(|device| (stage, device.inner())));
        self.recompute.push(recompute);
        let unplaced = Unplaced::new(stage, module, optimizer, learning_rate);
        self.owners.add(stage, &unplaced.module, &unplaced.optimizer);
        self.operations.push(unplaced.module.operations());
        unplaced
    }

    /// Appends a stage to the chain (the stages of a model in order), with its configuration. The stage's input type
    /// must be the output type of the last stage so far.
    pub fn stage<S: Stage<Input = Out>>(mut self, module: S, config: StageConfig) -> Chain<In, S::Output> {
        let stage = self.devices.len();
        let unplaced = self.add(module, config);
        let before = self.wire;
        let wire = move |assembly: &mut Assembly, source: AnySource<In>| -> AnySource<S::Output> {
            let source = before(assembly, source);
            let (slot, trained) = unplaced.place(assembly);
            let next = assembly.devices[stage + 1].clone();
            let (downstream, upstream) =
                link(assembly.capacity, slot.device.clone(), next, assembly.routes[stage].clone());
            assembly.runners.push(Box::new(StageRunner::new(slot, trained, source, ToNext::new(downstream))));
            Box::new(FromPrevious::new(upstream))
        };
        let Self { devices, sources, recompute, operations, owners, .. } = self;
        Chain { devices, sources, recompute, operations, owners, wire: Box::new(wire) }
    }

    /// Ends the chain (the stages of a model in order) with the last stage, which computes the loss. Returns the
    /// builder of the pipeline, whose methods set everything else.
    pub fn loss<L: LossStage<Input = Out>>(
        mut self,
        module: L,
        config: StageConfig,
    ) -> PipelineBuilder<In, L::Output, L::Target> {
        let unplaced = self.add(module, config);
        let before = self.wire;
        // `valid` gives the copy its own running statistics. A clone would share them with the module, and `hollow`
        // would replace them in both.
        let constants = hollow(unplaced.module.valid());
        type Channels<L> = CallerChannels<<L as Stage>::Output, <L as LossStage>::Target>;
        let wire = move |assembly: &mut Assembly, source: AnySource<In>, channels: Channels<L>| {
            let source = before(assembly, source);
            let (slot, trained) = unplaced.place(assembly);
            let sink = ToCaller::new(channels, slot.device.clone());
            assembly.runners.push(Box::new(StageRunner::new(slot, trained, source, sink)));
        };
        PipelineBuilder::new(Joined {
            devices: self.devices,
            sources: self.sources,
            recompute: self.recompute,
            operations: self.operations,
            owners: self.owners,
            wire: Box::new(wire),
            scoring: Scoring { weight: Box::new(move |target| constants.weight(target)), metrics: L::METRICS },
        })
    }

    /// A method whose calls never compile. The compiler's message says that the last stage must be added with `loss`
    /// before the pipeline is built.
    #[doc(hidden)]
    pub fn build(self) -> Self
    where
        Self: EndsWithLoss,
    {
        self
    }

    /// A method whose calls never compile. The compiler's message says that the last stage must be added with `loss`
    /// before settings are set.
    #[doc(hidden)]
    pub fn micro_batches(self, _: usize) -> Self
    where
        Self: EndsWithLoss,
    {
        self
    }
}
