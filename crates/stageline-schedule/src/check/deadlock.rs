//! A deadlock of a plan: the blocked workers, and what each of them waits for.

use std::fmt;

use crate::plan::Instruction;

/// The largest number of blocked workers that the error message about a deadlock names.
const SHOWN: usize = 8;

/// A worker that cannot advance in a deadlock, with the send or receive that it cannot finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The index, from 0, of a worker that is blocked in a deadlock.
    pub worker: usize,
    /// The index, from 0 in the worker's list, of the action (a forward or backward pass) whose send or receive a
    /// blocked worker cannot finish.
    pub action: usize,
    /// The send or receive that a worker in a deadlock waits to finish.
    pub at: Instruction,
    /// The micro-batch at the head of the channel that a blocked worker receives from, if the worker waits for a
    /// different micro-batch. `None` if the channel is empty, or if the worker waits to send.
    pub found: Option<usize>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} at {} waits for ", self.worker, self.at)?;
        match (self.at, self.found) {
            (Instruction::Compute(_), _) => write!(f, "nothing"),
            (Instruction::Send(transfer), _) => write!(f, "room in the channel to stage {}", transfer.to()),
            (Instruction::Receive(transfer), None) => write!(f, "stage {} to send it", transfer.from),
            (Instruction::Receive(transfer), Some(found)) => {
                write!(f, "stage {} to send it, but micro-batch {found} came first", transfer.from)
            }
        }
    }
}

/// A deadlock of a plan: a state in which some workers have not finished their actions and no worker can advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The workers that are blocked in a deadlock, each with the send or receive that it cannot finish.
    pub blocked: Vec<Blocked>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits: Vec<_> = self.blocked.iter().take(SHOWN).map(Blocked::to_string).collect();
        write!(f, "{}", waits.join("; "))?;
        match self.blocked.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more workers wait"),
        }
    }
}

impl std::error::Error for Deadlock {}
