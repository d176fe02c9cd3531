//! Shared parameters: the owner, whose optimizer updates them, and the holders, other stages or replicas that compute
//! with copies.
//!
//! A holder sends the gradients of its copies to the owner, and the owner sends new values back. Tied parameters and
//! data-parallel replicas both use this exchange.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use crate::failure::stop::{Stopped, Waits};
use crate::threads::{Receiver, Sender, bounded};
use crate::transfer::hand_over::hand_tensor;
use stageline_nn::params::{AnyTensor, is_trained, map_floats, unify, visit_floats};

/// The gradients or new values of parameters that two stages share, by parameter id.
pub(crate) type Tensors = HashMap<ParamId, AnyTensor>;

/// A message with gradients of shared parameters, from a stage with copies of the parameters to the stage whose
/// optimizer updates them.
struct Gradients {
    /// Zero-based index of the micro-batch whose gradients this message carries. In messages between data-parallel
    /// replicas, the number of the training step.
    of: usize,
    tensors: Tensors,
}

/// The owner's end of a connection for shared parameters: it receives gradients from one stage with copies, and sends
/// back new values. The owner is the stage whose optimizer updates the parameters.
pub(crate) struct Owned {
    pub(crate) ids: Vec<ParamId>,
    gradients: Receiver<Gradients>,
    values: Sender<Tensors>,
    holder: Device,
}

/// The holder's end of a connection for shared parameters: it sends gradients to the owner, and receives new values.
/// The holder is a stage with copies; the owner is the stage whose optimizer updates the parameters.
pub(crate) struct Held {
    pub(crate) ids: Vec<ParamId>,
    gradients: Sender<Gradients>,
    values: Receiver<Tensors>,
    owner: Device,
}

/// Connects the owner of the shared parameters `ids` (the stage that updates them) to a holder (a stage with copies),
/// and returns both ends. `owner` and `holder` are the stages' devices. The holder can send gradients for `ahead`
/// micro-batches or steps before the owner receives any. A further send blocks.
pub(crate) fn share(ids: Vec<ParamId>, owner: &Device, holder: &Device, ahead: usize) -> (Owned, Held) {
    let (gradient_sender, gradient_receiver) = bounded(ahead);
    let (value_sender, value_receiver) = bounded(1);
    (
        Owned { ids: ids.clone(), gradients: gradient_receiver, values: value_sender, holder: holder.clone() },
        Held { ids, gradients: gradient_sender, values: value_receiver, owner: owner.clone() },
    )
}

impl Owned {
    /// Waits for the gradients of shared parameters from the stage with copies of them. `of` is the expected index of
    /// the micro-batch (or, between replicas, the step). Panics if the message has another index.
    pub(crate) fn receive(&self, of: usize, waits: &Waits) -> Result<Tensors, Stopped> {
        let received = waits.receive(&self.gradients)?;
        assert_eq!(received.of, of, "owner and holder go through micro-batches and steps in the same order");
        Ok(received.tensors)
    }

    /// Sends the current values of shared parameters from the owner's `module` to the stage with copies of them.
    pub(crate) fn publish<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        waits.send(&self.values, collect(module, &self.ids, None, &self.holder))
    }
}

impl Held {
    /// Removes the gradients of this stage's parameter copies from `gradients`, and sends them to the stage whose
    /// optimizer updates these parameters. `of` is the index of their micro-batch (or, between replicas, step).
    pub(crate) fn send<M: Module>(
        &self,
        module: &M,
        of: usize,
        gradients: &mut GradientsParams,
        waits: &Waits,
    ) -> Result<(), Stopped> {
        let tensors = collect(module, &self.ids, Some(gradients), &self.owner);
        waits.send(&self.gradients, Gradients { of, tensors })
    }

    /// Waits for the new values of shared parameters, and writes them to this stage's copies. Returns the changed
    /// module. If the pipeline stops during the wait, the error contains the unchanged module.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        match waits.receive(&self.values) {
            Ok(values) => Ok(unify(map_floats(module, |param| {
                let value = values.get(&param.id()).filter(|_| param.is_trained());
                value.map(|value| value.clone().leaf(true))
            }))),
            Err(stopped) => Err((module, stopped)),
        }
    }

    /// Receives and discards the values of shared parameters that their owner sends in a mispredicted step (one for
    /// which stages assumed a wrong verdict: step the optimizers, or skip). This empties the channel and leaves this
    /// stage's copies unchanged.
    pub(crate) fn ignore(&self, waits: &Waits) -> Result<(), Stopped> {
        waits.receive(&self.values).map(drop)
    }
}

/// Adds the gradients `received` from stages with copies of shared parameters to `gradients`, this stage's own. For
/// each parameter, the received gradients are first added to each other, in the order of `received`.
pub(crate) fn add<M: Module>(module: &M, gradients: &mut GradientsParams, mut received: Vec<Tensors>) {
    if received.is_empty() {
        return;
    }
    visit_floats(module, |param| {
        let received = received.iter_mut().filter_map(|tensors| tensors.remove(&param.id()));
        let Some(sum) = received.map(AnyTensor::unranked).reduce(Tensor::add) else { return };
        let sum = match param.take_gradient(gradients) {
            // The owner's own gradient is the left operand, so that the sum can reuse its memory.
            Some(own) => own.unranked() + sum,
            None => sum,
        };
        param.put_gradient(gradients, AnyTensor::new(sum));
    });
}

/// Collects one tensor for each of the module's parameters `ids`, moved to the device `to`. With `gradients`, removes
/// and returns the parameters' gradients; parameters without a gradient are left out. Without `gradients`, returns the
/// values of the trainable parameters.
fn collect<M: Module>(module: &M, ids: &[ParamId], gradients: Option<&mut GradientsParams>, to: &Device) -> Tensors {
    let mut collect = Collect { ids, gradients, to, tensors: Tensors::new() };
    module.visit(&mut collect);
    collect.tensors
}

struct Collect<'a> {
    ids: &'a [ParamId],
    gradients: Option<&'a mut GradientsParams>,
    to: &'a Device,
    tensors: Tensors,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.ids.contains(&param.id) {
            return;
        }
        let tensor = match &mut self.gradients {
            Some(gradients) => gradients.remove::<D>(param.id),
            None => is_trained(param).then(|| param.val()),
        };
        if let Some(tensor) = tensor {
            self.tensors.insert(param.id, AnyTensor::new(hand_tensor(tensor, self.to)));
        }
    }
}
