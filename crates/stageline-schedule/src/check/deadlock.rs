//! A deadlock: the blocked workers, with the reason why each of them waits.

use std::fmt;

use crate::plan::Instruction;

/// The largest number of blocked workers that the message about a deadlock names.
const SHOWN: usize = 8;

/// A worker that cannot advance in a deadlock, with the instruction at which it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The index, from 0, of the worker that is blocked in a deadlock of a plan.
    pub worker: usize,
    /// The number of actions (forwards and backwards) that the blocked worker finished before the deadlock.
    pub action: usize,
    /// The send or receive at which a worker is blocked in a deadlock of a plan.
    pub at: Instruction,
    /// The index of the micro-batch whose message is the first in the channel, although the blocked worker must receive
    /// another micro-batch first. `None` if the channel is empty or the worker waits to send.
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
    /// Every worker that cannot finish its list of actions in the deadlock of a plan, with the instruction at which the
    /// worker waits.
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
