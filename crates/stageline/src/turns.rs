//! Transfers between GPUs, issued in the plan's order.
//!
//! burn moves tensors between GPUs by NCCL. It submits a send to one device and a receive to the other, and each device does
//! such operations one after another: two workers that submit opposite moves at once can leave each device waiting for the
//! other, for ever. So every device with such a communication stream has one baton, which goes from worker to worker in the
//! plan's global order of transfers, and who submits a transfer holds both its devices' batons. Nobody then comes between its
//! two operations, and whoever waits for a baton waits for a transfer that stands earlier in that one order.

use std::collections::HashMap;

use stageline_schedule::{Checked, Instruction, Transfer};

use crate::stop::{Stopped, Waits};
use crate::threads::{Receiver, Sender, bounded};

/// The turns of passes of one plan. Behind the last transfer of a pass a baton is back where it was.
#[derive(Default)]
pub(crate) struct Turns {
    /// The batons that each transfer takes; none where it is no matter when it is issued.
    batons: HashMap<Transfer, Vec<Baton>>,
}

/// Where a baton comes from, and where it goes.
struct Baton {
    comes: Receiver<()>,
    goes: Sender<()>,
}

impl Turns {
    /// `stream_of_stage` has the communication stream of each stage's device, if it has one.
    pub(crate) fn new(plan: &Checked, stream_of_stage: &[Option<usize>]) -> Self {
        let mut turns = Self::default();
        for transfers in plan.streams(stream_of_stage) {
            let (goes, comes): (Vec<_>, Vec<_>) = transfers.iter().map(|_| bounded(1)).unzip();
            if let Some(first) = goes.first() {
                first.try_send(()).expect("there is room for the baton");
            }
            let next = goes.into_iter().cycle().skip(1);
            for ((transfer, comes), goes) in transfers.into_iter().zip(comes).zip(next) {
                turns.batons.entry(transfer).or_default().push(Baton { comes, goes });
            }
        }
        turns
    }

    /// Issues a transfer when it is its turn.
    pub(crate) fn issue<R>(&self, transfer: Transfer, waits: &Waits, issue: impl FnOnce() -> R) -> Result<R, Stopped> {
        let Some(batons) = self.batons.get(&transfer) else { return Ok(issue()) };
        for baton in batons {
            waits.receive(&baton.comes)?;
        }
        let issued = issue();
        tracing::trace!(transfer = %Instruction::Send(transfer), "issued in its turn");
        for baton in batons {
            waits.send(&baton.goes, ())?;
        }
        Ok(issued)
    }
}
