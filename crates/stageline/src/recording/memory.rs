//! The measured memory of workers, activations and transfers, from the events of a step.

use stageline_schedule::{Carried, Compute, Instruction};

use crate::failure::activity::Activity;
use crate::recording::events::Event;

/// The memory in use by a worker in a step, in bytes. Host memory counts for the worker whose threads allocated it, so
/// a sent tensor counts for its sender until the receiver frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerMemory {
    /// The bytes that the worker has in use at the beginning of the step: parameters and optimizer states. With
    /// overlapping steps, they include the state from before the previous step, which is kept until the verdict on that
    /// step (whether its optimizer steps are kept or rolled back).
    pub resident: u64,
    /// The largest number of bytes in use by the worker at any time of the step.
    pub peak: u64,
}

impl WorkerMemory {
    pub(crate) fn of(events: &[Event]) -> Option<Self> {
        let held = || events.iter().filter_map(|event| event.held);
        let start = events.iter().rfind(|event| event.activity == Activity::Start)?;
        Some(Self { resident: start.held?.end, peak: held().map(|held| held.peak).max()? })
    }
}

/// Returns the sizes in bytes of the activations or gradients (`carried`) that a stage sent in a step, one size for
/// each send.
pub(crate) fn sent(stage: usize, carried: Carried, rows: &[Vec<Event>]) -> impl Iterator<Item = u64> {
    rows.iter().flatten().filter_map(move |event| match event.activity {
        Activity::Instruction(Instruction::Send(transfer)) => {
            ((transfer.from, transfer.carried) == (stage, carried)).then_some(event.sent)
        }
        _ => None,
    })
}

/// Returns the number of bytes that a stage sent to the next stage for one micro-batch, as the mean over the
/// micro-batches; `None` for the last stage.
pub(crate) fn output(stage: usize, rows: &[Vec<Event>]) -> Option<f64> {
    let sent: Vec<_> = sent(stage, Carried::Activation, rows).collect();
    (!sent.is_empty()).then(|| sent.iter().sum::<u64>() as f64 / sent.len() as f64)
}

/// Returns the memory of one live micro-batch on a stage: the number of bytes that the stage's forward keeps for its
/// backward, as the mean over the micro-batches. `None` if memory was not measured.
pub(crate) fn activation(stage: usize, rows: &[Vec<Event>]) -> Option<f64> {
    let forward = |event: &&Event| match event.activity {
        Activity::Instruction(Instruction::Compute(action)) => {
            (action.stage, action.compute) == (stage, Compute::Forward)
        }
        _ => false,
    };
    let kept = rows.iter().flatten().filter(forward).map(|event| Some(event.held?.kept as f64));
    let kept = kept.collect::<Option<Vec<_>>>()?;
    (!kept.is_empty()).then(|| kept.iter().sum::<f64>() / kept.len() as f64)
}
