//! The plan whose performance is predicted ([`Target`]), and the way to partition the model's layers into its stages
//! ([`Cut`]).

use std::ops::Range;

use stageline_schedule::Schedule;

/// The plan whose performance is predicted: its schedule, its numbers of workers and micro-batches, and the partition
/// of the model's layers into its stages.
pub struct Target<'a> {
    /// Number of workers (P) of the predicted plan, in each replica.
    pub workers: usize,
    /// The number of micro-batches (M) in a step of the predicted plan, in each replica. Each has the size of a
    /// micro-batch of the logged run.
    pub micro_batches: usize,
    /// The schedule that generates the predicted plan.
    pub schedule: &'a dyn Schedule,
    /// The way to partition the model's layers into the predicted plan's stages.
    pub cut: Cut,
}

/// The way to partition the model's layers into a predicted plan's stages: as in the logged run, by the layers'
/// measured times, or as the caller says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Partition the model's layers as in the logged run, if the predicted plan has as many stages as the run.
    /// Otherwise partition them as with [`Balanced`](Self::Balanced).
    OfTheRun,
    /// Partition the model's layers into contiguous stages by the measured times of their forward and backward passes.
    /// With one stage per worker, the partition is as even as possible. With several, it is one with a short simulated
    /// step.
    Balanced,
    /// Partition the model's layers as the caller says. The value has the range of zero-based layer indices of each
    /// stage.
    Given(Vec<Range<usize>>),
}

/// Whether `cut` is a valid partition of `layers` layers into `stages` stages. Every stage must have at least one
/// layer, and begin right after the last layer of the previous stage.
pub(super) fn is_cut(cut: &[Range<usize>], layers: usize, stages: usize) -> bool {
    let starts = [0].into_iter().chain(cut.iter().map(|range| range.end));
    let follow = cut.iter().zip(starts).all(|(range, start)| range.start == start && !range.is_empty());
    cut.len() == stages && follow && cut.last().is_some_and(|last| last.end == layers)
}
