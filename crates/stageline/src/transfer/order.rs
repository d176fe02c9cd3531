//! Issues transfers between GPUs in one global order, so that NCCL cannot deadlock.
//!
//! burn moves tensors between GPUs with NCCL. It submits a send to one device and a receive to the other. Each device
//! runs such operations one after another. Two workers that submit opposite transfers at the same time can leave each
//! device waiting for the other for ever.
//!
//! So every device with a communication stream has one baton, which passes from worker to worker in the plan's global
//! order of transfers. A worker submits a transfer only while it has the batons of both devices, so no other operation
//! comes between the send and the receive. A worker that waits for a baton always waits for a transfer that is earlier
//! in the global order. So the waits cannot form a cycle. Replicas that share a device take turns: each transfer is
//! issued for every replica before the next transfer is issued for any replica.
//!
//! `crates/stageline-schedule/tests/schedule/streams.rs` has a model of such devices. Without batons, the model
//! deadlocks in some interleavings; with them, it deadlocks in none, for every schedule. `tests/pipeline/transfers.rs`
//! checks that the pipeline issues transfers in the same order as the model.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use stageline_schedule::{Checked, Instruction, Transfer};

use crate::failure::stop::{Stopped, Waits};
use crate::threads::{Receiver, Sender, bounded};

/// The fixed order of one replica's transfers between GPUs. Every GPU has one baton (a token in a channel) that its
/// transfers pass on in this order. A worker may issue a transfer only while it has the batons of both GPUs. When the
/// plan is completed, every baton is back at its start.
#[derive(Default)]
pub(crate) struct Turns {
    /// The batons (tokens of both GPUs) that a worker must receive before it issues a transfer, by transfer. A transfer
    /// without an entry may be issued at any time.
    batons: HashMap<Transfer, Vec<Baton>>,
}

/// One transfer's place in a GPU's order of transfers: it receives the GPU's baton (a token) from `comes`, and passes
/// it on to the next transfer through `goes`.
struct Baton {
    comes: Receiver<()>,
    goes: Sender<()>,
}

impl Turns {
    /// Builds, for each replica, the order of its transfers between GPUs. A replica is given by its plan and the
    /// communication stream (queue of transfers) of each stage's device. A stream is given by its index, or `None` for
    /// a device whose transfers need no order.
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
                first.try_send(()).expect("a new channel has room for the baton");
            }
            let next = goes.into_iter().cycle().skip(1);
            for (((_, replica, transfer), comes), goes) in transfers.into_iter().zip(comes).zip(next) {
                all[replica].batons.entry(transfer).or_default().push(Baton { comes, goes });
            }
        }
        all.into_iter().map(Arc::new).collect()
    }

    /// Waits until `transfer` is next in the order of both its GPUs, calls `issue` to issue it, and lets the GPUs' next
    /// transfers proceed. Returns an error if the pipeline stops during the wait.
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
