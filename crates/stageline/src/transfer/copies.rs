//! Copies of parameters on another stage or replica: the owner steps the parameters, a holder computes with copies.
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

/// Gradients or values by parameter.
pub(crate) type Tensors = HashMap<ParamId, AnyTensor>;

/// A message from a holder to its owner: the gradients of its copies.
struct Gradients {
    /// The micro-batch (tied parameters) or the step (replicas) to which the gradients belong.
    of: usize,
    tensors: Tensors,
}

/// The owner's end of an exchange: the parameters that it steps, and the channels to one holder of copies.
pub(crate) struct Owned {
    pub(crate) ids: Vec<ParamId>,
    gradients: Receiver<Gradients>,
    values: Sender<Tensors>,
    holder: Device,
}

/// The holder's end of an exchange: the copies that it keeps, and the channels to their owner.
pub(crate) struct Held {
    pub(crate) ids: Vec<ParamId>,
    gradients: Sender<Gradients>,
    values: Receiver<Tensors>,
    owner: Device,
}

/// Connects an owner of parameters to a holder of copies; the holder can send gradients `ahead` times before the owner
/// receives any.
pub(crate) fn share(ids: Vec<ParamId>, owner: &Device, holder: &Device, ahead: usize) -> (Owned, Held) {
    let (gradient_sender, gradient_receiver) = bounded(ahead);
    let (value_sender, value_receiver) = bounded(1);
    (
        Owned { ids: ids.clone(), gradients: gradient_receiver, values: value_sender, holder: holder.clone() },
        Held { ids, gradients: gradient_sender, values: value_receiver, owner: owner.clone() },
    )
}

impl Owned {
    /// Waits for the gradients of the holder's copies for one micro-batch or step.
    pub(crate) fn receive(&self, of: usize, waits: &Waits) -> Result<Tensors, Stopped> {
        let received = waits.receive(&self.gradients)?;
        assert_eq!(received.of, of, "owner and holder go through micro-batches and steps in the same order");
        Ok(received.tensors)
    }

    /// Sends the holder the current values of the owned parameters.
    pub(crate) fn publish<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        let mut read = ReadValues { ids: &self.ids, holder: &self.holder, values: Tensors::new() };
        module.visit(&mut read);
        waits.send(&self.values, read.values)
    }
}

impl Held {
    /// Removes the gradients of the copies from a stage's gradients for one micro-batch or step, and sends them to the
    /// owner.
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

    /// Waits for the owner's new values and writes them to the copies.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        match waits.receive(&self.values) {
            Ok(values) => Ok(unify(module.map(&mut SetValues { values }))),
            Err(stopped) => Err((module, stopped)),
        }
    }

    /// Receives the owner's new values and discards them, so that the channel is empty; the copies stay as they are.
    pub(crate) fn ignore(&self, waits: &Waits) -> Result<(), Stopped> {
        waits.receive(&self.values).map(drop)
    }
}

/// Adds up the gradients received from holders, in the order given, and adds the sum to a stage's own gradients.
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
    /// The gradients from each holder, in the order in which they are added.
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
