//! Lowering: turns a worker's actions into instructions, by adding the sends and receives that its forward and backward
//! passes need.

use std::fmt;
use std::str::FromStr;

use super::action::{Action, Compute, ParseActionError, number};
use super::rows::Plan;

/// The kind of tensor that a stage sends to a neighbouring stage: an activation or a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carried {
    /// The activation of a micro-batch: a stage's output, which goes to the next stage.
    Activation,
    /// The gradient of a stage's input for a micro-batch, which goes to the previous stage.
    Gradient,
}

/// The transfer of one micro-batch's activation or gradient from one stage to a neighbouring stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer {
    /// Zero-based index of the stage that sends the activation or gradient of this transfer.
    pub from: usize,
    /// Kind of tensor that this transfer sends: an activation goes to the next stage, a gradient to the previous one.
    pub carried: Carried,
    /// Zero-based index, within the step, of the micro-batch whose activation or gradient is sent.
    pub micro_batch: usize,
}

impl Transfer {
    /// Returns the index of the stage that receives the activation or gradient of a transfer.
    ///
    /// # Panics
    /// Panics for a gradient that stage 0 sends, because it has no receiver.
    pub const fn to(self) -> usize {
        match self.carried {
            Carried::Activation => self.from + 1,
            Carried::Gradient => self.from - 1,
        }
    }

    /// Returns the zero-based index of the channel that carries this transfer. Stage s sends activations on channel 2s
    /// and gradients on channel 2s+1.
    pub(crate) fn channel(self) -> usize {
        2 * self.from + usize::from(self.carried == Carried::Gradient)
    }
}

/// An instruction of a worker in a lowered plan (a plan with its sends and receives). It is an action (such as a
/// forward pass), a send or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Compute for one of the worker's stages on a micro-batch: a forward pass, a whole backward pass, or the input or
    /// weight gradient of a split one.
    Compute(Action),
    /// Send an activation or a gradient that an earlier action of the same worker has computed.
    Send(Transfer),
    /// Receive an activation or a gradient that a later action of the same worker needs.
    Receive(Transfer),
}

impl Instruction {
    /// Returns the zero-based index of the stage that this instruction belongs to: the computing, sending or receiving
    /// one.
    pub const fn stage(self) -> usize {
        match self {
            Self::Compute(action) => action.stage,
            Self::Send(transfer) => transfer.from,
            Self::Receive(transfer) => transfer.to(),
        }
    }

    /// Returns the instruction's action, such as a forward pass; `None` if the instruction is a send or a receive.
    pub const fn compute(self) -> Option<Action> {
        match self {
            Self::Compute(action) => Some(action),
            Self::Send(_) | Self::Receive(_) => None,
        }
    }

    /// Returns the zero-based index of the micro-batch that this instruction computes on, sends or receives.
    pub const fn micro_batch(self) -> usize {
        match self {
            Self::Compute(action) => action.micro_batch,
            Self::Send(transfer) | Self::Receive(transfer) => transfer.micro_batch,
        }
    }
}

/// The names of sends and receives in PyTorch's string form. Each entry has the name, such as `SEND_F`, the kind of the
/// transferred tensor, and true for a send or false for a receive.
const TRANSFERS: [(&str, Carried, bool); 4] = [
    ("SEND_F", Carried::Activation, true),
    ("RECV_F", Carried::Activation, false),
    ("SEND_B", Carried::Gradient, true),
    ("RECV_B", Carried::Gradient, false),
];

/// Writes a worker's instruction in PyTorch's string form, such as `2F0` (forward), `2SEND_F0`, `3RECV_F0`, `3SEND_B0`
/// or `2RECV_B0`.
impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (transfer, sends) = match self {
            Self::Compute(action) => return action.fmt(f),
            Self::Send(transfer) => (transfer, true),
            Self::Receive(transfer) => (transfer, false),
        };
        let form = TRANSFERS.iter().find(|(_, carried, sent)| (*carried, *sent) == (transfer.carried, sends));
        let (form, ..) = form.expect("every transfer has its form");
        write!(f, "{}{form}{}", self.stage(), transfer.micro_batch)
    }
}

impl FromStr for Instruction {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        for (form, carried, sends) in TRANSFERS {
            let Some((stage, micro_batch)) = text.split_once(form) else { continue };
            let transfer = || {
                let (stage, micro_batch) = (number(stage)?, number(micro_batch)?);
                // Activations go to the next stage and gradients to the previous one; stage 0 has no previous stage.
                let from = match (carried, sends) {
                    (Carried::Activation, true) => stage,
                    (Carried::Gradient, true) => stage.checked_sub(1).map(|_| stage)?,
                    (Carried::Activation, false) => stage.checked_sub(1)?,
                    (Carried::Gradient, false) => stage.checked_add(1)?,
                };
                Some(Transfer { from, carried, micro_batch })
            };
            let transfer = transfer().ok_or_else(|| ParseActionError::of_transfer(text))?;
            return Ok(if sends { Self::Send(transfer) } else { Self::Receive(transfer) });
        }
        text.parse().map(Self::Compute)
    }
}

/// Returns the instructions of a worker in order: its actions (forward and backward passes) with the sends and receives
/// that they need. Each receive is right before the action that needs its tensor, and each send right after the action
/// that makes its tensor. Transfers between stages of the same worker are included.
///
/// # Panics
/// Panics if the plan has no such worker.
pub fn lower(plan: &Plan, worker: usize) -> impl Iterator<Item = Instruction> + '_ {
    plan.rows()[worker].iter().flat_map(|&action| around(action, plan.stages()).into_iter().flatten())
}

/// Returns three instructions for one action of a plan with `stages` stages: the receive of its input, the action
/// itself and the send of its result. A receive or send that the action does not need is `None`.
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
    use proptest::prelude::*;

    use super::*;
    use crate::{SCHEDULES, Schedule};

    #[test]
    fn receives_come_right_before_and_sends_right_after_their_computes() {
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

    #[test]
    fn the_text_form_of_instructions_round_trips() {
        for schedule in SCHEDULES {
            let Ok(plan) = schedule.plan(4, 4) else { continue };
            for instruction in (0..plan.workers()).flat_map(|worker| lower(&plan, worker)) {
                assert_eq!(instruction.to_string().parse(), Ok(instruction));
            }
        }
    }

    #[test]
    fn malformed_transfers_are_rejected() {
        for text in
            ["0RECV_F0", "0SEND_B1", "SEND_F0", "1SEND_F", "1SEND_F-1", "1SEND_X0", "18446744073709551615RECV_B0"]
        {
            assert!(text.parse::<Instruction>().is_err(), "{text} was accepted");
        }
        let message = "0RECV_F0".parse::<Instruction>().unwrap_err().to_string();
        assert_eq!(
            message,
            "`0RECV_F0` is not a transfer, such as `2SEND_F0`: stage 0 has no stage before it, and numbers are plain digits"
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9]{0,3}(SEND_|RECV_)?[FBIW]?[0-9]{0,22}") {
            let _ = text.parse::<Instruction>();
        }
    }
}
