//! Where a stage's output goes: to the next stage, or into the loss.

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

/// The far side of a stage's module.
pub(crate) trait Sink<M>: Send {
    type Input: Payload;
    /// What a forward leaves for its backward.
    type Residual: Send;

    fn begin(&mut self, waits: &Waits) -> Result<(), Stopped>;
    fn forward(
        &mut self,
        module: &M,
        input: Weighted<Self::Input>,
        micro_batch: usize,
    ) -> Result<Self::Residual, BoxError>;
    fn evaluate(&mut self, module: &M, input: Weighted<Self::Input>, micro_batch: usize) -> Result<(), BoxError>;
    /// The scalar to start the backward from; `None` where no gradient comes in.
    fn root(&mut self, residual: Self::Residual, micro_batch: usize, context: &Context) -> Option<Tensor<1>>;
    /// How sound it is what the last forward of this micro-batch made.
    fn output_soundness(&self, micro_batch: usize) -> Soundness;
    /// Whether all gradients that came back for this micro-batch are finite.
    fn gradient_is_finite(&self, micro_batch: usize) -> bool;
    /// Hands its output on; so many bytes.
    fn send(&mut self, transfer: Transfer, turns: &Turns, waits: &Waits) -> Result<u64, Stopped>;
    fn receive_gradient(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped>;
    /// The losses of the pass, micro-batch by micro-batch and term by term, where they are made; on the device still.
    fn losses(&mut self) -> Vec<Tensor<1>>;
    /// Leaves the losses of the pass alone.
    fn forget(&mut self);
}

/// The sink of every stage but the last: a link.
pub(crate) struct ToNext<T> {
    downstream: Downstream<T>,
    ready: Slots<Weighted<T>>,
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

/// The sink of the last stage: the loss.
pub(crate) struct ToLoss<T> {
    feed: Receiver<Vec<T>>,
    device: Device,
    targets: Slots<T>,
    losses: BTreeMap<usize, Tensor<1>>,
}

impl<T: Payload> ToLoss<T> {
    pub(crate) fn new(feed: Receiver<Vec<T>>, device: Device) -> Self {
        Self { feed, device, targets: Slots::new(), losses: BTreeMap::new() }
    }

    fn target(&mut self, micro_batch: usize) -> T {
        place(self.targets.take(micro_batch), &self.device)
    }

    /// Keeps a loss to be reported, if it has a number for each term, and enough bits for a sum.
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
                "the loss is summed in {:?}, whose precision is too low; make it in f32: \
                 `.cast(FloatDType::F32)` what it is made from",
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

    /// The division by the weight of the whole step comes here, once, before the backward; and the scale after it.
    fn root(&mut self, loss: Tensor<1>, _micro_batch: usize, context: &Context) -> Option<Tensor<1>> {
        if !loss.is_tracked() {
            return None;
        }
        let mean = mean(loss, &context.divisor);
        Some(if context.loss_scale == 1.0 { mean } else { mean.mul_scalar(context.loss_scale) })
    }

    fn output_soundness(&self, micro_batch: usize) -> Soundness {
        // A loss that is infinite is no better than one that is NaN, even if an input was.
        let sound = self.losses.get(&micro_batch).is_none_or(|loss| tensor_is_finite(loss.clone()));
        if sound { Soundness::Finite } else { Soundness::NaN }
    }

    fn gradient_is_finite(&self, _micro_batch: usize) -> bool {
        true
    }

    fn send(&mut self, _transfer: Transfer, _turns: &Turns, _waits: &Waits) -> Result<u64, Stopped> {
        unreachable!("lowering gives the last stage no next one")
    }

    fn receive_gradient(&mut self, _micro_batch: usize, _waits: &Waits) -> Result<(), Stopped> {
        unreachable!("lowering gives the last stage no next one")
    }

    fn losses(&mut self) -> Vec<Tensor<1>> {
        std::mem::take(&mut self.losses).into_values().collect()
    }

    fn forget(&mut self) {
        self.losses.clear();
    }
}

/// The sum of the terms, each divided by its weight.
fn mean(sums: Tensor<1>, weight: &Weight) -> Tensor<1> {
    match *weight.terms() {
        [weight] => sums.div_scalar(weight),
        ref weights => {
            // A term that does not count leaves nothing, and no gradient.
            let divisors = weights.iter().map(|&weight| if weight == 0.0 { f64::INFINITY } else { weight });
            let divisors = TensorData::new(divisors.collect::<Vec<_>>(), [weights.len()]);
            let divisors = Tensor::<1>::from_data(divisors, &sums.device()).cast(FloatDType::from(sums.dtype()));
            (sums / divisors).sum()
        }
    }
}
