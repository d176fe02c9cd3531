//! The order in which each communication stream (a device's queue of transfers) of a checked plan issues its transfers.
//!
//! A stream runs its transfers one after another in the order of issue, as NCCL does on a GPU's stream.

use super::checked::Checked;
use crate::plan::Transfer;

impl Checked {
    /// Returns the transfers of each communication stream (a device's queue of transfers), in the global order of
    /// [`transfers`](Self::transfers). With this order, streams never wait for each other in a cycle.
    ///
    /// `of_stage` has one entry per stage: the index of its device's stream, or `None` for a device without a stream.
    /// The result omits transfers within one stream, and transfers from or to a device without a stream.
    ///
    /// # Panics
    /// Panics if a stage of the plan has no entry in `of_stage`.
    pub fn streams(&self, of_stage: &[Option<usize>]) -> Vec<Vec<Transfer>> {
        let mut streams = vec![Vec::new(); of_stage.iter().flatten().max().map_or(0, |last| last + 1)];
        for transfer in self.transfers() {
            match (of_stage[transfer.from], of_stage[transfer.to()]) {
                (Some(from), Some(to)) if from != to => [from, to].map(|stream| streams[stream].push(transfer)),
                _ => continue,
            };
        }
        streams
    }
}
