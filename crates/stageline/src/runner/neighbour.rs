//! The exchange of tensors between a stage and the previous or next stage ([`Neighbour`]).

use stageline_schedule::Transfer;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::order::Turns;

/// A stage's connection to the previous or the next stage, for exchanging tensors. Activations come from the previous
/// stage and go to the next stage; gradients come from the next stage and go to the previous one.
pub(crate) trait Neighbour {
    /// Receives one micro-batch's tensors from the neighbouring stage, and stores them until a forward or backward pass
    /// needs them.
    fn receive(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped>;
    /// Sends one micro-batch's tensors to the neighbouring stage, and returns their size in bytes. Waits until `turns`
    /// (the order of transfers between GPUs) allows `transfer`.
    fn send(&mut self, transfer: Transfer, turns: &Turns, waits: &Waits) -> Result<u64, Stopped>;
}
