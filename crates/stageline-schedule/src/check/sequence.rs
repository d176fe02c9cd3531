//! The sequence of actions that a stage must run on a micro-batch. It is a forward and a backward pass (`F B`), or a
//! forward pass, an input gradient and a weight gradient (`F I W`).

use crate::plan::{Action, Compute};

/// How much of one micro-batch's forward and backward pass a stage has done.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Progress {
    Nothing,
    Forwarded,
    InputGradientDone,
    Trained,
    Wrong,
}

impl Progress {
    /// Returns a stage's progress on a micro-batch after one more computation; `Wrong` if the computation is out of
    /// order or repeated.
    pub(crate) fn after(self, compute: Compute) -> Self {
        match (self, compute) {
            (Self::Nothing, Compute::Forward) => Self::Forwarded,
            (Self::Forwarded, Compute::Backward) => Self::Trained,
            (Self::Forwarded, Compute::InputGradient) => Self::InputGradientDone,
            (Self::InputGradientDone, Compute::WeightGradient) => Self::Trained,
            _ => Self::Wrong,
        }
    }
}

/// Describes the first missing, repeated or misordered computation of a stage on a micro-batch, for an error message.
/// `found` lists the kinds of computations that the plan has, in order.
pub(crate) fn fault(stage: usize, micro_batch: usize, found: &[Compute]) -> String {
    let action = |compute| Action { stage, compute, micro_batch };
    let mut progress = Progress::Nothing;
    for &compute in found {
        let next = progress.after(compute);
        if next == Progress::Wrong {
            return match (progress, compute) {
                (Progress::Nothing, _) => format!("{} comes before {}", action(compute), action(Compute::Forward)),
                (Progress::Forwarded, Compute::WeightGradient) => {
                    format!("{} comes before {}", action(compute), action(Compute::InputGradient))
                }
                _ => format!("{} is one too many", action(compute)),
            };
        }
        progress = next;
    }
    match progress {
        Progress::Nothing => format!("{} is missing", action(Compute::Forward)),
        Progress::Forwarded => format!("{} is missing", action(Compute::Backward)),
        _ => format!("{} is missing", action(Compute::WeightGradient)),
    }
}
