//! Two chunks a worker, placed in a V.

use std::collections::VecDeque;

use super::rows::in_chunks;
use crate::action::{Action, Compute};
use crate::plan::Plan;
use crate::schedule::ScheduleError;

/// What a worker does next, by chunk; the micro-batch is the next one of that chunk.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Forward.
    F(usize),
    /// The whole backward.
    B(usize),
    /// The input gradient.
    I(usize),
    /// The oldest weight gradient that is due in one chunk.
    W(usize),
    /// The oldest weight gradient that is due in either chunk.
    Oldest,
}

/// A worker's list, written step by step. Steps may go on beyond the last micro-batch; the list does not.
pub(crate) struct Row {
    /// The stages of chunks 0 and 1.
    stages: [usize; 2],
    micro_batches: usize,
    forwards: [usize; 2],
    backwards: [usize; 2],
    /// The weight gradients of the input gradients so far, oldest first.
    due: VecDeque<Action>,
    actions: Vec<Action>,
}

impl Row {
    /// Adds these steps, so many times.
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
                let oldest = self.due.iter().position(|due| due.stage == self.stages[chunk]);
                return self.due.remove(oldest?);
            }
            Step::Oldest => return self.due.pop_front(),
        };
        let action = Action { stage: self.stages[chunk], compute, micro_batch: *next };
        *next += 1;
        if compute == Compute::InputGradient {
            self.due.push_back(Action { compute: Compute::WeightGradient, ..action });
        }
        Some(action)
    }
}

/// Worker w of P has stage w, its chunk 0, and stage 2P-1-w, its chunk 1; `write` writes its list, by w and P.
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
            due: VecDeque::new(),
            actions: Vec::new(),
        };
        write(&mut row, worker, workers);
        Ok(row.actions)
    })
}
