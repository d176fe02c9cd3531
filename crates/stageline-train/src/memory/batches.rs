//! The memory that the batches of a training run take on the host ([`BatchMemory`]).

use crate::settings::job::Job;
use crate::settings::values::FlushName;

/// The sizes of a run's batches on the host, from which the host memory for batches is computed.
#[derive(Clone, Copy)]
pub struct BatchMemory {
    /// The size of the batch of one training step, in bytes.
    pub of_step: u64,
    /// The size of all batches of held-out samples together, in bytes. They stay in memory during the whole run.
    pub held_out: u64,
}

impl BatchMemory {
    /// Returns the total size, in bytes, of the batches that are in host memory at one time. These are the batches of
    /// the running steps, the batches that are read ahead, and the held-out batches. `job` says how many there are.
    pub fn total(self, job: &Job) -> u64 {
        let running = match job.running.flush {
            FlushName::Together => 1,
            FlushName::Ahead => 2,
        };
        let batches = (running + job.running.read_ahead) as u64;
        self.held_out.saturating_add(self.of_step.saturating_mul(batches))
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    #[test]
    fn batches_in_memory_are_running_read_ahead_or_held_out() {
        let total = |flags: &str| BatchMemory { of_step: 1000, held_out: 7 }.total(&Job::of_line(flags).unwrap());
        assert_eq!(total(""), 7 + (1 + 16) * 1000);
        assert_eq!(total("--read-ahead 2"), 7 + (1 + 2) * 1000);
        assert_eq!(total("--read-ahead 2 --flush ahead"), 7 + (2 + 2) * 1000);
    }
}
