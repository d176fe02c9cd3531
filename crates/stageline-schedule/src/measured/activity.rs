//! The work and the waits of a worker ([`Activity`]), such as an instruction of the plan or the optimizer step.

use std::fmt;
use std::str::FromStr;

use crate::plan::Instruction;

/// The kind of work or wait that a worker's timed event records. Examples are a forward pass, a send, the optimizer
/// step, and the wait for the next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The worker prepares one of its stages for a training step, or for other use of the pipeline, such as an
    /// evaluation.
    Start,
    /// The worker executes an instruction of the plan on one of its stages: it computes, sends or receives for a
    /// micro-batch.
    Instruction(Instruction),
    /// The worker reduces the gradients of one of its stages over all data-parallel replicas. The other replicas send
    /// their gradient sums to replica 0, which adds them up.
    Reduce,
    /// The worker finishes the backward part of a step on one of its stages, before the optimizer step. It reads
    /// gradient norms and losses from the device, and reports the micro-batches in the stage's gradient sum.
    Finish,
    /// The worker waits, once its gradients are complete, for the verdict: either all stages run their optimizer steps,
    /// or all skip this step.
    Verdict,
    /// The worker steps the optimizer of one of its stages. In a replica other than 0, it receives the new parameter
    /// values from replica 0 instead.
    OptimizerStep,
    /// The worker receives, for one of its stages, the new values of tied parameters from the stages that own them. A
    /// parameter's owner is the stage whose optimizer updates it.
    Follow,
    /// The worker copies the parameters and optimizer state of one of its stages for a checkpoint, or the stage's
    /// module for the user's program.
    Save,
    /// The worker has finished a command of the user's program, such as a step or an evaluation, and waits for the next
    /// one.
    Idle,
}

/// The activities of a worker that are not instructions of the plan, such as the optimizer step.
const OTHERS: [Activity; 8] = [
    Activity::Start,
    Activity::Reduce,
    Activity::Finish,
    Activity::Verdict,
    Activity::OptimizerStep,
    Activity::Follow,
    Activity::Save,
    Activity::Idle,
];

impl Activity {
    /// Returns the activity's name in logs. For an instruction, this is PyTorch's string form, such as `2F0` or
    /// `2SEND_F0`. All other names are one word, such as `optimizer`. Parsing a name returns the same activity.
    pub fn name(self) -> String {
        match self {
            Self::Instruction(instruction) => instruction.to_string(),
            Self::Start => "start".to_owned(),
            Self::Reduce => "reduce".to_owned(),
            Self::Finish => "finish".to_owned(),
            Self::Verdict => "verdict".to_owned(),
            Self::OptimizerStep => "optimizer".to_owned(),
            Self::Follow => "follow".to_owned(),
            Self::Save => "save".to_owned(),
            Self::Idle => "idle".to_owned(),
        }
    }

    /// Whether the activity computes for a stage: a forward or backward pass, or the stage's part of the flush
    /// (gradient norms and optimizer step). False for everything else, such as transfers and waits.
    pub const fn computes(self) -> bool {
        match self {
            Self::Instruction(Instruction::Compute(_)) | Self::Finish | Self::OptimizerStep => true,
            Self::Instruction(_)
            | Self::Start
            | Self::Reduce
            | Self::Verdict
            | Self::Follow
            | Self::Save
            | Self::Idle => false,
        }
    }

    /// Returns the cause of a wait during this activity: the stages, or the caller (the user's thread that runs the
    /// pipeline), that the worker waits for. Returns `None` if the activity never waits.
    pub const fn wait_cause(self) -> Option<WaitCause> {
        match self {
            Self::Instruction(Instruction::Receive(transfer)) => Some(WaitCause::Stage(transfer.from)),
            Self::Instruction(Instruction::Send(transfer)) => Some(WaitCause::Stage(transfer.to())),
            Self::Instruction(Instruction::Compute(_)) | Self::Reduce | Self::OptimizerStep | Self::Follow => {
                Some(WaitCause::TiedStages)
            }
            Self::Verdict => Some(WaitCause::AllStages),
            Self::Start | Self::Idle => Some(WaitCause::Caller),
            Self::Finish | Self::Save => None,
        }
    }
}

/// Formats a worker's activity as part of a sentence, such as "the optimizer step".
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => write!(f, "the start"),
            Self::Instruction(instruction) => {
                write!(f, "action {instruction}, micro-batch {},", instruction.micro_batch())
            }
            Self::Reduce => write!(f, "the reduction over the replicas"),
            Self::Finish => write!(f, "the flush"),
            Self::Verdict => write!(f, "the wait at the flush"),
            Self::OptimizerStep => write!(f, "the optimizer step"),
            Self::Follow => write!(f, "the exchange of tied parameters"),
            Self::Save => write!(f, "the copy of its state"),
            Self::Idle => write!(f, "nothing"),
        }
    }
}

/// The error for a string that is not the [name](Activity::name) of any worker activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownActivity;

impl fmt::Display for UnknownActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown activity: give an instruction such as 2F0 or 2SEND_F0, or one of ")?;
        f.write_str(&OTHERS.map(Activity::name).join(", "))
    }
}

impl std::error::Error for UnknownActivity {}

impl FromStr for Activity {
    type Err = UnknownActivity;

    fn from_str(text: &str) -> Result<Self, UnknownActivity> {
        match OTHERS.into_iter().find(|activity| activity.name() == text) {
            Some(activity) => Ok(activity),
            None => text.parse().map(Self::Instruction).map_err(|_| UnknownActivity),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Activity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Activity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The cause of a worker's wait: one stage, several stages, or the caller (the user's thread that runs the pipeline).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// The worker waits for the neighbouring stage with this index: for its next message, or for room in the channel to
    /// it.
    Stage(usize),
    /// The worker waits for all stages: at the end of a step, until the slowest stage has finished its gradients.
    AllStages,
    /// The worker waits for stages that have the same parameters as its own stage, to exchange gradients and values.
    /// These stages are in the same replica (tied parameters) or in other replicas.
    TiedStages,
    /// The worker waits for the caller: the thread of the user's program that commands the pipeline.
    Caller,
}

impl fmt::Display for WaitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage(stage) => write!(f, "stage {stage}"),
            Self::AllStages => write!(f, "all stages"),
            Self::TiedStages => write!(f, "stages with the same parameters"),
            Self::Caller => write!(f, "the caller"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_again() {
        let instructions = ["2F0", "0B11", "1I3", "1W3", "2SEND_F0", "3RECV_F0", "3SEND_B0", "2RECV_B0"];
        for name in OTHERS.map(Activity::name).into_iter().chain(instructions.map(str::to_owned)) {
            assert_eq!(name.parse::<Activity>().unwrap().name(), name);
        }
        assert_eq!("rest".parse::<Activity>(), Err(UnknownActivity));
        assert!(UnknownActivity.to_string().ends_with("verdict, optimizer, follow, save, idle"));
    }
}
