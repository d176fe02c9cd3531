//! The search for the plan with the shortest simulated step, among all generators of schedules and automatic schedules
//! (plans generated for the given costs).

use std::cmp::Ordering;
use std::fmt;
use std::ops::RangeInclusive;

use super::automatic::{Rules, automatic};
use super::bound::lower_bound;
use crate::check::{CheckError, Checked, check};
use crate::costs::Costs;
use crate::plan::{Action, Compute, Placement, Plan};
use crate::schedules::{SCHEDULES, Schedule};
use crate::simulate::{Memory, StageMemory, Timeline, simulate};

/// Maximum number of chunks (stages) per worker that the search tries, unless the caller requires more.
const MOST_CHUNKS: usize = 4;

/// Maximum number of worker x micro-batch pairs for which the search looks for a plan. For up to [`MOST_WORKERS`]
/// workers, the time of a search grows nearly in proportion to this number. On one core of an EPYC (2026-11-28,
/// `opt-level = 1`), 512 x 512 took 194 s and 0.3 GB.
const MOST_PAIRS: usize = 300_000;

/// Maximum number of workers for which the search looks for a plan. The time of a search grows faster than the square
/// of this number: with one micro-batch, 1,000 workers took 2 s, and 8,000 took 186 s.
const MOST_WORKERS: usize = 1_000;

/// Relative tolerance (1e-9) below which two plans' times count as equal, because summing the same costs in another
/// order causes rounding errors.
const ROUNDING: f64 = 1e-9;

/// The result of a search for the plan with the shortest simulated step. It has the plan, its costs, its timeline and a
/// lower bound on the step.
#[derive(Clone, Debug)]
pub struct Best {
    /// Name of the found plan's schedule, such as `1f1b`. It is `automatic` if the search generated the plan for the
    /// given costs.
    pub schedule: &'static str,
    /// Plan with the shortest step that the search found. It does not deadlock at the channel capacity of the search.
    /// By default, each channel between two stages can hold all micro-batches of a step.
    pub checked: Checked,
    /// Costs (such as times of forward and backward passes) of the found plan's stages. If the plan splits each given
    /// stage into several chunks, these are the costs of the chunks.
    pub costs: Costs,
    /// Simulated timeline of one step of the found plan, in the costs' time unit (such as ms).
    pub timeline: Timeline,
    /// Lower bound on the step time, in the costs' time unit (such as ms). No plan within the memory limit, with a
    /// placement of stages on workers that the search tried, can have a shorter step.
    pub bound: f64,
}

impl Best {
    /// Returns `step / bound - 1`: how much longer the found plan's step is than the lower bound
    /// [`bound`](Self::bound). 0.1 is 10% longer. At 0, the plan is optimal: no plan within the memory limit, with a
    /// placement that the search tried, has a shorter step. The result is also 0 if the bound is 0.
    pub fn above_bound(&self) -> f64 {
        let (step, bound) = (self.timeline.step(), self.bound);
        if bound > 0.0 { (step / bound - 1.0).max(0.0) } else { 0.0 }
    }
}

/// Finds the plan with the shortest simulated step for `micro_batches` micro-batches. Among plans whose steps are equal
/// except for rounding, it prefers a shorter span, then less peak memory, then fewer chunks (stages per worker).
///
/// `costs` and `memory` describe one stage for each worker; `memory` also has the memory limit of a worker. The search
/// tries every schedule of this crate, and automatic schedules (plans generated for these costs). For a schedule with V
/// chunks (stages) per worker, each given stage is divided into V equal parts ([`Costs::cut`]). A schedule that allows
/// any V is tried with 2, 3 and 4. Schedules with a V above `most_chunks` are left out, because a model may have too
/// few layers for them.
///
/// # Errors
/// Returns a [`SearchError`] if there are no stages or micro-batches, or if no plan fits into the memory limit. Also
/// returns an error if there are so many stages or micro-batches that the search would take more than several minutes.
///
/// # Panics
/// Panics if `costs` and `memory` have different numbers of stages.
pub fn best(micro_batches: usize, costs: &Costs, memory: &Memory, most_chunks: usize) -> Result<Best, SearchError> {
    let workers = costs.stages();
    assert_eq!(workers, memory.stages.len(), "give costs and memory for the same stages");
    best_placed(workers, micro_batches, 1..=most_chunks, |placement| {
        let chunks = placement.stages() / workers;
        Some((costs.cut(placement), memory.cut(chunks)))
    })
}

/// Finds the plan with the shortest simulated step, as [`best()`] does, for stages whose costs and memory depend on
/// their placement on workers.
///
/// `chunks` is the range of allowed numbers of stages (chunks) on each of `workers` workers. If the range begins above
/// 4, the search tries only its smallest number, and only generated plans and schedules that allow any number. The
/// function `of` returns the costs and the memory of the stages for a placement. If it returns `None`, for example
/// because the link between two of the workers is not known, the search leaves out this placement.
///
/// # Errors
/// Returns a [`SearchError`] if there are no workers or micro-batches, if `of` returns `None` for every placement, or
/// if no plan fits into the memory limit. Also returns an error if there are so many workers or micro-batches that the
/// search would take more than several minutes.
pub fn best_placed(
    workers: usize,
    micro_batches: usize,
    chunks: RangeInclusive<usize>,
    of: impl Fn(&Placement) -> Option<(Costs, Memory)>,
) -> Result<Best, SearchError> {
    best_with_channels(workers, micro_batches, micro_batches, chunks, of)
}

/// Finds the plan with the shortest simulated step, as [`best_placed()`] does, among the plans that do not deadlock if
/// each channel between two stages holds `capacity` micro-batches. Steps are simulated with these channels.
///
/// # Errors
/// Returns the errors of [`best_placed()`], and [`SearchError::Channels`] if all plans within the memory limit need
/// larger channels.
pub fn best_with_channels(
    workers: usize,
    micro_batches: usize,
    capacity: usize,
    chunks: RangeInclusive<usize>,
    of: impl Fn(&Placement) -> Option<(Costs, Memory)>,
) -> Result<Best, SearchError> {
    check_search_size(workers, micro_batches)?;
    let (least, most) = (1.max(*chunks.start()), *chunks.end());
    let mut search = Search {
        workers,
        micro_batches,
        capacity,
        least,
        of,
        bound: f64::INFINITY,
        best: None,
        fitting: None,
        least_capacity: None,
    };
    for schedule in SCHEDULES {
        let several = least.max(2)..=most.min(MOST_CHUNKS.max(least));
        if chunks.contains(&schedule.chunks()) {
            search.generator(schedule);
        }
        several.filter_map(|chunks| schedule.with_chunks(chunks)).for_each(|schedule| search.generator(&*schedule));
    }
    let in_a_v = chunks.contains(&2).then(|| Placement::in_a_v(workers));
    for placement in [Placement::in_turn(workers, least)].into_iter().chain(in_a_v) {
        search.automatic(&placement);
    }
    let no_plan = match (search.least_capacity, search.fitting) {
        (Some(enough), _) => SearchError::Channels { capacity, enough },
        (None, Some((limit, enough))) => SearchError::Memory { limit, enough },
        (None, None) => SearchError::Costs { workers },
    };
    search.best.map(|(_, best)| Best { bound: search.bound, ..best }).ok_or(no_plan)
}

/// Checks whether [`best()`] and [`best_placed()`] accept a search of this size. Callers can call this function before
/// they compute the costs and the memory of many stages.
///
/// # Errors
/// Returns [`SearchError::Nothing`] for 0 workers or micro-batches, and [`SearchError::TooLarge`] if the search would
/// take more than several minutes.
pub fn check_search_size(workers: usize, micro_batches: usize) -> Result<(), SearchError> {
    if workers == 0 || micro_batches == 0 {
        return Err(SearchError::Nothing { workers, micro_batches });
    }
    if workers > MOST_WORKERS || workers.saturating_mul(micro_batches) > MOST_PAIRS {
        let (most_workers, most) = (MOST_WORKERS, MOST_PAIRS);
        return Err(SearchError::TooLarge { workers, micro_batches, most_workers, most });
    }
    Ok(())
}

/// Returns copies of `memory` with its own memory limit and with several lower limits. The search generates automatic
/// schedules for all these limits, because a plan for a lower limit can have a shorter step.
fn lower_limits(memory: &Memory) -> impl Iterator<Item = Memory> + '_ {
    let largest = memory.stages.iter().copied().map(StageMemory::peak).fold(0.0, f64::max);
    // With twice the memory of 1F1B, a plan can avoid all bubbles except fill and drain.
    let enough = memory.limit.min(2.0 * memory.stages.len() as f64 * largest);
    let mut limits = vec![memory.limit, enough, enough * 0.94, enough * 0.88, enough * 0.75, enough * 0.5];
    limits.dedup();
    limits.into_iter().map(|limit| Memory { limit, ..memory.clone() })
}

struct Search<F> {
    workers: usize,
    micro_batches: usize,
    /// Number of micro-batches that each channel between two stages holds.
    capacity: usize,
    /// Minimum number of chunks (stages) per worker that the caller allows.
    least: usize,
    /// Callback that maps a placement of stages on workers to the stages' costs and memory; `None` if they are not
    /// known.
    of: F,
    bound: f64,
    /// Best plan that the search has found so far, with its rank; `None` while no plan has fitted into the memory
    /// limit.
    best: Option<(Rank, Best)>,
    /// Two memory limits of a worker, for the error that no plan fits: the caller's limit, and the lowest limit at
    /// which a plan is known to fit. `None` until the costs are known for a placement with the least number of chunks
    /// per worker.
    fitting: Option<(f64, f64)>,
    /// Smallest channel capacity that would avoid the deadlock of a plan that the search left out. Such plans deadlock
    /// at the caller's capacity. `None` while the search has left out no such plan.
    least_capacity: Option<usize>,
}

impl<F: Fn(&Placement) -> Option<(Costs, Memory)>> Search<F> {
    /// Generates the plan of a schedule. Keeps the plan if it fits into the memory limit and is the best so far.
    fn generator(&mut self, schedule: &dyn Schedule) {
        let Ok(plan) = schedule.plan(self.workers * schedule.chunks(), self.micro_batches) else { return };
        let placement = plan.placement();
        if let Some((costs, memory)) = self.costs(&placement) {
            self.add_bound(&placement, &costs, &memory);
            self.offer(schedule.name(), plan, &costs, &memory);
        }
    }

    /// Returns the costs and the memory of the stages for a placement of stages on workers; `None` if they are not
    /// known. If the placement has the least number of chunks per worker, also updates the lowest memory limit that is
    /// known to be enough for a plan: the limit for one micro-batch at a time.
    fn costs(&mut self, placement: &Placement) -> Option<(Costs, Memory)> {
        let (costs, memory) = (self.of)(placement)?;
        if placement.stages() == self.least * self.workers {
            // If one micro-batch fits by itself, so does the automatic plan that runs the micro-batches one after
            // another.
            let one = |owned: &Vec<usize>| owned.iter().map(|&stage| memory.stages[stage].peak()).sum::<f64>();
            let enough = placement.stages_of().iter().map(one).fold(0.0, f64::max);
            let known = self.fitting.map_or(f64::INFINITY, |(_, enough)| enough);
            self.fitting = Some((memory.limit, enough.min(known)));
        }
        Some((costs, memory))
    }

    /// Generates automatic schedules (plans for given costs and memory) for one placement of stages on workers. Tries
    /// all combinations of rules and memory limits, and keeps the best plan so far.
    fn automatic(&mut self, placement: &Placement) {
        let micro_batches = self.micro_batches;
        let Some((costs, memory)) = self.costs(placement) else { return };
        self.add_bound(placement, &costs, &memory);
        for less in lower_limits(&memory) {
            for plan in Rules::all().filter_map(|rules| automatic(placement, micro_batches, &costs, &less, rules)) {
                if let Some(whole) = with_whole_backwards(&plan, &costs) {
                    self.offer("automatic", whole, &costs, &memory);
                }
                self.offer("automatic", plan, &costs, &memory);
            }
        }
    }

    /// Lowers the search's lower bound on the step time, if necessary, so that it also holds for plans with this
    /// placement of stages on workers.
    fn add_bound(&mut self, placement: &Placement, costs: &Costs, memory: &Memory) {
        self.bound = self.bound.min(lower_bound(placement, self.micro_batches, costs, memory));
    }

    /// Keeps a plan as the best one if it fits into the memory limit and the channels, and has a shorter simulated step
    /// than the best one so far. Ties are broken by the shorter span (because steps may overlap), then by the lower
    /// peak memory of a worker, then by fewer chunks.
    fn offer(&mut self, schedule: &'static str, plan: Plan, costs: &Costs, memory: &Memory) {
        if !memory.suffices(&plan) {
            return;
        }
        let checked = match check(plan, self.capacity) {
            Ok(checked) => checked,
            Err(CheckError::Deadlock { least_capacity: Some(enough), .. }) => {
                self.least_capacity = Some(self.least_capacity.map_or(enough, |least| least.min(enough)));
                return;
            }
            Err(_) => return,
        };
        let timeline = simulate(&checked, costs);
        let peaks = checked.plan().peak_memory(&memory.stages);
        let numbers = [timeline.step(), timeline.span(), peaks.into_iter().fold(0.0, f64::max)];
        let rank = Rank { numbers, stages: checked.plan().stages() };
        if self.best.as_ref().is_none_or(|(best, _)| rank.is_before(best)) {
            self.best = Some((rank, Best { schedule, checked, costs: costs.clone(), timeline, bound: 0.0 }));
        }
    }
}

/// Sort key of a plan in the search; a lower key is better. Of plans with equal keys, the search keeps the first.
struct Rank {
    /// Step time, longest span and peak memory of the plan, compared in this order. Lower is better.
    numbers: [f64; 3],
    stages: usize,
}

impl Rank {
    /// Whether this sort key orders its plan before (better than) the plan with the key `other`. Compares the step
    /// time, then the longest span, the peak memory and the number of stages. Values that differ only by rounding count
    /// as equal.
    fn is_before(&self, other: &Self) -> bool {
        let compare = |(a, b): (&f64, &f64)| {
            if (a - b).abs() <= ROUNDING * a.max(*b) { Ordering::Equal } else { a.total_cmp(b) }
        };
        let by_numbers = self.numbers.iter().zip(&other.numbers).map(compare);
        by_numbers.fold(Ordering::Equal, Ordering::then).then(self.stages.cmp(&other.stages)).is_lt()
    }
}

/// Merges a split backward pass (input and weight gradient) into a whole one wherever the whole takes less time.
/// Returns the new plan; `None` if this changes nothing.
fn with_whole_backwards(plan: &Plan, costs: &Costs) -> Option<Plan> {
    let cheaper = |action: &Action| {
        let cost = costs.stage(action.stage, action.micro_batch);
        cost.backward < cost.input_gradient + cost.weight_gradient
    };
    plan.rows().iter().flatten().any(cheaper).then(|| {
        let fuse = |action: &Action| match action.compute {
            Compute::InputGradient if cheaper(action) => Some(Action { compute: Compute::Backward, ..*action }),
            Compute::WeightGradient if cheaper(action) => None,
            _ => Some(*action),
        };
        Plan::new(plan.rows().iter().map(|row| row.iter().filter_map(fuse).collect()).collect())
    })
}

/// The reason why a search for the plan with the shortest step found no plan.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum SearchError {
    /// A plan for 0 workers or 0 micro-batches was requested. Request at least one of each.
    Nothing {
        /// Requested number of workers.
        workers: usize,
        /// Requested number of micro-batches per step.
        micro_batches: usize,
    },
    /// A search of this size would take more than several minutes. Request fewer workers or micro-batches, or compare
    /// the generated schedules with [`simulate`](crate::simulate()).
    TooLarge {
        /// Requested number of workers.
        workers: usize,
        /// Requested number of micro-batches per step.
        micro_batches: usize,
        /// Maximum of `workers`.
        most_workers: usize,
        /// Maximum of `workers` x `micro_batches`.
        most: usize,
    },
    /// The costs (such as times of forward and backward passes) of no placement of stages on workers are known. Give
    /// the costs of the plan's stages and transfers.
    Costs {
        /// Requested number of workers; the costs are unknown for all their placements.
        workers: usize,
    },
    /// Every plan that the search tried and that fits into the memory limit deadlocks, because the channels between
    /// stages are too small. Raise the channel capacity to `enough`.
    Channels {
        /// Channel capacity at which the plans deadlock: the number of micro-batches that each channel between two
        /// stages can hold.
        capacity: usize,
        /// Smallest channel capacity at which at least one of the plans does not deadlock.
        enough: usize,
    },
    /// No plan that the search tried fits into the workers' memory limit. Raise the limit to `enough`, use smaller
    /// micro-batches, or partition the model into more stages.
    Memory {
        /// Memory limit of each worker, which no plan fits into, in the unit of the memory given to the search.
        limit: f64,
        /// Memory limit of each worker that at least one plan fits into, in the unit of the memory given to the search.
        enough: f64,
    },
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing { workers, micro_batches } => write!(
                f,
                "{workers} stages and {micro_batches} micro-batches: ask for at least 1 stage and 1 micro-batch"
            ),
            Self::TooLarge { workers, micro_batches, most_workers, most } => write!(
                f,
                "a search for {workers} workers x {micro_batches} micro-batches is too long: the limits are {most_workers} workers and \
                 a product of {most}, for a few minutes; ask for fewer, or compare schedules with `stageline simulate`"
            ),
            Self::Costs { workers } => {
                write!(
                    f,
                    "the costs of no plan for {workers} workers are known; give the costs of its stages and transfers"
                )
            }
            Self::Channels { capacity, enough } => {
                write!(f, "all plans deadlock at channel capacity {capacity}; raise the channel capacity to {enough}")
            }
            Self::Memory { limit, enough } => write!(
                f,
                "no plan fits into {limit} a worker; raise the limit to {enough}, cut the batch into smaller micro-batches, \
                 or the model into more stages"
            ),
        }
    }
}

impl std::error::Error for SearchError {}
