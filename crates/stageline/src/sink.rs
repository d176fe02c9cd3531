//! Where a stage's output goes: to the next stage, or into the loss.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use crossbeam_channel::Receiver;

use crate::error::StepError;
use crate::link::{Downstream, move_to};
use crate::payload::Payload;
use crate::runner::Pass;
use crate::slots::Slots;
use crate::stage::{BoxError, LossStage, Stage};
use crate::stop::{Stop, Stopped};
use crate::tape::{Cotangents, Leaves, track};

/// The far side of a stage's module.
pub(crate) trait Sink<M>: Send {
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

/// The sink of every stage but the last: a link.
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

impl<S: Stage> Sink<S> for ToNext<S::Output> {
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

/// The sink of the last stage: the loss.
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

impl<L: LossStage> Sink<L> for ToLoss<L::Target> {
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
