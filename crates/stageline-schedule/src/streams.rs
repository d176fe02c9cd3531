//! Devices that do their transfers one after another, in the order in which they were issued, as GPUs do over NCCL.

use crate::check::Checked;
use crate::lower::Transfer;

impl Checked {
    /// What each communication stream transfers, in the global order of [`transfers`](Self::transfers). Where transfers are
    /// issued in this order on every stream, streams never wait for each other in a circle.
    ///
    /// `of_stage` has the stream of each stage's device. Transfers within a stream, and from or to a device without one, are
    /// not among them.
    ///
    /// # Panics
    /// If a stage has no entry.
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
