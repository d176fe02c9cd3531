//! The destination of a stage's output ([`Sink`]): the link to the next stage ([`ToNext`]), or the loss on the last
//! stage ([`ToLoss`]).

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use stageline_schedule::Transfer;

use crate::failure::stop::{Stopped, Waits};
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::model::stage::{LossStage, Stage};
use crate::runner::pass::Context;
use crate::runner::slots::Slots;
use crate::threads::Receiver;
use crate::threads::failure::BoxError;
use crate::transfer::hand_over::place;
use crate::transfer::leaves::{LeafGradients, Leaves, track};
use crate::transfer::link::{Downstream, Weighted};
use crate::transfer::order::Turns;
use crate::update::finite::{Soundness, soundness, tensor_is_finite};

/// The output side of a stage with module `M`: it runs the module's forward, sends the output or computes the loss, and
/// starts the backward.
pub(crate) trait Sink<M>: Send {
    /// The type of the input of the stage's module.
    type Input: Payload;
    /// The type of the part of a forward's autodiff graph from which the backward starts.
    type Residual: Send;

    /// Prepares the output side for a pass; on the last stage, receives the targets of the batch from the caller.
    fn begin(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Runs the training forward of one micro-batch, and returns the part of the autodiff graph from which the backward
    /// starts.
    fn forward(
        &mut self,
        module: &M,
        input: Weighted<Self::Input>,
        micro_batch: usize,
    ) -> Result<Self::Residual, BoxError>;
    /// Runs the forward of one micro-batch for an evaluation, without an autodiff graph.
    fn evaluate(&mut self, module: &M, input: Weighted<Self::Input>, micro_batch: usize) -> Result<(), BoxError>;
    /// Returns the scalar tensor from which the backward of a micro-batch starts; `None` if no gradient reaches this
    /// stage.
    fn root(&mut self, residual: Self::Residual, micro_batch: usize, context: &Context) -> Option<Tensor<1>>;
    /// Returns the worst kind of value in the result of the last forward of this micro-batch: NaN if there is one, else
    /// infinite, else finite.
    fn output_soundness(&self, micro_batch: usize) -> Soundness;
    /// Whether all gradients of the stage's output that the next stage sent for this micro-batch are finite.
    fn gradient_is_finite(&self, micro_batch: usize) -> bool;
    /// Sends the output of a micro-batch to the next stage, and returns the number of bytes sent.
    fn send(&mut self, transfer: Transfer, turns: &Turns, waits: &Waits) -> Result<u64, Stopped>;
    /// Receives the gradient of the stage's output for one micro-batch from the next stage.
    fn receive_gradient(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped>;
    /// Returns the losses of the pass on the last stage, one tensor of loss terms for each micro-batch, still on the
    /// device. Other stages return an empty list.
    fn losses(&mut self) -> Vec<Tensor<1>>;
    /// Discards the losses of a pass whose step is discarded.
    fn forget(&mut self);
}

/// The output side of every stage except the last: the link that sends the stage's output to the next stage.
pub(crate) struct ToNext<T> {
    downstream: Downstream<T>,
    /// The outputs of micro-batches that the stage has computed and not sent yet.
    ready: Slots<Weighted<T>>,
    /// The gradients of the stage's outputs that have been received and that no backward has used yet.
    gradients: Slots<LeafGradients>,
}

impl<T> ToNext<T> {
    pub(crate) fn new(downstream: Downstream<T>) -> Self {
        Self { downstream, ready: Slots::new(), gradients: Slots::new() }
    }
}

impl<S: Stage> Sink<S> for ToNext<S::Output> {
    type Input = S::Input;
    type Residual = Leaves;

    fn begin(&mut self, _waits: &Waits) -> Result<(), Stopped> {
        Ok(())
    }

    fn forward(&mut self, module: &S, input: Weighted<S::Input>, micro_batch: usize) -> Result<Leaves, BoxError> {
        let (payload, leaves) = Leaves::of_output(module.try_forward(input.payload)?);
        self.ready.put(micro_batch, Weighted { payload, weight: input.weight });
        Ok(leaves)
    }

    fn evaluate(&mut self, module: &S, input: Weighted<S::Input>, micro_batch: usize) -> Result<(), BoxError> {
        let payload = module.try_forward(input.payload)?;
        self.ready.put(micro_batch, Weighted { payload, weight: input.weight });
        Ok(())
    }

    fn root(&mut self, leaves: Leaves, micro_batch: usize, _context: &Context) -> Option<Tensor<1>> {
        leaves.root(self.gradients.take(micro_batch))
    }

    fn output_soundness(&self, micro_batch: usize) -> Soundness {
        soundness(&self.ready.get(micro_batch).payload)
    }

    fn gradient_is_finite(&self, micro_batch: usize) -> bool {
        self.gradients.get(micro_batch).is_finite()
    }

    fn send(&mut self, transfer: Transfer, turns: &Turns, waits: &Waits) -> Result<u64, Stopped> {
        self.downstream.send(waits, turns, transfer, self.ready.take(transfer.micro_batch))
    }

    fn receive_gradient(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        self.gradients.put(micro_batch, self.downstream.receive_gradient(waits, micro_batch)?);
        Ok(())
    }

    fn losses(&mut self) -> Vec<Tensor<1>> {
        Vec::new()
    }

    fn forget(&mut self) {}
}

/// The output side of the last stage, which computes the loss from the targets.
pub(crate) struct ToLoss<T> {
    /// The channel on which the caller sends the targets of all micro-batches, one message for each pass.
    feed: Receiver<Vec<T>>,
    device: Device,
    /// The targets of the current pass that no forward has used yet.
    targets: Slots<T>,
    /// The losses of the current pass by micro-batch, without their autodiff graphs.
    losses: BTreeMap<usize, Tensor<1>>,
}

impl<T: Payload> ToLoss<T> {
    pub(crate) fn new(feed: Receiver<Vec<T>>, device: Device) -> Self {
        Self { feed, device, targets: Slots::new(), losses: BTreeMap::new() }
    }

    /// Takes the target of a micro-batch, moves it to the last stage's device and returns it.
    fn target(&mut self, micro_batch: usize) -> T {
        place(self.targets.take(micro_batch), &self.device)
    }

    /// Keeps the loss of a micro-batch for the step's report. Returns an error if the loss does not have one number for
    /// each term of its weight, or if its element type (BF16 or F16) is too imprecise for a sum.
    fn note(&mut self, micro_batch: usize, weight: &Weight, loss: &Tensor<1>) -> Result<(), BoxError> {
        let ([numbers], terms) = (loss.dims(), weight.terms().len());
        if numbers != terms {
            return Err(format!(
                "the loss has shape [{numbers}]; return the sum over the targets for each number in its weight, of shape \
                 [{terms}]"
            )
            .into());
        }
        if matches!(loss.dtype(), DType::BF16 | DType::F16) {
            return Err(format!(
                "the loss is summed in {:?}, whose precision is too low; compute it in f32: cast the tensors that it is \
                 computed from with `.cast(FloatDType::F32)`",
                loss.dtype()
            )
            .into());
        }
        self.losses.insert(micro_batch, loss.clone().inner());
        Ok(())
    }
}

impl<L: LossStage> Sink<L> for ToLoss<L::Target> {
    type Input = L::Input;
    type Residual = Tensor<1>;

    fn begin(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.targets = waits.receive(&self.feed)?.into_iter().collect();
        Ok(())
    }

    fn forward(&mut self, module: &L, input: Weighted<L::Input>, micro_batch: usize) -> Result<Tensor<1>, BoxError> {
        let target = track(self.target(micro_batch));
        let loss = module.try_loss(input.payload, target)?;
        self.note(micro_batch, &input.weight, &loss)?;
        Ok(loss)
    }

    fn evaluate(&mut self, module: &L, input: Weighted<L::Input>, micro_batch: usize) -> Result<(), BoxError> {
        let target = self.target(micro_batch);
        let loss = module.try_loss(input.payload, target)?;
        self.note(micro_batch, &input.weight, &loss)
    }

    /// Divides the loss sum of a micro-batch by the loss weight of the whole step, and multiplies the quotient by the
    /// loss scale. The loss is divided nowhere else.
    fn root(&mut self, loss: Tensor<1>, _micro_batch: usize, context: &Context) -> Option<Tensor<1>> {
        if !loss.is_tracked() {
            return None;
        }
        let mean = mean(loss, &context.divisor);
        Some(if context.loss_scale == 1.0 { mean } else { mean.mul_scalar(context.loss_scale) })
    }

    fn output_soundness(&self, micro_batch: usize) -> Soundness {
        // An infinite loss is as bad as NaN, even if the stage's input was already infinite.
        let sound = self.losses.get(&micro_batch).is_none_or(|loss| tensor_is_finite(loss.clone()));
        if sound { Soundness::Finite } else { Soundness::NaN }
    }

    fn gradient_is_finite(&self, _micro_batch: usize) -> bool {
        true
    }

    fn send(&mut self, _transfer: Transfer, _turns: &Turns, _waits: &Waits) -> Result<u64, Stopped> {
        unreachable!("the plan has no transfer behind the last stage")
    }

    fn receive_gradient(&mut self, _micro_batch: usize, _waits: &Waits) -> Result<(), Stopped> {
        unreachable!("the plan has no transfer behind the last stage")
    }

    fn losses(&mut self) -> Vec<Tensor<1>> {
        std::mem::take(&mut self.losses).into_values().collect()
    }

    fn forget(&mut self) {
        self.losses.clear();
    }
}

/// Returns the mean loss: the sum of the loss terms, each divided by the term's weight.
fn mean(sums: Tensor<1>, weight: &Weight) -> Tensor<1> {
    match *weight.terms() {
        [weight] => sums.div_scalar(weight),
        ref weights => {
            // A term without weight becomes 0, and has no gradient.
            let divisors = weights.iter().map(|&weight| if weight == 0.0 { f64::INFINITY } else { weight });
            let divisors = TensorData::new(divisors.collect::<Vec<_>>(), [weights.len()]);
            let divisors = Tensor::<1>::from_data(divisors, &sums.device()).cast(FloatDType::from(sums.dtype()));
            (sums / divisors).sum()
        }
    }
}
