//! What one stage does at each instruction: its module, between where its input comes from and where its output goes.

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use crossbeam_channel::Receiver;
use stageline_schedule::{Action, Carried, Compute, Instruction, Transfer};

use crate::batch::Weights;
use crate::error::StepError;
use crate::flush::{Ledger, Trained};
use crate::gradients::GradientSum;
use crate::link::{Downstream, Upstream, move_to};
use crate::payload::Payload;
use crate::stage::{BoxError, LossStage, Stage};
use crate::stop::{Stop, Stopped};
use crate::tape::{Cotangents, Leaves, track};

/// What the workers do with a batch.
#[derive(Clone)]
pub(crate) enum Pass {
    /// Forwards, backwards and a flush; the loss is divided by the total of these weights.
    Train(Arc<Weights>),
    /// Forwards only, without a graph.
    Evaluate,
}

/// Why a worker leaves its list.
pub(crate) enum Interrupt {
    /// Another worker failed, or the caller is gone.
    Stopped,
    /// The stage returned an error.
    Failed(BoxError),
}

impl From<Stopped> for Interrupt {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

/// What a stage has to show at the end of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// What is in its gradient sum.
    pub(crate) ledger: Ledger,
    /// The sum of the losses, from the last stage.
    pub(crate) loss: Option<f64>,
}

/// A stage, its types erased: what the worker drives.
pub(crate) trait Runner: Send {
    fn stage(&self) -> usize;
    fn begin(&mut self, pass: Pass, stop: &Stop<StepError>) -> Result<(), Stopped>;
    fn run(&mut self, instruction: Instruction, stop: &Stop<StepError>) -> Result<(), Interrupt>;
    fn finish(&mut self) -> Outcome;
    /// Steps the optimizer; returns the learning rate.
    fn step(&mut self) -> f64;
    fn into_module(self: Box<Self>) -> Option<ErasedModule>;
}

/// A module with the name of its type.
pub(crate) struct ErasedModule {
    pub(crate) module: Box<dyn Any + Send>,
    pub(crate) type_name: &'static str,
}

/// Where a stage's input comes from.
pub(crate) enum Source<T> {
    /// The batch: the caller's micro-batches, all at once.
    Batch(Receiver<Vec<T>>),
    /// The stage before.
    Link(Upstream<T>),
}

/// Where a stage's output goes: to the next stage, or into the loss.
pub(crate) trait Head<M>: Send {
    type Input: Payload;
    /// What a forward leaves for its backward.
    type Residual: Send;

    fn begin(&mut self, pass: &Pass, stop: &Stop<StepError>) -> Result<(), Stopped>;
    fn forward(&mut self, module: &M, input: Self::Input, micro_batch: usize) -> Result<Self::Residual, BoxError>;
    fn evaluate(&mut self, module: &M, input: Self::Input, micro_batch: usize) -> Result<(), BoxError>;
    /// The scalar to start the backward from; `None` where no gradient comes in.
    fn root(&mut self, residual: Self::Residual, micro_batch: usize) -> Option<Tensor<1>>;
    fn send(&mut self, micro_batch: usize, stop: &Stop<StepError>) -> Result<(), Stopped>;
    fn receive_gradient(&mut self, micro_batch: usize, stop: &Stop<StepError>) -> Result<(), Stopped>;
    /// The sum of the losses of the pass, if this is where they are made.
    fn loss(&mut self) -> Option<f64>;
}

/// Values of single micro-batches between two instructions. A checked plan puts every one before it takes it.
struct Slots<T>(BTreeMap<usize, T>);

impl<T> Slots<T> {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn fill(values: Vec<T>) -> Self {
        Self(values.into_iter().enumerate().collect())
    }

    fn put(&mut self, micro_batch: usize, value: T) {
        self.0.insert(micro_batch, value);
    }

    fn take(&mut self, micro_batch: usize) -> T {
        self.0.remove(&micro_batch).expect("a checked plan makes every value before it uses it, once")
    }
}

/// A stage in its place.
pub(crate) struct StageRunner<M, H: Head<M>> {
    stage: usize,
    device: Device,
    trained: Trained<M>,
    source: Source<H::Input>,
    head: H,
    pass: Pass,
    /// The module without autodiff, during an evaluation.
    valid: Option<M>,
    arrived: Slots<H::Input>,
    tape: Slots<(Leaves, H::Residual)>,
    departing: Slots<Cotangents>,
    gradients: GradientSum<M>,
}

impl<M: Module + 'static, H: Head<M>> StageRunner<M, H> {
    pub(crate) fn new(stage: usize, device: Device, trained: Trained<M>, source: Source<H::Input>, head: H) -> Self {
        Self {
            stage,
            device,
            trained,
            source,
            head,
            pass: Pass::Evaluate,
            valid: None,
            arrived: Slots::new(),
            tape: Slots::new(),
            departing: Slots::new(),
            gradients: GradientSum::new(),
        }
    }

    fn receive(&mut self, micro_batch: usize, stop: &Stop<StepError>) -> Result<(), Stopped> {
        if let Source::Link(upstream) = &self.source {
            self.arrived.put(micro_batch, upstream.receive(stop, micro_batch)?);
        }
        Ok(())
    }

    fn forward(&mut self, micro_batch: usize) -> Result<(), BoxError> {
        let input = self.arrived.take(micro_batch);
        if let Some(module) = &self.valid {
            let input = move_to(input, &self.device);
            return self.head.evaluate(module, input, micro_batch);
        }
        let (input, leaves) = match self.source {
            Source::Batch(_) => (track(move_to(input, &self.device)), Leaves::default()),
            Source::Link(_) => Leaves::of_input(input),
        };
        let residual = self.head.forward(self.trained.module(), input, micro_batch)?;
        self.tape.put(micro_batch, (leaves, residual));
        Ok(())
    }

    fn backward(&mut self, micro_batch: usize) {
        let Pass::Train(weights) = &self.pass else { unreachable!("an evaluation has no backwards") };
        let (leaves, residual) = self.tape.take(micro_batch);
        let mut gradients = self.head.root(residual, micro_batch).map(|root| root.backward());
        if let Source::Link(upstream) = &self.source {
            let cotangents = match &mut gradients {
                Some(gradients) => leaves.cotangents(gradients, upstream.previous()),
                None => leaves.no_cotangents(),
            };
            self.departing.put(micro_batch, cotangents);
        }
        let module = self.trained.module();
        let of_parameters = gradients.map(|gradients| GradientsParams::from_grads(gradients, module));
        self.gradients.add(module, micro_batch, of_parameters.unwrap_or_default(), &weights.each);
    }

    fn send_gradient(&mut self, micro_batch: usize, stop: &Stop<StepError>) -> Result<(), Stopped> {
        match &self.source {
            Source::Link(upstream) => upstream.send_gradient(stop, micro_batch, self.departing.take(micro_batch)),
            Source::Batch(_) => Ok(()),
        }
    }
}

impl<M: Module + 'static, H: Head<M>> Runner for StageRunner<M, H> {
    fn stage(&self) -> usize {
        self.stage
    }

    fn begin(&mut self, pass: Pass, stop: &Stop<StepError>) -> Result<(), Stopped> {
        if let Source::Batch(feed) = &self.source {
            self.arrived = Slots::fill(stop.receive(feed)?);
        }
        self.valid = matches!(pass, Pass::Evaluate).then(|| self.trained.module().valid());
        self.head.begin(&pass, stop)?;
        self.pass = pass;
        Ok(())
    }

    fn run(&mut self, instruction: Instruction, stop: &Stop<StepError>) -> Result<(), Interrupt> {
        match instruction {
            Instruction::Compute(Action { compute, micro_batch, .. }) => match compute {
                Compute::Forward => self.forward(micro_batch).map_err(Interrupt::Failed)?,
                Compute::Backward => self.backward(micro_batch),
                Compute::InputGradient | Compute::WeightGradient => {
                    unreachable!("a plan with split backwards is refused when the pipeline is built")
                }
            },
            Instruction::Receive(Transfer { carried, micro_batch, .. }) => match carried {
                Carried::Activation => self.receive(micro_batch, stop)?,
                Carried::Gradient => self.head.receive_gradient(micro_batch, stop)?,
            },
            Instruction::Send(Transfer { carried, micro_batch, .. }) => match carried {
                Carried::Activation => self.head.send(micro_batch, stop)?,
                Carried::Gradient => self.send_gradient(micro_batch, stop)?,
            },
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        self.valid = None;
        Outcome { ledger: self.gradients.ledger(), loss: self.head.loss() }
    }

    fn step(&mut self) -> f64 {
        self.trained.step(self.gradients.take())
    }

    fn into_module(self: Box<Self>) -> Option<ErasedModule> {
        let module = self.trained.into_module()?;
        Some(ErasedModule { module: Box::new(module), type_name: type_name::<M>() })
    }
}

/// The head of every stage but the last: its output goes down a link.
pub(crate) struct ToNext<T> {
    downstream: Downstream<T>,
    ready: Slots<T>,
    cotangents: Slots<Cotangents>,
}

impl<T> ToNext<T> {
    pub(crate) fn new(downstream: Downstream<T>) -> Self {
        Self { downstream, ready: Slots::new(), cotangents: Slots::new() }
    }
}

impl<S: Stage> Head<S> for ToNext<S::Output> {
    type Input = S::Input;
    type Residual = Leaves;

    fn begin(&mut self, _pass: &Pass, _stop: &Stop<StepError>) -> Result<(), Stopped> {
        Ok(())
    }

    fn forward(&mut self, module: &S, input: S::Input, micro_batch: usize) -> Result<Leaves, BoxError> {
        let (output, leaves) = Leaves::of_output(module.try_forward(input)?);
        self.ready.put(micro_batch, output);
        Ok(leaves)
    }

    fn evaluate(&mut self, module: &S, input: S::Input, micro_batch: usize) -> Result<(), BoxError> {
        self.ready.put(micro_batch, module.try_forward(input)?);
        Ok(())
    }

    fn root(&mut self, leaves: Leaves, micro_batch: usize) -> Option<Tensor<1>> {
        leaves.root(self.cotangents.take(micro_batch))
    }

    fn send(&mut self, micro_batch: usize, stop: &Stop<StepError>) -> Result<(), Stopped> {
        self.downstream.send(stop, micro_batch, self.ready.take(micro_batch))
    }

    fn receive_gradient(&mut self, micro_batch: usize, stop: &Stop<StepError>) -> Result<(), Stopped> {
        self.cotangents.put(micro_batch, self.downstream.receive_gradient(stop, micro_batch)?);
        Ok(())
    }

    fn loss(&mut self) -> Option<f64> {
        None
    }
}

/// The head of the last stage: the loss.
pub(crate) struct ToLoss<T> {
    feed: Receiver<Vec<T>>,
    device: Device,
    targets: Slots<T>,
    losses: BTreeMap<usize, Tensor<1>>,
    total_weight: f64,
}

impl<T> ToLoss<T> {
    pub(crate) fn new(feed: Receiver<Vec<T>>, device: Device) -> Self {
        Self { feed, device, targets: Slots::new(), losses: BTreeMap::new(), total_weight: 1.0 }
    }
}

impl<L: LossStage> Head<L> for ToLoss<L::Target> {
    type Input = L::Input;
    type Residual = Tensor<1>;

    fn begin(&mut self, pass: &Pass, stop: &Stop<StepError>) -> Result<(), Stopped> {
        self.targets = Slots::fill(stop.receive(&self.feed)?);
        if let Pass::Train(weights) = pass {
            self.total_weight = weights.total;
        }
        Ok(())
    }

    fn forward(&mut self, module: &L, input: L::Input, micro_batch: usize) -> Result<Tensor<1>, BoxError> {
        let target = track(move_to(self.targets.take(micro_batch), &self.device));
        let loss = module.try_loss(input, target)?;
        self.losses.insert(micro_batch, loss.clone().inner());
        Ok(loss)
    }

    fn evaluate(&mut self, module: &L, input: L::Input, micro_batch: usize) -> Result<(), BoxError> {
        let target = move_to(self.targets.take(micro_batch), &self.device);
        self.losses.insert(micro_batch, module.try_loss(input, target)?);
        Ok(())
    }

    /// The division by the weight of the whole step comes here, once, before the backward.
    fn root(&mut self, loss: Tensor<1>, _micro_batch: usize) -> Option<Tensor<1>> {
        loss.is_tracked().then(|| loss.div_scalar(self.total_weight))
    }

    fn send(&mut self, _micro_batch: usize, _stop: &Stop<StepError>) -> Result<(), Stopped> {
        unreachable!("lowering gives the last stage no next one")
    }

    fn receive_gradient(&mut self, _micro_batch: usize, _stop: &Stop<StepError>) -> Result<(), Stopped> {
        unreachable!("lowering gives the last stage no next one")
    }

    fn loss(&mut self) -> Option<f64> {
        // Read here, once a pass: reading a scalar waits for the device.
        Some(std::mem::take(&mut self.losses).into_values().map(|loss| loss.into_scalar::<f64>()).sum())
    }
}
