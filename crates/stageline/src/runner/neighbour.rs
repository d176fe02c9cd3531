//! The exchange of a stage with the stage before or behind it ([`Neighbour`]).

use stageline_schedule::Transfer;

use crate::failure::stop::{Stopped, Waits};
use crate::transfer::order::Turns;

/// One side of a stage, which exchanges tensors with the previous or the next stage. A stage receives activations from
/// the previous stage and sends gradients to it; it receives gradients from the next stage and sends activations to it.
pub(crate) trait Neighbour {
    /// Receives the tensors of one micro-batch from the neighbouring stage, and keeps them until a forward or a
    /// backward needs them.
    fn receive(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped>;
    /// Sends the tensors of one micro-batch to the neighbouring stage, and returns the number of bytes of these
    /// tensors.
    fn send(&mut self, transfer: Transfer, turns: &Turns, waits: &Waits) -> Result<u64, Stopped>;
}
