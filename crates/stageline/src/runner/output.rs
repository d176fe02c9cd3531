//! The output side of a stage ([`Sink`]): the connection to the next stage ([`ToNext`]), or, on the last stage, the
//! loss and the outputs for the caller ([`ToCaller`]).

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use stageline_schedule::Transfer;

use crate::failure::stop::{Stopped, Waits};
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::model::stage::{LossStage, Stage};
use crate::runner::neighbour::Neighbour;
use crate::runner::pass::{Context, Pass};
use crate::runner::slots::Slots;
use crate::threads::failure::BoxError;
use crate::threads::{Receiver, Sender};
use crate::transfer::hand_over::{hand_over, place};
use crate::transfer::leaves::{LeafGradients, Leaves, detach, track};
use crate::transfer::link::{Downstream, Weighted};
use crate::transfer::order::Turns;
use crate::update::not_finite::{Soundness, soundness, tensor_is_finite};

/// The output side of a stage with module `M`. It runs the forward pass, stores the output for the next stage or
/// computes the loss, and provides the tensor from which the backward pass starts.
pub(crate) trait Sink<M>: Send {
    type Input: Payload;
    /// The type of the tensors that a forward pass retains for starting the micro-batch's backward pass: the float
    /// tensors of the stage's output, or the loss on the last stage.
    type Residual: Send;

    /// Prepares the output side of a stage for the next step, evaluation or inference. The last stage receives the
    /// batch's targets from the caller, except in inference.
    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped>;
    /// Runs one micro-batch's forward pass in training. Returns the tensors from which the backward pass starts: the
    /// float tensors of the stage's output, or the loss on the last stage.
    fn forward(
        &mut self,
        module: &M,
        input: Weighted<Self::Input>,
        micro_batch: usize,
    ) -> Result<Self::Residual, BoxError>;
    /// Runs one micro-batch's forward pass without an autodiff graph, for evaluation or inference. Stores the output
    /// for the next stage or the caller. In an evaluation, the last stage stores the loss and the metrics instead.
    fn evaluate(&mut self, module: &M, input: Weighted<Self::Input>, micro_batch: usize) -> Result<(), BoxError>;
    /// Returns the scalar from which a micro-batch's backward pass starts. `residual` is the result of its forward
    /// pass. Returns `None` if the stage received no gradient of its output, or if autodiff does not track the output
    /// (on the last stage: the loss).
    fn root(&mut self, residual: Self::Residual, micro_batch: usize, context: &Context) -> Option<Tensor<1>>;
    /// Returns the worst kind of value (finite, infinite or NaN) in the stage's output for one micro-batch. The last
    /// stage checks the loss instead, and counts an infinite loss as NaN.
    fn output_soundness(&self, micro_batch: usize) -> Soundness;
    /// Whether all gradients that the next stage sent for one micro-batch are finite; always true on the last stage.
    fn gradient_is_finite(&self, micro_batch: usize) -> bool;
    /// Returns the stage's connection to the next stage, for sending activations and receiving gradients; `None` on the
    /// last stage.
    fn neighbour(&mut self) -> Option<&mut dyn Neighbour>;
    /// Ends a step, evaluation or inference on the output side of a stage. The last stage returns its losses and
    /// metrics, and in inference sends its outputs to the caller.
    fn finish(&mut self, waits: &Waits) -> Result<Results, Stopped>;
    /// Discards the losses and metrics of the current training step, because the step is discarded and begins again.
    fn forget(&mut self);
}

/// The losses and metrics of a step or an evaluation, still on the device: one tensor for each micro-batch. Only the
/// last stage has any.
#[derive(Default)]
pub(crate) struct Results {
    /// The loss of each micro-batch, by the micro-batch's index: a tensor of shape `[terms]`, where each loss term is
    /// summed over the micro-batch's targets.
    pub(crate) losses: BTreeMap<usize, Tensor<1>>,
    /// The metrics of each micro-batch, by the micro-batch's index: a tensor of shape `[metrics]`, where each metric is
    /// summed over the micro-batch's targets. Empty if the last stage has no metrics.
    pub(crate) metrics: BTreeMap<usize, Tensor<1>>,
}

/// The output side of every stage except the last: the connection that sends the stage's output to the next stage.
pub(crate) struct ToNext<T> {
    downstream: Downstream<T>,
    /// This stage's computed outputs that have not yet been sent to the next stage, by micro-batch.
    ready: Slots<Weighted<T>>,
    /// The gradients of this stage's outputs that the next stage has sent and no backward pass has used yet, by
    /// micro-batch.
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

    fn begin(&mut self, _pass: &Pass, _waits: &Waits) -> Result<(), Stopped> {
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

    fn neighbour(&mut self) -> Option<&mut dyn Neighbour> {
        Some(self)
    }

    fn finish(&mut self, _waits: &Waits) -> Result<Results, Stopped> {
        Ok(Results::default())
    }

    fn forget(&mut self) {}
}

impl<T: Payload> Neighbour for ToNext<T> {
    fn receive(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        self.gradients.put(micro_batch, self.downstream.receive_gradient(waits, micro_batch)?);
        Ok(())
    }

    fn send(&mut self, transfer: Transfer, turns: &Turns, waits: &Waits) -> Result<u64, Stopped> {
        self.downstream.send(waits, turns, transfer, self.ready.take(transfer.micro_batch))
    }
}

/// The last stage's channels from and to the caller: for a batch's targets, and for the outputs of inference. Each
/// message contains all micro-batches.
pub(crate) struct CallerChannels<Out, Target> {
    pub(crate) targets: Receiver<Vec<Target>>,
    pub(crate) outputs: Sender<Vec<Out>>,
}

/// The kind of results that the last stage currently computes: losses and metrics, or outputs for the caller.
enum Wanted<Out, Target> {
    /// Compute losses and metrics. The value contains the targets of the micro-batches whose forward pass has not yet
    /// run.
    Losses(Slots<Target>),
    /// Compute outputs for the caller (inference). The value contains the outputs computed so far, by micro-batch
    /// index.
    Outputs(BTreeMap<usize, Out>),
}

/// The output side of the last stage, which computes the loss from the targets, or returns its outputs to the caller.
pub(crate) struct ToCaller<Out, Target> {
    channels: CallerChannels<Out, Target>,
    device: Device,
    wanted: Wanted<Out, Target>,
    results: Results,
}

impl<Out: Payload, Target: Payload> ToCaller<Out, Target> {
    pub(crate) fn new(channels: CallerChannels<Out, Target>, device: Device) -> Self {
        Self { channels, device, wanted: Wanted::Losses(Slots::new()), results: Results::default() }
    }

    /// Stores a micro-batch's loss for the step's report. Returns an error if the loss does not have one element for
    /// each loss term in `weight`, or if its dtype is BF16 or F16, which are too imprecise for a sum.
    fn note_loss(&mut self, micro_batch: usize, weight: &Weight, loss: &Tensor<1>) -> Result<(), BoxError> {
        let ([numbers], terms) = (loss.dims(), weight.terms().len());
        if numbers != terms {
            return Err(format!(
                "the loss has shape [{numbers}]; return the sum over the targets for each number in its weight, of shape \
                 [{terms}]"
            )
            .into());
        }
        require_f32("loss", loss)?;
        self.results.losses.insert(micro_batch, loss.clone().inner());
        Ok(())
    }

    /// Computes a micro-batch's loss from the stage's output: one element for each loss term, summed over the targets.
    /// Also computes and stores the user's metrics, if there are any. Returns an error if the metrics have a wrong
    /// shape or the dtype BF16 or F16, or if the user's loss function fails.
    fn score<L>(&mut self, module: &L, output: Out, target: Target, micro_batch: usize) -> Result<Tensor<1>, BoxError>
    where
        L: LossStage<Output = Out, Target = Target>,
    {
        if !L::METRICS.is_empty() {
            let sums = module.metrics(detach(output.clone()), detach(target.clone()));
            let ([found], names) = (sums.dims(), L::METRICS);
            if found != names.len() {
                return Err(format!(
                    "`metrics` returned shape [{found}] for the metrics {}; return one sum for each, of shape [{}]",
                    names.join(", "),
                    names.len()
                )
                .into());
            }
            require_f32("sum of a metric", &sums)?;
            self.results.metrics.insert(micro_batch, sums.inner());
        }
        module.try_loss(output, target)
    }

    /// Removes and returns a micro-batch's target, moved to the last stage's device; returns `None` in inference.
    fn target(&mut self, micro_batch: usize) -> Option<Target> {
        match &mut self.wanted {
            Wanted::Losses(targets) => Some(place(targets.take(micro_batch), &self.device)),
            Wanted::Outputs(_) => None,
        }
    }
}

/// Returns an error if `sum`, a loss or metric summed over targets, has the dtype BF16 or F16, which are too imprecise
/// for sums. `what` names the sum in the error message.
fn require_f32(what: &str, sum: &Tensor<1>) -> Result<(), BoxError> {
    if matches!(sum.dtype(), DType::BF16 | DType::F16) {
        return Err(format!(
            "the {what} is summed in {:?}, whose precision is too low; compute it in f32: cast the tensors that it is \
             computed from with `.cast(FloatDType::F32)`",
            sum.dtype()
        )
        .into());
    }
    Ok(())
}

impl<L: LossStage> Sink<L> for ToCaller<L::Output, L::Target> {
    type Input = L::Input;
    type Residual = Tensor<1>;

    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped> {
        self.wanted = match pass {
            Pass::Infer(_) => Wanted::Outputs(BTreeMap::new()),
            _ => Wanted::Losses(waits.receive(&self.channels.targets)?.into_iter().collect()),
        };
        Ok(())
    }

    fn forward(&mut self, module: &L, input: Weighted<L::Input>, micro_batch: usize) -> Result<Tensor<1>, BoxError> {
        let target = self.target(micro_batch).expect("a training pass has targets");
        let output = module.try_forward(input.payload)?;
        let loss = self.score(module, output, track(target), micro_batch)?;
        self.note_loss(micro_batch, &input.weight, &loss)?;
        Ok(loss)
    }

    fn evaluate(&mut self, module: &L, input: Weighted<L::Input>, micro_batch: usize) -> Result<(), BoxError> {
        let output = module.try_forward(input.payload)?;
        match self.target(micro_batch) {
            Some(target) => {
                let loss = self.score(module, output, target, micro_batch)?;
                self.note_loss(micro_batch, &input.weight, &loss)?;
            }
            None => {
                let output = hand_over(output, &self.device);
                if let Wanted::Outputs(outputs) = &mut self.wanted {
                    outputs.insert(micro_batch, output);
                }
            }
        }
        Ok(())
    }

    /// Returns `loss_scale * sum(loss / divisor)`, the scalar from which the last stage's backward pass of a
    /// micro-batch starts. `loss` has one sum over targets for each loss term. Returns `None` if autodiff does not
    /// track the loss.
    fn root(&mut self, loss: Tensor<1>, _micro_batch: usize, context: &Context) -> Option<Tensor<1>> {
        if !loss.is_tracked() {
            return None;
        }
        let mean = mean(loss, &context.divisor);
        Some(if context.loss_scale == 1.0 { mean } else { mean.mul_scalar(context.loss_scale) })
    }

    fn output_soundness(&self, micro_batch: usize) -> Soundness {
        // An infinite loss counts as NaN, so that the stage is reported even if its input was already infinite.
        let sound = self.results.losses.get(&micro_batch).is_none_or(|loss| tensor_is_finite(loss.clone()));
        if sound { Soundness::Finite } else { Soundness::NaN }
    }

    fn gradient_is_finite(&self, _micro_batch: usize) -> bool {
        true
    }

    fn neighbour(&mut self) -> Option<&mut dyn Neighbour> {
        None
    }

    fn finish(&mut self, waits: &Waits) -> Result<Results, Stopped> {
        if let Wanted::Outputs(outputs) = &mut self.wanted {
            let outputs = std::mem::take(outputs).into_values().collect();
            waits.send(&self.channels.outputs, outputs)?;
        }
        Ok(std::mem::take(&mut self.results))
    }

    fn forget(&mut self) {
        self.results = Results::default();
    }
}

/// Returns `sum(sums / weight)`, the sum of all loss terms' means, as a tensor of shape `[1]`. With several terms, a
/// term of weight 0 contributes 0. A single term of weight 0 is divided by 0, so the result is not finite.
fn mean(sums: Tensor<1>, weight: &Weight) -> Tensor<1> {
    match *weight.terms() {
        [weight] => sums.div_scalar(weight),
        ref weights => {
            // Dividing by infinity gives 0 and no gradient.
            let divisors = weights.iter().map(|&weight| if weight == 0.0 { f64::INFINITY } else { weight });
            let divisors = TensorData::new(divisors.collect::<Vec<_>>(), [weights.len()]);
            let divisors = Tensor::<1>::from_data(divisors, &sums.device()).cast(FloatDType::from(sums.dtype()));
            (sums / divisors).sum()
        }
    }
}
