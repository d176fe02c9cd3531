//! Searches for the plan with the shortest simulated step, using the costs that a logged run measured
//! ([`MeasuredSearch`]).

use std::ops::Range;

use anyhow::{Result, ensure};
use stageline_report::{Measured, PredictError, RunLog};
use stageline_schedule::{Best, Costs, Memory, Placement, Plan, best_with_channels};

use crate::costs::{CostFlags, MemoryFlags};

/// Number of milliseconds in a second, to convert the costs of a log (seconds) to the unit of command-line flags.
const MS: f64 = 1e3;

/// A search for the best plan for a given number of workers, using the costs that a logged run measured. The search
/// chooses the number of stages (chunks) per worker. The model's layers are partitioned into stages as evenly as
/// possible by their measured times. A model that is partitioned (cut) by hand keeps its stages.
pub(crate) struct MeasuredSearch<'a> {
    measured: Measured,
    workers: usize,
    /// Command-line flags for the times of transfers and the memory of stages; `None` if the subcommand has no such
    /// flags.
    flags: Option<(&'a CostFlags, &'a MemoryFlags)>,
}

impl<'a> MeasuredSearch<'a> {
    /// Prepares a search for a plan on `workers` workers, with the costs and the network links of a logged run
    /// (`measured`).
    ///
    /// # Errors
    /// Returns an error in these cases:
    ///
    /// - The model has fewer layers than workers.
    /// - A link between neighbouring workers, or the bytes that it carries, are not known.
    /// - The model is cut by hand into stages that cannot be divided evenly among the workers.
    pub(crate) fn new(measured: Measured, workers: usize) -> Result<Self> {
        let (layers, by_hand) = (measured.layers(), measured.is_cut_by_hand());
        ensure!(
            !by_hand || layers.is_multiple_of(workers),
            "the model of the log is cut by hand into {layers} stages, which {workers} workers do not share evenly; give a --stages \
             that divides {layers}"
        );
        let chunks = if by_hand { layers / workers } else { 1 };
        let cut = measured.balanced(workers * chunks)?;
        measured.costs(&Placement::in_turn(workers, chunks), &cut)?;
        Ok(Self { measured, workers, flags: None })
    }

    /// Prepares a search for a plan with the costs of a logged run (`measured`), like [`new`](Self::new). If the flags
    /// in `costs` set the times of transfers, these replace the times of the log. The flags in `memory` give the memory
    /// of the stages.
    pub(crate) fn with_flags(
        measured: Measured,
        workers: usize,
        costs: &'a CostFlags,
        memory: &'a MemoryFlags,
    ) -> Result<Self> {
        let measured = if costs.has_transfers() { measured.without_links() } else { measured };
        let search = Self::new(measured, workers).map_err(|error| match error.downcast_ref() {
            Some(PredictError::Unlinked { .. } | PredictError::Bytes) => error.context(format!(
                "the log does not have the transfers between {workers} workers: give --transfer, or --bytes with --bandwidth"
            )),
            _ => error,
        })?;
        memory.memory(&Placement::in_turn(workers, 1))?;
        costs.with_transfers(Costs::uniform(workers, 1.0, 2.0), &Placement::in_turn(workers, 1))?;
        Ok(Self { flags: Some((costs, memory)), ..search })
    }

    /// Returns the plan with the shortest simulated step for the measured costs, with its costs in ms. The plan does
    /// not deadlock if each channel between two stages holds `capacity` micro-batches.
    pub(crate) fn best(&self, micro_batches: usize, capacity: usize) -> Result<Best> {
        // A stage needs a layer of its own, and a model that is cut by hand keeps its stages.
        let most = self.measured.layers() / self.workers;
        let least = if self.measured.is_cut_by_hand() { most } else { 1 };
        let stages = |placement: &Placement| self.stages(placement).ok();
        Ok(best_with_channels(self.workers, micro_batches, capacity, least..=most, stages)?)
    }

    /// Returns what the search needs to know about a placement of stages on workers: each stage's costs in ms, the
    /// bytes that one micro-batch occupies on each stage, and a worker's memory limit. The bytes and the limit come
    /// from the memory flags; without these flags, workers have no limit.
    fn stages(&self, placement: &Placement) -> Result<(Costs, Memory)> {
        let (workers, chunks) = (self.workers, placement.stages() / self.workers);
        let costs = self.measured.costs(placement, &self.measured.balanced(placement.stages())?)?.times(MS);
        let unlimited = || Memory::unlimited(workers).cut(chunks);
        let Some((flags, memory)) = self.flags else { return Ok((costs, unlimited())) };
        let memory =
            memory.memory(&Placement::in_turn(workers, 1))?.map_or_else(unlimited, |memory| memory.cut(chunks));
        Ok((flags.with_transfers(costs, placement)?, memory))
    }

    /// Returns the partition of the model's layers that the search assumed for `plan`: the zero-based range of layer
    /// indices of each stage.
    pub(crate) fn cut(&self, plan: &Plan) -> Result<Vec<Range<usize>>> {
        Ok(self.measured.balanced(plan.stages())?)
    }
}

/// Returns the zero-based index of each stage's first layer, which is the format of the training programs' flag
/// `--cut`.
pub(crate) fn starts(cut: &[Range<usize>]) -> Vec<usize> {
    cut.iter().map(|range| range.start).collect()
}

/// Returns the flag `--cut` of training programs for the partition `cut` of the run's layers, with a space before the
/// flag. Returns an empty string for a model that is cut by hand, because its program rejects the flag.
pub(crate) fn cut_flag(log: &RunLog, cut: &[Range<usize>]) -> String {
    if log.run.cut_by_hand {
        return String::new();
    }
    let starts: Vec<_> = starts(cut).iter().map(usize::to_string).collect();
    format!(" --cut {}", starts.join(","))
}
