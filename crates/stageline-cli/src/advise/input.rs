//! The input of a recommendation ([`Asked`]), which `accumulation` and `links` share.

use stageline_report::{Cut, Measured, RunLog, Target};
use stageline_schedule::Schedule;

use super::accumulation::Accumulation;
use super::flags::Flags;

/// Inputs of a `stageline advise` recommendation: the command's flags, a run's log, and the baseline schedule that
/// other settings are compared with.
pub(super) struct Asked<'a> {
    pub(super) flags: &'a Flags,
    pub(super) log: &'a RunLog,
    pub(super) schedule: &'a dyn Schedule,
    pub(super) name: &'a str,
    /// Costs measured in a second run of the same model, with micro-batches of another size; `None` if the user gives
    /// no such log. They are needed to predict runs with larger micro-batches.
    pub(super) other_size: Option<Measured>,
}

impl Asked<'_> {
    pub(super) fn target(&self, workers: usize, cut: Cut) -> Target<'_> {
        Target { workers, micro_batches: self.log.plan.micro_batches(), schedule: self.schedule, cut }
    }

    /// Returns the name of the baseline schedule that other settings are compared with. If it places several stages
    /// (chunks) on a worker, their number V follows, as in `interleaved with V = 4`.
    pub(super) fn name_with_chunks(&self) -> String {
        match self.schedule.chunks() {
            1 => self.name.to_owned(),
            chunks => format!("{} with V = {chunks}", self.name),
        }
    }

    pub(super) fn accumulation(&self) -> Accumulation<'_> {
        Accumulation {
            log: self.log,
            schedule: self.name,
            chunks: self.schedule.chunks(),
            other_size: self.other_size.as_ref(),
            memory: self.flags.memory.map(|gigabytes| 1e9 * gigabytes),
            most_workers: self.flags.most_stages,
        }
    }
}
