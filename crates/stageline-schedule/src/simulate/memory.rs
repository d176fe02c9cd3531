//! Device memory: the bytes that a micro-batch occupies on each stage, the memory limit, and each worker's peak.

use crate::plan::{Action, Compute, Plan};

/// The device memory that one micro-batch occupies on a stage until its backward pass is done. All amounts of a plan
/// have the same unit, such as bytes or live micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageMemory {
    /// Device memory of the activations that a stage retains for one micro-batch, in bytes or another unit, from its
    /// forward pass until its input gradient or whole backward pass is done.
    pub forward: f64,
    /// Device memory of the tensors that a stage retains for the weight gradient of one micro-batch, in bytes or
    /// another unit, from its input gradient until the weight gradient is done.
    pub input_gradient: f64,
}

impl StageMemory {
    /// Memory of one micro-batch on a stage, counted in live micro-batches: one unit from its forward pass until its
    /// weight gradient is done.
    pub const LIVE: Self = Self { forward: 1.0, input_gradient: 1.0 };

    /// Makes the memory requirements of a stage that retains `bytes` bytes per micro-batch, from its forward pass until
    /// its weight gradient is done.
    pub const fn whole(bytes: f64) -> Self {
        Self { forward: bytes, input_gradient: bytes }
    }

    /// Returns the most device memory that one micro-batch occupies on the stage, in the same unit as the fields.
    pub(crate) fn peak(self) -> f64 {
        self.forward.max(self.input_gradient)
    }

    /// Returns the memory that one computation reserves (positive) or releases (negative) on its worker, in the same
    /// unit as the fields, such as bytes:
    ///
    /// - A forward pass reserves the peak memory that its micro-batch will occupy on the stage.
    /// - A whole backward pass releases all of it.
    /// - Of a split backward pass, the input-gradient half releases all but the memory that the weight gradient needs,
    ///   and the weight-gradient half releases the rest.
    pub(crate) fn reserved(self, compute: Compute) -> f64 {
        match compute {
            Compute::Forward => self.peak(),
            Compute::Backward => -self.peak(),
            Compute::InputGradient => self.input_gradient - self.peak(),
            Compute::WeightGradient => -self.input_gradient,
        }
    }

    /// Returns the memory that one computation, such as a forward pass, allocates on its worker (negative: frees), as
    /// `[at its start, at its end]`. Both are in the same unit as the fields, such as bytes.
    pub fn changes(self, compute: Compute) -> [f64; 2] {
        let growth = self.input_gradient - self.forward;
        match compute {
            Compute::Forward => [self.forward, 0.0],
            Compute::Backward => [0.0, -self.forward],
            Compute::InputGradient => [growth.max(0.0), growth.min(0.0)],
            Compute::WeightGradient => [0.0, -self.input_gradient],
        }
    }
}

/// The device memory that a micro-batch occupies on each stage, and a worker's memory limit. A search uses it to choose
/// plans that fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The device memory that one micro-batch occupies on each stage: one entry per stage, in bytes or any other unit.
    pub stages: Vec<StageMemory>,
    /// Maximum device memory that micro-batches may occupy on a worker, in the same unit as `stages`.
    pub limit: f64,
}

impl Memory {
    /// Makes the memory requirements of `stages` stages, one per worker, in units of live micro-batches. A worker may
    /// have at most `limit` live micro-batches. A micro-batch is live from its forward pass until its weight gradient
    /// is done.
    pub fn live(stages: usize, limit: usize) -> Self {
        Self { stages: vec![StageMemory::LIVE; stages], limit: limit as f64 }
    }

    /// Makes the memory requirements of `stages` stages, in units of live micro-batches, without a memory limit. A
    /// micro-batch is live from its forward pass until its weight gradient is done.
    pub fn unlimited(stages: usize) -> Self {
        Self { stages: vec![StageMemory::LIVE; stages], limit: f64::INFINITY }
    }

    /// Returns the memory requirements of the same model after every stage is divided into `parts` equal stages. Each
    /// new stage needs an equal part of the old stage's memory. The memory limit of a worker stays the same.
    pub fn cut(&self, parts: usize) -> Self {
        let part = |stage: &StageMemory| StageMemory {
            forward: stage.forward / parts as f64,
            input_gradient: stage.input_gradient / parts as f64,
        };
        Self { stages: self.stages.iter().flat_map(|stage| vec![part(stage); parts]).collect(), limit: self.limit }
    }

    /// Whether a plan's peak memory stays within the memory limit on every worker.
    ///
    /// # Panics
    /// Panics if a stage of the plan has no entry in `stages`.
    pub fn suffices(&self, plan: &Plan) -> bool {
        plan.peak_memory(&self.stages).into_iter().all(|peak| self.allows(peak))
    }

    /// Whether the amount `used` is within the memory limit of a worker. An excess of up to 1e-9 of the limit counts as
    /// a rounding error, and is allowed.
    pub(crate) fn allows(&self, used: f64) -> bool {
        used <= self.limit * (1.0 + 1e-9)
    }
}

impl Plan {
    /// Returns each worker's peak memory under this plan. `stages` has the memory of one micro-batch on each stage, and
    /// the result is in the same unit. Costs do not matter, because a worker runs its actions one after another.
    ///
    /// # Panics
    /// Panics if a stage of the plan has no entry in `stages`.
    pub fn peak_memory(&self, stages: &[StageMemory]) -> Vec<f64> {
        let peak = |row: &Vec<Action>| {
            let (mut used, mut peak) = (0.0, 0.0_f64);
            for action in row {
                let [start, end] = stages[action.stage].changes(action.compute);
                used += start;
                peak = peak.max(used);
                used += end;
            }
            peak
        };
        self.rows().iter().map(peak).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GPipe, Schedule, ZbH1};

    #[test]
    fn a_split_backward_frees_memory_in_two_parts() {
        let plan = Plan::from_csv("0F0,0F1,0I0,0I1,0W0,0W1\n").unwrap();
        let peak = |forward, input_gradient| plan.peak_memory(&[StageMemory { forward, input_gradient }]);
        assert_eq!(peak(10.0, 4.0), [20.0]);
        assert_eq!(peak(10.0, 13.0), [26.0]);
        assert_eq!(plan.peak_live(), [2]);
    }

    #[test]
    fn a_limit_in_live_micro_batches_applies_to_chunks_too() {
        let plan = ZbH1.plan(4, 8).unwrap();
        assert!(Memory::live(4, 4).suffices(&plan));
        assert!(!Memory::live(4, 3).suffices(&plan));
        let halves = crate::LoopedBreadthFirst { chunks: 2 }.plan(8, 6).unwrap();
        assert!(Memory::live(4, 6).cut(2).suffices(&halves));
        assert!(!Memory::live(4, 5).cut(2).suffices(&halves));
        assert!(Memory::unlimited(3).suffices(&GPipe.plan(3, 100).unwrap()));
    }
}
