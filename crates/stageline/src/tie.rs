//! Parameters that several stages have, such as an embedding that is also the output layer.
//!
//! The first stage that has such a parameter owns it; the others hold copies. The gradient of a copy joins the owner's for
//! the same micro-batch, before these are added up over the micro-batches: so the sum is the one of a single graph, to the bit
//! where no stage but one uses the parameter more than once. Only the owner steps, and gives the copies its new value.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use crate::erased::Erased;
use crate::placing::place_tensor;
use crate::stop::{Stopped, Waits};
use crate::threads::{Receiver, Sender, bounded};
use crate::unify::{is_trained, unify, with_value};

/// Tensors of some parameters.
type Tensors = HashMap<ParamId, Erased>;

/// The gradients of a holder's copies for one micro-batch.
struct Gradients {
    micro_batch: usize,
    tensors: Tensors,
}

/// What a stage shares with others.
#[derive(Default)]
pub(crate) struct Ties {
    owned: Vec<Owned>,
    held: Vec<Held>,
}

/// Parameters that another stage has copies of.
struct Owned {
    ids: Vec<ParamId>,
    gradients: Receiver<Gradients>,
    values: Sender<Tensors>,
    holder: Device,
}

/// Copies of another stage's parameters.
struct Held {
    ids: Vec<ParamId>,
    gradients: Sender<Gradients>,
    values: Receiver<Tensors>,
    owner: Device,
}

/// Ties these parameters of stage `owner` to the copies of stage `holder`.
pub(crate) fn tie(
    ties: &mut [Ties],
    devices: &[Device],
    (owner, holder): (usize, usize),
    ids: Vec<ParamId>,
    micro_batches: usize,
) {
    // A holder's backwards come before the owner's, so nobody waits, whatever the schedule.
    let (gradient_sender, gradient_receiver) = bounded(micro_batches);
    let (value_sender, value_receiver) = bounded(1);
    ties[owner].owned.push(Owned {
        ids: ids.clone(),
        gradients: gradient_receiver,
        values: value_sender,
        holder: devices[holder].clone(),
    });
    ties[holder].held.push(Held {
        ids,
        gradients: gradient_sender,
        values: value_receiver,
        owner: devices[owner].clone(),
    });
}

impl Ties {
    /// The gradients that stay with this stage: without those of copies, which go to their owners, and with those that
    /// come from holders.
    pub(crate) fn exchange<M: Module>(
        &self,
        module: &M,
        micro_batch: usize,
        mut gradients: GradientsParams,
        waits: &Waits,
    ) -> Result<GradientsParams, Stopped> {
        for Held { ids, gradients: sender, owner, .. } in &self.held {
            let mut take = TakeGradients { ids, gradients: &mut gradients, owner, taken: Tensors::new() };
            module.visit(&mut take);
            let tensors = take.taken;
            waits.send(sender, Gradients { micro_batch, tensors })?;
        }
        // The last stage first, as a single graph adds them up.
        let mut received = Vec::with_capacity(self.owned.len());
        for Owned { gradients: receiver, .. } in self.owned.iter().rev() {
            let Gradients { micro_batch: of, tensors } = waits.receive(receiver)?;
            assert_eq!(of, micro_batch, "all stages of a checked plan backward in one order");
            received.push(tensors);
        }
        if !received.is_empty() {
            module.visit(&mut AddGradients { gradients: &mut gradients, received });
        }
        Ok(gradients)
    }

    /// Gives the holders the values of this stage's parameters.
    pub(crate) fn publish<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        for Owned { ids, values, holder, .. } in &self.owned {
            let mut read = ReadValues { ids, holder, values: Tensors::new() };
            module.visit(&mut read);
            waits.send(values, read.values)?;
        }
        Ok(())
    }

    /// Waits for the owners' values, and leaves the copies as they are.
    pub(crate) fn ignore(&self, waits: &Waits) -> Result<(), Stopped> {
        self.held.iter().try_for_each(|held| waits.receive(&held.values).map(drop))
    }

    /// Whether this parameter is a copy of another stage's.
    pub(crate) fn holds(&self, id: ParamId) -> bool {
        self.held.iter().any(|held| held.ids.contains(&id))
    }

    /// The parameters that this stage shares with others.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ParamId> {
        let owned = self.owned.iter().flat_map(|owned| &owned.ids);
        owned.chain(self.held.iter().flat_map(|held| &held.ids)).copied()
    }

    /// Whether there are copies here that follow an owner.
    pub(crate) fn follows(&self) -> bool {
        !self.held.is_empty()
    }

    /// Waits for the owners' values, and gives them to the copies.
    pub(crate) fn follow<M: Module>(&self, mut module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        for Held { values, .. } in &self.held {
            module = match waits.receive(values) {
                Ok(values) => unify(module.map(&mut SetValues { values })),
                Err(stopped) => return Err((module, stopped)),
            };
        }
        Ok(module)
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
            self.taken.insert(param.id, Erased::new(place_tensor(gradient, self.owner)));
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
        let Some(sum) = received.map(Erased::tensor::<D>).reduce(Tensor::add) else { return };
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
            self.values.insert(param.id, Erased::new(place_tensor(param.val(), self.holder)));
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
