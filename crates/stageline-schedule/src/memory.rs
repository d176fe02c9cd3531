//! How much every worker holds at once.

use crate::action::{Action, Compute};
use crate::plan::Plan;

/// What one micro-batch holds on a stage, in bytes, from its forward until its backward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageMemory {
    /// From the start of the forward: the activations that the backward needs.
    pub forward: f64,
    /// From the input gradient on, until the end of the weight gradient: what the weight gradient needs.
    pub input_gradient: f64,
}

impl StageMemory {
    /// A micro-batch counts as one until its weight gradient is done, so that memory counts live micro-batches.
    pub const LIVE: Self = Self { forward: 1.0, input_gradient: 1.0 };

    /// `bytes` until the weight gradient is done.
    pub const fn whole(bytes: f64) -> Self {
        Self { forward: bytes, input_gradient: bytes }
    }

    /// What a micro-batch that a stage has yet to forward will hold at most.
    pub(crate) fn most(self) -> f64 {
        self.forward.max(self.input_gradient)
    }

    /// What an action adds to what is set aside for the micro-batch: from its forward on, the most that it will hold.
    pub(crate) fn reserved(self, compute: Compute) -> f64 {
        match compute {
            Compute::Forward => self.most(),
            Compute::Backward => -self.most(),
            Compute::InputGradient => self.input_gradient - self.most(),
            Compute::WeightGradient => -self.input_gradient,
        }
    }

    /// What an action adds to what its worker holds when it starts, and when it ends.
    pub fn changes(self, compute: Compute) -> [f64; 2] {
        let grown = self.input_gradient - self.forward;
        match compute {
            Compute::Forward => [self.forward, 0.0],
            Compute::Backward => [0.0, -self.forward],
            Compute::InputGradient => [grown.max(0.0), grown.min(0.0)],
            Compute::WeightGradient => [0.0, -self.input_gradient],
        }
    }
}

/// What micro-batches hold on each stage, and how much of it a worker may hold at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Each stage's micro-batches.
    pub stages: Vec<StageMemory>,
    /// The most that a worker may hold.
    pub limit: f64,
}

impl Memory {
    /// At most `limit` live micro-batches on a worker, where each worker has one of `stages` stages.
    pub fn live(stages: usize, limit: usize) -> Self {
        Self { stages: vec![StageMemory::LIVE; stages], limit: limit as f64 }
    }

    /// No limit.
    pub fn unlimited(stages: usize) -> Self {
        Self { stages: vec![StageMemory::LIVE; stages], limit: f64::INFINITY }
    }

    /// The memory of a model cut finer: every stage in `parts` equal parts.
    pub fn cut(&self, parts: usize) -> Self {
        let part = |stage: &StageMemory| StageMemory {
            forward: stage.forward / parts as f64,
            input_gradient: stage.input_gradient / parts as f64,
        };
        Self { stages: self.stages.iter().flat_map(|stage| vec![part(stage); parts]).collect(), limit: self.limit }
    }

    /// Whether no worker ever holds more than the limit.
    ///
    /// # Panics
    /// If the plan has more stages.
    pub fn suffices(&self, plan: &Plan) -> bool {
        plan.peak_memory(&self.stages).into_iter().all(|peak| self.takes(peak))
    }

    /// Whether a worker may hold this much, but for rounding in sums of parts.
    pub(crate) fn takes(&self, held: f64) -> bool {
        held <= self.limit * (1.0 + 1e-9)
    }
}

impl Plan {
    /// The most that each worker holds at once. It does not depend on what anything takes, because a worker's actions
    /// never overlap.
    ///
    /// # Panics
    /// If a stage has no entry.
    pub fn peak_memory(&self, stages: &[StageMemory]) -> Vec<f64> {
        self.peaks(|action| stages[action.stage].changes(action.compute))
    }

    /// The most live micro-batches (forwarded, and their weight gradient not yet done) on each worker at once, those of
    /// its stages added up.
    pub fn peak_live(&self) -> Vec<usize> {
        self.peaks(|action| StageMemory::LIVE.changes(action.compute)).into_iter().map(|peak| peak as usize).collect()
    }

    fn peaks(&self, changes: impl Fn(Action) -> [f64; 2]) -> Vec<f64> {
        let peak = |row: &Vec<Action>| {
            let (mut held, mut peak) = (0.0, 0.0_f64);
            for &action in row {
                let [start, end] = changes(action);
                held += start;
                peak = peak.max(held);
                held += end;
            }
            peak
        };
        self.rows().iter().map(peak).collect()
    }
}

/// How many micro-batches are live after one more compute.
pub(crate) fn live_after(live: usize, compute: Compute) -> usize {
    match compute {
        Compute::Forward => live + 1,
        Compute::InputGradient => live,
        Compute::Backward | Compute::WeightGradient => live - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;
    use crate::{GPipe, ZbH1};

    #[test]
    fn a_split_backward_gives_memory_back_in_two_parts() {
        let plan = Plan::from_csv("0F0,0F1,0I0,0I1,0W0,0W1\n").unwrap();
        let peak = |forward, input_gradient| plan.peak_memory(&[StageMemory { forward, input_gradient }]);
        assert_eq!(peak(10.0, 4.0), [20.0]);
        assert_eq!(peak(10.0, 13.0), [26.0]);
        assert_eq!(plan.peak_live(), [2]);
    }

    #[test]
    fn a_limit_in_live_micro_batches_holds_for_finer_cuts_too() {
        let plan = ZbH1.plan(4, 8).unwrap();
        assert!(Memory::live(4, 4).suffices(&plan));
        assert!(!Memory::live(4, 3).suffices(&plan));
        let halves = crate::LoopedBreadthFirst { chunks: 2 }.plan(8, 6).unwrap();
        assert!(Memory::live(4, 6).cut(2).suffices(&halves));
        assert!(!Memory::live(4, 5).cut(2).suffices(&halves));
        assert!(Memory::unlimited(3).suffices(&GPipe.plan(3, 100).unwrap()));
    }
}
