//! The plan whose performance is predicted: [`Target`], with the choice of its partition of the layers ([`Cut`]).

use std::ops::Range;

use stageline_schedule::Schedule;

/// The plan whose performance is predicted: its schedule, its numbers of workers and micro-batches, and the partition
/// of the model's layers into its stages.
pub struct Target<'a> {
    /// The number of workers (P) for which the plan is predicted.
    pub workers: usize,
    /// The number of micro-batches (M) in a step of the predicted plan. Each has the size of a micro-batch of the
    /// measured run.
    pub micro_batches: usize,
    /// The schedule that generates the predicted plan.
    pub schedule: &'a dyn Schedule,
    /// The choice of the partition of the model's layers into the stages of the predicted plan.
    pub cut: Cut,
}

/// The choice of the partition of the model's layers into the stages of a predicted plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The partition of the logged run, if the predicted plan has as many stages as the run; otherwise the most even
    /// partition by measured time.
    OfTheRun,
    /// The most even partition of the model's layers into contiguous stages, by the measured time of a forward and
    /// backward.
    Balanced,
    /// A partition of the model's layers that the caller gives: the indices of the layers of each stage.
    Given(Vec<Range<usize>>),
}

/// Whether `cut` is a partition of `layers` layers into `stages` stages: every stage has at least one layer, and begins
/// after the last layer of the previous stage.
pub(super) fn is_cut(cut: &[Range<usize>], layers: usize, stages: usize) -> bool {
    let starts = [0].into_iter().chain(cut.iter().map(|range| range.end));
    let follow = cut.iter().zip(starts).all(|(range, start)| range.start == start && !range.is_empty());
    cut.len() == stages && follow && cut.last().is_some_and(|last| last.end == layers)
}
