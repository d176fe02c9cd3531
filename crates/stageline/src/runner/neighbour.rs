//! The exchange of a stage with the stage before or behind it ([`Neighbour`]).

use stageline_schedule::Transfer;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::order::Turns;

/// A stage's connection to the previous or the next stage, for exchanging tensors. Activations come from the previous
/// stage and go to the next stage; gradients come from the next stage and go to the previous one.
pub(crate) trait Neighbour {
    /// Receives the tensors of one micro-batch from the neighbouring stage, and keeps them until a forward or a
    /// backward pass needs them.
    fn receive(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped>;
    /// Sends the tensors of one micro-batch to the neighbouring stage, and returns the number of bytes of these
    /// tensors.
    fn send(&mut self, transfer: Transfer, turns: &Turns, waits: &Waits) -> Result<u64, Stopped>;
}
