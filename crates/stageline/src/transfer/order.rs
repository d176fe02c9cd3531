//! Transfers between GPUs, issued in the plan's order.
//!
//! burn moves tensors between GPUs by NCCL. It submits a send to one device and a receive to the other, and each device does
//! such operations one after another: two workers that submit opposite moves at once can leave each device waiting for the
//! other, for ever. So every device with such a communication stream has one baton, which goes from worker to worker in the
//! plan's global order of transfers, and who submits a transfer holds both its devices' batons. Nobody then comes between its
//! two operations, and whoever waits for a baton waits for a transfer that stands earlier in that one order. Replicas that share
//! a device take turns in it: the same place in the order of each, before the next.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use stageline_schedule::{Checked, Instruction, Transfer};

use crate::failure::stop::{Stopped, Waits};
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
    /// Of each replica, by its plan, and by the communication stream of each of its stages' devices, if it has one.
    pub(crate) fn of_replicas<'a>(
        replicas: impl IntoIterator<Item = (&'a Checked, &'a Vec<Option<usize>>)>,
    ) -> Vec<Arc<Self>> {
        let (mut all, mut streams) = (Vec::new(), BTreeMap::<usize, Vec<_>>::new());
        for (replica, (plan, stream_of_stage)) in replicas.into_iter().enumerate() {
            all.push(Self::default());
            let order: HashMap<_, _> = plan.transfers().into_iter().zip(0_usize..).collect();
            for (stream, transfers) in plan.streams(stream_of_stage).into_iter().enumerate() {
                let placed = transfers.into_iter().map(|transfer| (order[&transfer], replica, transfer));
                streams.entry(stream).or_default().extend(placed);
            }
        }
        for (_, mut transfers) in streams {
            transfers.sort_by_key(|&(place, replica, _)| (place, replica));
            let (goes, comes): (Vec<_>, Vec<_>) = transfers.iter().map(|_| bounded(1)).unzip();
            if let Some(first) = goes.first() {
                first.try_send(()).expect("there is room for the baton");
            }
            let next = goes.into_iter().cycle().skip(1);
            for (((_, replica, transfer), comes), goes) in transfers.into_iter().zip(comes).zip(next) {
                all[replica].batons.entry(transfer).or_default().push(Baton { comes, goes });
            }
        }
        all.into_iter().map(Arc::new).collect()
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
