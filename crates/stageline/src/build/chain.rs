//! Stages in order, joined by their types.

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use crate::build::assemble::Joined;
use crate::build::assembly::{Assembly, Unplaced};
use crate::build::builder::PipelineBuilder;
use crate::build::ownership::Owners;
use crate::model::payload::Payload;
use crate::model::stage::{LossStage, Stage};
use crate::pipeline::Pipeline;
use crate::runner::output::{ToLoss, ToNext};
use crate::runner::stage::{Source, StageRunner};
use crate::threads::Receiver;
use crate::transfer::link::link;
use stageline_nn::autograd::recompute::Recompute;

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

/// Puts up the stages joined so far in a replica, and gives the input of the next one, from that of the first.
///
/// It waits for `build`, because a channel is made with its capacity, and a transfer with both its devices.
type Wire<In, Out> = Box<dyn Fn(&mut Assembly, Source<In>) -> Source<Out>>;

/// The stages joined so far, from a batch's input to the last one's output.
#[must_use = "end the chain with `loss` and `build` it"]
pub struct Chain<In: Payload, Out: Payload> {
    devices: Vec<Device>,
    recompute: Vec<Recompute>,
    owners: Owners,
    wire: Wire<In, Out>,
}

impl Pipeline<(), ()> {
    /// Begins a chain of stages, in order.
    pub fn builder<In: Payload>() -> Chain<In, In> {
        let wire: Wire<In, In> = Box::new(|_, source| source);
        Chain { devices: Vec::new(), recompute: Vec::new(), owners: Owners::default(), wire }
    }
}

impl<In: Payload, Out: Payload> Chain<In, Out> {
    /// Notes one more stage.
    fn add<M: Module>(&mut self, module: M, config: StageConfig) -> Unplaced<M> {
        let StageConfig { device, optimizer, learning_rate, recompute } = config;
        let stage = self.devices.len();
        self.devices.push(device.inner());
        self.recompute.push(recompute);
        let unplaced = Unplaced::new(stage, module, (optimizer, learning_rate));
        self.owners.add(stage, &unplaced.module, &unplaced.optimizer);
        unplaced
    }

    /// Appends a stage that takes what the chain gives.
    pub fn stage<S: Stage<Input = Out>>(mut self, module: S, config: StageConfig) -> Chain<In, S::Output> {
        let stage = self.devices.len();
        let unplaced = self.add(module, config);
        let before = self.wire;
        let wire = move |site: &mut Assembly, source: Source<In>| {
            let source = before(site, source);
            let (seat, trained) = unplaced.place(site);
            let next = site.devices[stage + 1].clone();
            let (downstream, upstream) = link(site.capacity, seat.device.clone(), next, site.routes[stage].clone());
            site.runners.push(Box::new(StageRunner::new(seat, trained, source, ToNext::new(downstream))));
            Source::Link(Box::new(upstream))
        };
        Chain { devices: self.devices, recompute: self.recompute, owners: self.owners, wire: Box::new(wire) }
    }

    /// Ends the chain with the stage that makes the loss.
    pub fn loss<L: LossStage<Input = Out>>(mut self, module: L, config: StageConfig) -> PipelineBuilder<In, L::Target> {
        let unplaced = self.add(module, config);
        let before = self.wire;
        let wire = move |site: &mut Assembly, source: Source<In>, targets: Receiver<Vec<L::Target>>| {
            let source = before(site, source);
            let (seat, trained) = unplaced.place(site);
            let sink = ToLoss::new(targets, seat.device.clone());
            site.runners.push(Box::new(StageRunner::new(seat, trained, source, sink)));
        };
        PipelineBuilder::new(Joined {
            devices: self.devices,
            recompute: self.recompute,
            owners: self.owners,
            wire: Box::new(wire),
            weight: L::weight,
        })
    }
}
