//! Who waits for what when no worker can go on.

use std::fmt;

use crate::lower::Instruction;

/// How many workers a message names.
const SHOWN: usize = 8;

/// What one worker waits for when nothing can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The worker.
    pub worker: usize,
    /// How many actions of its list it has done.
    pub action: usize,
    /// The instruction that it cannot finish.
    pub at: Instruction,
    /// The message at the head of the channel it receives from, where that is not the one it wants.
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

/// No worker can go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Every worker that has not finished.
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
