//! Tied parameters: parameters that several stages share, such as an embedding that is also the output layer.
//!
//! The first stage that has such a parameter owns it; the others hold copies. The gradient of a copy is added to the
//! owner's gradient of the same micro-batch before gradients are summed over the micro-batches. The sum therefore
//! equals that of an unpartitioned model, bit for bit if at most one stage uses the parameter more than once. Only the
//! owner updates the parameter, and sends its new value to the copies. In a lower precision the gradients of one
//! micro-batch are added in that precision, as in an unpartitioned model, and widened to f32 afterwards.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::copies::{Held, Owned, add, share};

/// One stage's tied parameters (shared with other stages): those that its own optimizer updates, and its copies of
/// parameters that other stages update.
#[derive(Default)]
pub(crate) struct Ties {
    owned: Vec<Owned>,
    held: Vec<Held>,
}

/// Connects two stages that share the tied parameters `ids`: the stage `owner`, whose optimizer updates them, and the
/// stage `holder`, which has copies. `ties` and `devices` have one entry for each stage. The holder can send gradients
/// for `micro_batches` micro-batches before the owner reads any.
pub(crate) fn tie(
    ties: &mut [Ties],
    devices: &[Device],
    (owner, holder): (usize, usize),
    ids: Vec<ParamId>,
    micro_batches: usize,
) {
    // A holder runs its backward passes before the owner does. With room for all micro-batches its sends never block,
    // whatever the schedule.
    let (owned, held) = share(ids, &devices[owner], &devices[holder], micro_batches);
    ties[owner].owned.push(owned);
    ties[holder].held.push(held);
}

impl Ties {
    /// Exchanges one micro-batch's gradients of tied parameters. Sends the gradients of this stage's copies to the
    /// owners (the stages that update the parameters), and adds the gradients received for this stage's own parameters.
    /// Returns the stage's remaining gradients with these sums.
    pub(crate) fn exchange<M: Module>(
        &self,
        module: &M,
        micro_batch: usize,
        mut gradients: GradientsParams,
        waits: &Waits,
    ) -> Result<GradientsParams, Stopped> {
        for held in &self.held {
            held.send(module, micro_batch, &mut gradients, waits)?;
        }
        // The gradients of the last stage are added first, because the autodiff graph of an unpartitioned model adds
        // them in this order.
        let received = self.owned.iter().rev().map(|owned| owned.receive(micro_batch, waits)).collect::<Result<_, _>>();
        add(module, &mut gradients, received?);
        Ok(gradients)
    }

    /// Sends the current values of this stage's own tied parameters to the stages with copies of them.
    pub(crate) fn publish<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        self.owned.iter().try_for_each(|owned| owned.publish(module, waits))
    }

    /// Receives and discards the values of tied parameters that other stages send in a mispredicted step (one for which
    /// stages assumed a wrong verdict: step the optimizers, or skip), so that no stage waits for this one. This stage's
    /// copies do not change.
    pub(crate) fn ignore(&self, waits: &Waits) -> Result<(), Stopped> {
        self.held.iter().try_for_each(|held| held.ignore(waits))
    }

    /// Whether a parameter of this stage is a copy of a tied parameter, so that another stage's optimizer updates it.
    pub(crate) fn holds(&self, id: ParamId) -> bool {
        self.held.iter().any(|held| held.ids.contains(&id))
    }

    /// Returns the ids of all tied parameters of this stage: its own, and its copies of other stages' parameters.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ParamId> {
        let owned = self.owned.iter().flat_map(|owned| &owned.ids);
        owned.chain(self.held.iter().flat_map(|held| &held.ids)).copied()
    }

    /// Whether this stage has copies of tied parameters, and so must receive new values from the stages that update
    /// them.
    pub(crate) fn follows(&self) -> bool {
        !self.held.is_empty()
    }

    /// Waits for the new values of tied parameters from the stages whose optimizers update them, and writes them to
    /// this stage's copies. Returns the changed module. If the pipeline stops during the wait, the error contains the
    /// module with the values received so far.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        self.held.iter().try_fold(module, |module, held| held.follow(module, waits))
    }
}
