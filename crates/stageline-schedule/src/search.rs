//! The plan with the least simulated step.

use std::fmt;

use crate::action::{Action, Compute};
use crate::automatic::{Rules, automatic};
use crate::bound::lower_bound;
use crate::check::{Checked, check};
use crate::costs::Costs;
use crate::memory::{Memory, StageMemory};
use crate::placement::Placement;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::schedules::SCHEDULES;
use crate::simulate::{Timeline, simulate};

/// Into how many chunks a stage is cut at the most.
const MOST_CHUNKS: usize = 4;

/// What a search found.
#[derive(Clone, Debug)]
pub struct Best {
    /// The schedule that wrote the plan: the name of a generator, or `automatic`.
    pub schedule: &'static str,
    /// The plan, for channels that hold all micro-batches.
    pub checked: Checked,
    /// The costs of its stages: those that were asked for, or those of their chunks.
    pub costs: Costs,
    /// Its timeline.
    pub timeline: Timeline,
    /// No plan with any of the placements that were tried has a shorter step.
    pub bound: f64,
}

impl Best {
    /// How much longer the step is than the bound, as a share of the bound.
    pub fn above_bound(&self) -> f64 {
        let (step, bound) = (self.timeline.step(), self.bound);
        if bound > 0.0 { (step / bound - 1.0).max(0.0) } else { 0.0 }
    }
}

/// The plan with the least simulated step for P workers, M micro-batches, the costs and memory of a model in P stages and a
/// limit to what a worker may hold. Every generator is tried, and automatic schedules that are made to measure. Schedules
/// with chunks get each stage in V equal parts: 2, and up to 4 where they leave the choice.
///
/// # Errors
/// [`SearchError`] where nothing is to be run, or nothing fits into the memory.
///
/// # Panics
/// If there are not costs and memory for the same number of stages.
pub fn best(micro_batches: usize, costs: &Costs, memory: &Memory) -> Result<Best, SearchError> {
    let workers = costs.stages();
    assert_eq!(workers, memory.stages.len(), "give costs and memory of the same stages");
    if workers == 0 || micro_batches == 0 {
        return Err(SearchError::Nothing { workers, micro_batches });
    }
    let mut search = Search { micro_batches, best: None, bound: f64::INFINITY };
    for schedule in SCHEDULES {
        let chunked = (2..=MOST_CHUNKS).filter_map(|chunks| schedule.with_chunks(chunks));
        search.generator(schedule, costs, memory);
        chunked.for_each(|schedule| search.generator(&*schedule, costs, memory));
    }
    for placement in [Placement::in_turn(workers, 1), Placement::in_a_v(workers)] {
        search.automatic(&placement, costs, memory);
    }
    // One micro-batch after the other is a plan where each fits by itself.
    let enough = memory.stages.iter().copied().map(StageMemory::most).fold(0.0, f64::max);
    let none = SearchError::Memory { limit: memory.limit, enough };
    search.best.map(|best| Best { bound: search.bound, ..best }).ok_or(none)
}

/// The memory, and the same with lower limits: to hold less can be faster.
fn less_and_less(memory: &Memory) -> impl Iterator<Item = Memory> + '_ {
    let largest = memory.stages.iter().copied().map(StageMemory::most).fold(0.0, f64::max);
    // Twice the memory of 1F1B is enough for no bubble but fill and drain.
    let enough = memory.limit.min(2.0 * memory.stages.len() as f64 * largest);
    let mut limits = vec![memory.limit, enough, enough * 0.94, enough * 0.88, enough * 0.75, enough * 0.5];
    limits.dedup();
    limits.into_iter().map(|limit| Memory { limit, ..memory.clone() })
}

struct Search {
    micro_batches: usize,
    bound: f64,
    best: Option<Best>,
}

impl Search {
    fn generator(&mut self, schedule: &dyn Schedule, costs: &Costs, memory: &Memory) {
        let (costs, memory) = (costs.cut(schedule.chunks()), memory.cut(schedule.chunks()));
        if let Ok(plan) = schedule.plan(costs.stages(), self.micro_batches) {
            self.placed(&plan.placement(), &costs, &memory);
            self.offer(schedule.name(), plan, &costs, &memory);
        }
    }

    fn automatic(&mut self, placement: &Placement, costs: &Costs, memory: &Memory) {
        let (micro_batches, chunks) = (self.micro_batches, placement.stages() / placement.workers());
        let (costs, memory) = (costs.cut(chunks), memory.cut(chunks));
        self.placed(placement, &costs, &memory);
        for less in less_and_less(&memory) {
            for plan in Rules::all().filter_map(|rules| automatic(placement, micro_batches, &costs, &less, rules)) {
                if let Some(fused) = fused(&plan, &costs) {
                    self.offer("automatic", fused, &costs, &memory);
                }
                self.offer("automatic", plan, &costs, &memory);
            }
        }
    }

    /// A placement is tried: what none can beat is the least of their bounds.
    fn placed(&mut self, placement: &Placement, costs: &Costs, memory: &Memory) {
        self.bound = self.bound.min(lower_bound(placement, self.micro_batches, costs, memory));
    }

    fn offer(&mut self, schedule: &'static str, plan: Plan, costs: &Costs, memory: &Memory) {
        if !memory.suffices(&plan) {
            return;
        }
        let Ok(checked) = check(plan, self.micro_batches) else { return };
        let timeline = simulate(&checked, costs);
        // Of equal steps the one with the shorter span, for those who let steps overlap.
        let rank = |timeline: &Timeline| (timeline.step(), timeline.span());
        if self.best.as_ref().is_none_or(|best| rank(&timeline) < rank(&best.timeline)) {
            self.best = Some(Best { schedule, checked, costs: costs.clone(), timeline, bound: 0.0 });
        }
    }
}

/// The plan with whole backwards where they take less than their halves; `None` where they never do.
fn fused(plan: &Plan, costs: &Costs) -> Option<Plan> {
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

/// Why a search found nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum SearchError {
    /// There are no workers or no micro-batches.
    Nothing {
        /// The workers asked for.
        workers: usize,
        /// The micro-batches asked for.
        micro_batches: usize,
    },
    /// No plan fits into the memory.
    Memory {
        /// What a worker may hold.
        limit: f64,
        /// What is enough for some plan.
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
            Self::Memory { limit, enough } => write!(
                f,
                "no plan fits into {limit} a worker; raise the limit to {enough}, cut the batch into smaller micro-batches, \
                 or the model into more stages"
            ),
        }
    }
}

impl std::error::Error for SearchError {}
