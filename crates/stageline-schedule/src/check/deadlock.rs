//! A deadlock of a plan: the blocked workers, and what each of them waits for.

use std::fmt;

use crate::plan::Instruction;

/// Maximum number of blocked workers that a deadlock's error message lists one by one; the others are only counted.
const SHOWN: usize = 8;

/// A worker that cannot advance in a deadlock, with the send or receive that it cannot finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Zero-based index of the worker that is blocked in this deadlock, waiting for a transfer.
    pub worker: usize,
    /// Zero-based index, in the blocked worker's list of actions, of the forward or backward pass whose send or receive
    /// cannot finish.
    pub action: usize,
    /// The send or receive that the blocked worker cannot finish.
    pub at: Instruction,
    /// Micro-batch that arrived before the one that the blocked worker waits to receive, and thus blocks the FIFO
    /// channel. `None` if the channel is empty, or if the worker waits to send.
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
    /// Workers that are blocked in this deadlock, each with the send or receive that it cannot finish.
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
