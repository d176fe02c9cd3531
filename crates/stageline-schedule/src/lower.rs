//! Computes, with the transfers between them put in.

use std::fmt;

use crate::action::{Action, Compute};
use crate::plan::Plan;

/// What crosses a boundary between two stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carried {
    /// A stage's output, to the next stage.
    Activation,
    /// The gradient of a stage's input, to the stage before.
    Gradient,
}

/// One micro-batch's activation or gradient on its way between neighbouring stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer {
    /// The stage that sends.
    pub from: usize,
    /// What it sends; this fixes the direction.
    pub carried: Carried,
    /// The micro-batch.
    pub micro_batch: usize,
}

impl Transfer {
    /// The stage that receives.
    pub const fn to(self) -> usize {
        match self.carried {
            Carried::Activation => self.from + 1,
            Carried::Gradient => self.from - 1,
        }
    }
}

/// One entry of a worker's lowered list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Compute.
    Compute(Action),
    /// Hand over what an earlier compute of this worker made.
    Send(Transfer),
    /// Take what a later compute of this worker needs.
    Receive(Transfer),
}

impl Instruction {
    /// The stage of this worker that is concerned.
    pub const fn stage(self) -> usize {
        match self {
            Self::Compute(action) => action.stage,
            Self::Send(transfer) => transfer.from,
            Self::Receive(transfer) => transfer.to(),
        }
    }

    /// The micro-batch that is concerned.
    pub const fn micro_batch(self) -> usize {
        match self {
            Self::Compute(action) => action.micro_batch,
            Self::Send(transfer) | Self::Receive(transfer) => transfer.micro_batch,
        }
    }
}

/// `2F0`, `2SEND_F0`, `3RECV_F0`, `3SEND_B0`, `2RECV_B0`: PyTorch's text forms.
impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |carried| if carried == Carried::Activation { 'F' } else { 'B' };
        match self {
            Self::Compute(action) => action.fmt(f),
            Self::Send(transfer) => {
                write!(f, "{}SEND_{}{}", self.stage(), letter(transfer.carried), transfer.micro_batch)
            }
            Self::Receive(transfer) => {
                write!(f, "{}RECV_{}{}", self.stage(), letter(transfer.carried), transfer.micro_batch)
            }
        }
    }
}

/// What a worker does, in order: a receive right before the compute that needs it, and a send right after the compute
/// that makes it.
///
/// # Panics
/// If the plan has no such worker.
pub fn lower(plan: &Plan, worker: usize) -> impl Iterator<Item = Instruction> + '_ {
    plan.rows()[worker].iter().flat_map(|&action| around(action, plan.stages()).into_iter().flatten())
}

/// An action between the receive before it and the send after it, where it has them.
pub(crate) fn around(action: Action, stages: usize) -> [Option<Instruction>; 3] {
    let Action { stage, compute, micro_batch } = action;
    let (first, last) = (stage == 0, stage + 1 == stages);
    let transfer = |from, carried| Transfer { from, carried, micro_batch };
    let (needs, makes) = match compute {
        Compute::Forward => (
            (!first).then(|| transfer(stage - 1, Carried::Activation)),
            (!last).then(|| transfer(stage, Carried::Activation)),
        ),
        Compute::Backward | Compute::InputGradient => (
            (!last).then(|| transfer(stage + 1, Carried::Gradient)),
            (!first).then(|| transfer(stage, Carried::Gradient)),
        ),
        Compute::WeightGradient => (None, None),
    };
    [needs.map(Instruction::Receive), Some(Instruction::Compute(action)), makes.map(Instruction::Send)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_stand_around_the_computes_that_need_them() {
        let plan = Plan::from_csv("0F0,0B0\n1F0,1I0,1W0\n2F0,2B0\n").unwrap();
        let text =
            |worker| lower(&plan, worker).map(|instruction| instruction.to_string()).collect::<Vec<_>>().join(" ");
        let rows: Vec<_> = (0..3).map(text).collect();
        assert_eq!(
            rows,
            [
                "0F0 0SEND_F0 0RECV_B0 0B0",
                "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1I0 1SEND_B0 1W0",
                "2RECV_F0 2F0 2B0 2SEND_B0",
            ]
        );
    }
}
