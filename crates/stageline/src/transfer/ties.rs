//! Tied parameters: parameters that several stages share, such as an embedding that is also the output layer.
//!
//! The first stage that has such a parameter owns it; the others hold copies. The gradient of a copy is added to the
//! owner's gradient of the same micro-batch before gradients are summed over the micro-batches. The sum is therefore
//! that of a single graph, bit for bit if at most one stage uses the parameter more than once. Only the owner steps the
//! parameter, and sends its new value to the copies. In a lower precision the gradients of one micro-batch are added in
//! that precision, as in a single graph, and widened to f32 afterwards.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::copies::{Held, Owned, add, share};

/// The tied parameters of one stage: those that it owns, and copies that it holds.
#[derive(Default)]
pub(crate) struct Ties {
    owned: Vec<Owned>,
    held: Vec<Held>,
}

/// Ties the parameters `ids` of stage `owner` to the copies on stage `holder`.
pub(crate) fn tie(
    ties: &mut [Ties],
    devices: &[Device],
    (owner, holder): (usize, usize),
    ids: Vec<ParamId>,
    micro_batches: usize,
) {
    // A holder runs its backwards before the owner does. With room for all micro-batches it never waits, whatever the
    // schedule.
    let (owned, held) = share(ids, &devices[owner], &devices[holder], micro_batches);
    ties[owner].owned.push(owned);
    ties[holder].held.push(held);
}

impl Ties {
    /// Exchanges the gradients of tied parameters for one micro-batch: sends those of copies to their owners, and adds
    /// those that holders send. Returns the gradients that this stage sums itself.
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
        // The last stage comes first: a single graph adds the gradients in this order.
        let received = self.owned.iter().rev().map(|owned| owned.receive(micro_batch, waits)).collect::<Result<_, _>>();
        add(module, &mut gradients, received?);
        Ok(gradients)
    }

    /// Sends the holders the current values of the parameters that this stage owns.
    pub(crate) fn publish<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        self.owned.iter().try_for_each(|owned| owned.publish(module, waits))
    }

    /// Receives the owners' new values and discards them, so that the channels are empty.
    pub(crate) fn ignore(&self, waits: &Waits) -> Result<(), Stopped> {
        self.held.iter().try_for_each(|held| held.ignore(waits))
    }

    /// Whether a parameter is a copy of another stage's parameter.
    pub(crate) fn holds(&self, id: ParamId) -> bool {
        self.held.iter().any(|held| held.ids.contains(&id))
    }

    /// Returns the parameters that this stage shares with others, owned or held.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ParamId> {
        let owned = self.owned.iter().flat_map(|owned| &owned.ids);
        owned.chain(self.held.iter().flat_map(|held| &held.ids)).copied()
    }

    /// Whether this stage holds copies of parameters that another stage owns.
    pub(crate) fn follows(&self) -> bool {
        !self.held.is_empty()
    }

    /// Waits for the owners' new values and writes them to the copies.
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        self.held.iter().try_fold(module, |module, held| held.follow(module, waits))
    }
}
