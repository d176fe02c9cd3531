//! Generates the plans of ZB-V and DualPipeV, which are written step by step for two stages (chunks) per worker, placed
//! in a V.

use std::collections::VecDeque;

use super::error::ScheduleError;
use super::rows::in_chunks;
use crate::plan::{Action, Compute, Plan};

/// One step of a generator of plans: it appends one action of a given kind, such as a forward, to the list of actions
/// of a worker with two chunks (stages).
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// A step of a generator of plans: it appends a forward to a worker's list of actions. The value is the chunk, 0 or
    /// 1 for the first or second of the worker's two stages; the forward is on this chunk's next micro-batch.
    F(usize),
    /// A step of a generator of plans: it appends a whole backward to a worker's list of actions. The value is the
    /// chunk, 0 or 1 for the first or second of the worker's two stages; the backward is on this chunk's next
    /// micro-batch.
    B(usize),
    /// A step of a generator of plans: it appends an input gradient to a worker's list of actions. The value is the
    /// chunk, 0 or 1 for the first or second of the worker's two stages; the input gradient is on this chunk's next
    /// micro-batch.
    I(usize),
    /// A step of a generator of plans: it appends the oldest pending weight gradient of one chunk to a worker's list of
    /// actions. A weight gradient is pending while the list has the input gradient of the same micro-batch, but not yet
    /// the weight gradient. The value is the chunk, 0 or 1 for the first or second of the worker's two stages.
    W(usize),
    /// A step of a generator of plans: it appends the oldest pending weight gradient of a worker's two stages to the
    /// worker's list of actions. A weight gradient is pending while the list has the input gradient of the same stage
    /// and micro-batch, but not yet the weight gradient.
    Oldest,
}

/// The list of actions of a worker with two chunks (stages), while the list is being generated action by action. An
/// action on a micro-batch beyond the last one is not added.
pub(crate) struct Row {
    /// The indices of a worker's two stages: that of its chunk 0, then that of its chunk 1.
    stages: [usize; 2],
    micro_batches: usize,
    forwards: [usize; 2],
    backwards: [usize; 2],
    /// The weight gradients that are still to be added to a worker's list of actions, oldest first. The input gradients
    /// of the same micro-batches are already in the list.
    pending: VecDeque<Action>,
    actions: Vec<Action>,
}

impl Row {
    /// Appends one action to the worker's list of actions for each entry of `steps` (such as the next forward of chunk
    /// 0), in order, and does so `times` times in a row.
    pub(crate) fn repeat(&mut self, times: usize, steps: &[Step]) {
        for _ in 0..times {
            for &step in steps {
                let action = self.next(step).filter(|action| action.micro_batch < self.micro_batches);
                self.actions.extend(action);
            }
        }
    }

    fn next(&mut self, step: Step) -> Option<Action> {
        let (compute, chunk, next) = match step {
            Step::F(chunk) => (Compute::Forward, chunk, &mut self.forwards[chunk]),
            Step::B(chunk) => (Compute::Backward, chunk, &mut self.backwards[chunk]),
            Step::I(chunk) => (Compute::InputGradient, chunk, &mut self.backwards[chunk]),
            Step::W(chunk) => {
                let oldest = self.pending.iter().position(|pending| pending.stage == self.stages[chunk]);
                return self.pending.remove(oldest?);
            }
            Step::Oldest => return self.pending.pop_front(),
        };
        let action = Action { stage: self.stages[chunk], compute, micro_batch: *next };
        *next += 1;
        if compute == Compute::InputGradient {
            self.pending.push_back(Action { compute: Compute::WeightGradient, ..action });
        }
        Some(action)
    }
}

/// Makes a plan for P workers, each of which has two chunks (stages): worker w has stage w as chunk 0 and stage 2P-1-w
/// as chunk 1. `write` gets each worker's empty list of actions, with w and P, and fills the list.
pub(crate) fn in_a_v(
    stages: usize,
    micro_batches: usize,
    write: impl Fn(&mut Row, usize, usize),
) -> Result<Plan, ScheduleError> {
    in_chunks(stages, micro_batches, 2, |worker, workers| {
        let mut row = Row {
            stages: [worker, stages - 1 - worker],
            micro_batches,
            forwards: [0; 2],
            backwards: [0; 2],
            pending: VecDeque::new(),
            actions: Vec::new(),
        };
        write(&mut row, worker, workers);
        Ok(row.actions)
    })
}
