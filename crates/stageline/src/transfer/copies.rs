//! Parameters that two stages have: one owns and steps them, the other holds copies. Gradients of copies go to the owner, and
//! new values come back.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use crate::failure::stop::{Stopped, Waits};
use crate::nn::params::any_tensor::AnyTensor;
use crate::nn::params::shared::{is_trained, unify, with_value};
use crate::threads::{Receiver, Sender, bounded};
use crate::transfer::hand_over::hand_tensor;

/// Tensors of some parameters.
pub(crate) type Tensors = HashMap<ParamId, AnyTensor>;

/// The gradients of a holder's copies, of one micro-batch or step.
struct Gradients {
    of: usize,
    tensors: Tensors,
}

/// Parameters that another stage has copies of.
pub(crate) struct Owned {
    pub(crate) ids: Vec<ParamId>,
    gradients: Receiver<Gradients>,
    values: Sender<Tensors>,
    holder: Device,
}

/// Copies of another stage's parameters.
pub(crate) struct Held {
    pub(crate) ids: Vec<ParamId>,
    gradients: Sender<Gradients>,
    values: Receiver<Tensors>,
    owner: Device,
}

/// Joins an owner of these parameters to a holder, which can send gradients so many times before the owner takes any.
pub(crate) fn share(ids: Vec<ParamId>, owner: &Device, holder: &Device, ahead: usize) -> (Owned, Held) {
    let (gradient_sender, gradient_receiver) = bounded(ahead);
    let (value_sender, value_receiver) = bounded(1);
    (
        Owned { ids: ids.clone(), gradients: gradient_receiver, values: value_sender, holder: holder.clone() },
        Held { ids, gradients: gradient_sender, values: value_receiver, owner: owner.clone() },
    )
}

impl Owned {
    /// The gradients of the copies, of this micro-batch or step.
    pub(crate) fn receive(&self, of: usize, waits: &Waits) -> Result<Tensors, Stopped> {
        let received = waits.receive(&self.gradients)?;
        assert_eq!(received.of, of, "both go through micro-batches and steps in one order");
        Ok(received.tensors)
    }

    /// Gives the holder the values of these parameters.
    pub(crate) fn publish<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        let mut read = ReadValues { ids: &self.ids, holder: &self.holder, values: Tensors::new() };
        module.visit(&mut read);
        waits.send(&self.values, read.values)
    }
}

impl Held {
    /// Takes the gradients of the copies, of this micro-batch or step, from a stage's gradients, and gives them to the owner.
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

    /// Waits for the owner's values, and gives them to the copies.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        match waits.receive(&self.values) {
            Ok(values) => Ok(unify(module.map(&mut SetValues { values }))),
            Err(stopped) => Err((module, stopped)),
        }
    }

    /// Waits for them, and leaves the copies as they are.
    pub(crate) fn ignore(&self, waits: &Waits) -> Result<(), Stopped> {
        waits.receive(&self.values).map(drop)
    }
}

/// Adds up what came of copies, in this order, and adds the sum to a stage's own gradients.
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
    /// In the order in which they are added.
    received: Vec<Tensors>,
}

impl ModuleVisitor for AddGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let received = self.received.iter_mut().filter_map(|tensors| tensors.remove(&param.id));
        let Some(sum) = received.map(AnyTensor::tensor::<D>).reduce(Tensor::add) else { return };
        let sum = match self.gradients.remove::<D>(param.id) {
            // In the owner's memory.
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
