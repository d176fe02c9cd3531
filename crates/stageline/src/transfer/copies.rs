//! Copies of parameters on another stage or replica: the owner steps the parameters with its optimizer, and a holder
//! computes with copies of them.
//!
//! A holder sends the gradients of its copies to the owner, and the owner sends new values back. Tied parameters and
//! data-parallel replicas both use this exchange.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use crate::failure::stop::{Stopped, Waits};
use crate::threads::{Receiver, Sender, bounded};
use crate::transfer::hand_over::hand_tensor;
use stageline_nn::params::any_tensor::AnyTensor;
use stageline_nn::params::shared::{is_trained, unify, with_value};

/// A map from parameter ids to tensors: the gradients or the new values of parameters that two stages or replicas
/// share.
pub(crate) type Tensors = HashMap<ParamId, AnyTensor>;

/// The message in which a stage that holds copies of parameters sends the copies' gradients to the parameters' owner,
/// whose optimizer steps them.
struct Gradients {
    /// The index of the micro-batch (for tied parameters) or of the training step (for data-parallel replicas) whose
    /// gradients the message carries.
    of: usize,
    tensors: Tensors,
}

/// The owner's end of the exchange of shared parameters: the ids of the parameters that the owner's optimizer steps,
/// and the channels to one stage that holds copies of these parameters.
pub(crate) struct Owned {
    pub(crate) ids: Vec<ParamId>,
    gradients: Receiver<Gradients>,
    values: Sender<Tensors>,
    holder: Device,
}

/// The holder's end of the exchange of shared parameters: the ids of the parameters of which the holder keeps copies,
/// and the channels to the stage that owns these parameters (whose optimizer steps them).
pub(crate) struct Held {
    pub(crate) ids: Vec<ParamId>,
    gradients: Sender<Gradients>,
    values: Receiver<Tensors>,
    owner: Device,
}

/// Connects the owner of parameters (the stage whose optimizer steps them) to a holder (a stage that computes with
/// copies of them), and returns both ends of the connection. The holder can send the gradients of `ahead` micro-batches
/// or steps before the owner receives any; a further send is blocked.
pub(crate) fn share(ids: Vec<ParamId>, owner: &Device, holder: &Device, ahead: usize) -> (Owned, Held) {
    let (gradient_sender, gradient_receiver) = bounded(ahead);
    let (value_sender, value_receiver) = bounded(1);
    (
        Owned { ids: ids.clone(), gradients: gradient_receiver, values: value_sender, holder: holder.clone() },
        Held { ids, gradients: gradient_sender, values: value_receiver, owner: owner.clone() },
    )
}

impl Owned {
    /// Waits for the gradients that the stage with copies of this stage's parameters sends for one micro-batch or step,
    /// and returns these gradients. Panics if they belong to another micro-batch or step than `of`.
    pub(crate) fn receive(&self, of: usize, waits: &Waits) -> Result<Tensors, Stopped> {
        let received = waits.receive(&self.gradients)?;
        assert_eq!(received.of, of, "owner and holder go through micro-batches and steps in the same order");
        Ok(received.tensors)
    }

    /// Sends the current values of shared parameters, which this stage's optimizer steps, to the stage that holds
    /// copies of these parameters.
    pub(crate) fn publish<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        let mut read = ReadValues { ids: &self.ids, holder: &self.holder, values: Tensors::new() };
        module.visit(&mut read);
        waits.send(&self.values, read.values)
    }
}

impl Held {
    /// Removes the gradients of the parameters of which this stage holds copies from the stage's gradients for one
    /// micro-batch or step, and sends the removed gradients to the owner of the parameters, whose optimizer steps them.
    pub(crate) fn send<M: Module>(
        &self,
        module: &M,
        of: usize,
        gradients: &mut GradientsParams,
        waits: &Waits,
    ) -> Result<(), Stopped> {
        let mut take = TakeGradients { ids: &self.ids, gradients, owner: &self.owner, taken: Tensors::new() };
        module.visit(&mut take);
        let tensors = take.taken;
        waits.send(&self.gradients, Gradients { of, tensors })
    }

    /// Waits for the new values of shared parameters from the stage that owns them (whose optimizer steps them), and
    /// writes these values to this stage's copies. Returns the changed module, or the unchanged one if the pipeline
    /// stops during the wait.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        match waits.receive(&self.values) {
            Ok(values) => Ok(unify(module.map(&mut SetValues { values }))),
            Err(stopped) => Err((module, stopped)),
        }
    }

    /// Receives the new parameter values from the owner of the parameters, whose optimizer steps them, and discards
    /// these values, so that the channel is empty; this stage's copies do not change.
    pub(crate) fn ignore(&self, waits: &Waits) -> Result<(), Stopped> {
        waits.receive(&self.values).map(drop)
    }
}

/// Adds up the gradients that the owner of shared parameters (the stage whose optimizer steps them) received from all
/// holders of copies, in the order of `received`, and adds the sum to the owner's own gradients.
pub(crate) fn add<M: Module>(module: &M, gradients: &mut GradientsParams, received: Vec<Tensors>) {
    if !received.is_empty() {
        module.visit(&mut AddGradients { gradients, received });
    }
}

struct TakeGradients<'a> {
    ids: &'a [ParamId],
    gradients: &'a mut GradientsParams,
    owner: &'a Device,
    taken: Tensors,
}

impl ModuleVisitor for TakeGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.ids.contains(&param.id)
            && let Some(gradient) = self.gradients.remove::<D>(param.id)
        {
            self.taken.insert(param.id, AnyTensor::new(hand_tensor(gradient, self.owner)));
        }
    }
}

struct AddGradients<'a> {
    gradients: &'a mut GradientsParams,
    /// The gradients of shared parameters from each stage that holds copies, in the order in which the owner (the stage
    /// whose optimizer steps the parameters) adds these gradients.
    received: Vec<Tensors>,
}

impl ModuleVisitor for AddGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let received = self.received.iter_mut().filter_map(|tensors| tensors.remove(&param.id));
        let Some(sum) = received.map(AnyTensor::tensor::<D>).reduce(Tensor::add) else { return };
        let sum = match self.gradients.remove::<D>(param.id) {
            // The owner's gradient is the left operand, so the sum can reuse its memory.
            Some(own) => own + sum,
            None => sum,
        };
        self.gradients.register(param.id, sum);
    }
}

struct ReadValues<'a> {
    ids: &'a [ParamId],
    holder: &'a Device,
    values: Tensors,
}

impl ModuleVisitor for ReadValues<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.ids.contains(&param.id) && is_trained(param) {
            self.values.insert(param.id, AnyTensor::new(hand_tensor(param.val(), self.holder)));
        }
    }
}

struct SetValues {
    values: Tensors,
}

impl ModuleMapper for SetValues {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.values.get(&param.id).filter(|_| is_trained(&param)) {
            Some(value) => with_value(param, value.clone().tensor::<D>().autodiff().require_grad()),
            None => param,
        }
    }
}
