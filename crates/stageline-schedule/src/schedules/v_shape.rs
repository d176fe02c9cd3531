//! Generates the plans of ZB-V and DualPipeV. Both have two stages (chunks) per worker, placed in a V. Each worker's
//! list of actions is written one action after another.

use std::collections::VecDeque;

use super::error::ScheduleError;
use super::rows::in_chunks;
use crate::plan::{Action, Compute, Plan};

/// One step of generating a worker's list of actions, for a worker with two chunks (stages). Each step appends one
/// action, such as a forward pass, to the list.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Append the chunk's next forward pass to the worker's list of actions. The value is the chunk: 0 or 1, for the
    /// first or second of the worker's two stages.
    F(usize),
    /// Append the chunk's next whole backward pass to the worker's list of actions. The value is the chunk: 0 or 1, for
    /// the first or second of the worker's two stages.
    B(usize),
    /// Append the chunk's next input gradient to the worker's list of actions. The value is the chunk: 0 or 1, for the
    /// first or second of the worker's two stages.
    I(usize),
    /// Append the chunk's oldest pending weight gradient to the worker's list of actions. A weight gradient is pending
    /// if the list has the input gradient of the same micro-batch already. The value is the chunk: 0 or 1, for the
    /// first or second of the worker's two stages.
    W(usize),
    /// Append the oldest pending weight gradient of either of the worker's stages to its list of actions. A weight
    /// gradient is pending if the list has the input gradient of the same stage and micro-batch already.
    Oldest,
}

/// Builder of the action list of a worker with two chunks (stages): a plan generator appends actions one by one.
/// Actions on micro-batches beyond the last one are left out.
pub(crate) struct Row {
    /// Zero-based indices of the two stages that are the worker's chunks 0 and 1.
    stages: [usize; 2],
    micro_batches: usize,
    forwards: [usize; 2],
    backwards: [usize; 2],
    /// Weight gradients that must still be appended to the worker's list of actions, oldest first. The list has the
    /// input gradients of the same stages and micro-batches already.
    pending: VecDeque<Action>,
    actions: Vec<Action>,
}

impl Row {
    /// Appends one action to a worker's list for each entry of `steps`, in order. Repeats this `times` times. An action
    /// on a micro-batch beyond the last one is left out, and so is a weight gradient if none is pending.
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

/// Makes a plan for P workers with two chunks (stages) each: worker w has the stages w (chunk 0) and 2P-1-w (chunk 1).
/// `write` gets worker w's empty list of actions, w and P, and fills the list. Returns an error if the number of stages
/// is odd or 0, or if there are no micro-batches.
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
