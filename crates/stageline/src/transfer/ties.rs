//! Parameters that several stages have, such as an embedding that is also the output layer.
//!
//! The first stage that has such a parameter owns it; the others hold copies. The gradient of a copy joins the owner's for
//! the same micro-batch, before these are added up over the micro-batches: so the sum is the one of a single graph, to the bit
//! where no stage but one uses the parameter more than once. Only the owner steps, and gives the copies its new value.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::copies::{Held, Owned, add, share};

/// What a stage shares with others.
#[derive(Default)]
pub(crate) struct Ties {
    owned: Vec<Owned>,
    held: Vec<Held>,
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
    let (owned, held) = share(ids, &devices[owner], &devices[holder], micro_batches);
    ties[owner].owned.push(owned);
    ties[holder].held.push(held);
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
        for held in &self.held {
            held.send(module, micro_batch, &mut gradients, waits)?;
        }
        // The last stage first, as a single graph adds them up.
        let received = self.owned.iter().rev().map(|owned| owned.receive(micro_batch, waits)).collect::<Result<_, _>>();
        add(module, &mut gradients, received?);
        Ok(gradients)
    }

    /// Gives the holders the values of this stage's parameters.
    pub(crate) fn publish<M: Module>(&self, module: &M, waits: &Waits) -> Result<(), Stopped> {
        self.owned.iter().try_for_each(|owned| owned.publish(module, waits))
    }

    /// Waits for the owners' values, and leaves the copies as they are.
    pub(crate) fn ignore(&self, waits: &Waits) -> Result<(), Stopped> {
        self.held.iter().try_for_each(|held| held.ignore(waits))
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
    pub(crate) fn follow<M: Module>(&self, module: M, waits: &Waits) -> Result<M, (M, Stopped)> {
        self.held.iter().try_fold(module, |module, held| held.follow(module, waits))
    }
}
