//! Host memory of a training run's batches ([`BatchMemory`]).

use crate::settings::job::Job;
use crate::settings::values::FlushName;

/// The sizes of a run's batches, to compute how much host memory they take together.
#[derive(Clone, Copy)]
pub struct BatchMemory {
    /// Host memory of one training step's batch, in bytes.
    pub of_step: u64,
    /// Host memory of all held-out batches together, in bytes; they stay in memory during the whole run.
    pub held_out: u64,
}

impl BatchMemory {
    /// Returns the total size, in bytes, of the batches that are in host memory at the same time: those of running
    /// steps, prefetched ones and held-out ones. Their number follows from `job`.
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
