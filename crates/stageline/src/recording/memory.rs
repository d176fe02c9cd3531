//! What workers hold in a step, in bytes.

use stageline_schedule::{Carried, Compute, Instruction};

use crate::failure::activity::Activity;
use crate::recording::events::Event;

/// What a worker held in a step, in bytes, as its threads allocated it: what it sent counts until its receiver frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerMemory {
    /// When the step begins: parameters and optimizer states; where steps overlap, also what is kept of the step before until all
    /// agree on it.
    pub resident: u64,
    /// The most at any time in it.
    pub peak: u64,
}

impl WorkerMemory {
    pub(crate) fn of(events: &[Event]) -> Option<Self> {
        let held = || events.iter().filter_map(|event| event.held);
        let start = events.iter().rfind(|event| event.activity == Activity::Start)?;
        Some(Self { resident: start.held?.end, peak: held().map(|held| held.peak).max()? })
    }
}

/// What a stage handed on in each of its transfers of a kind, in bytes.
pub(crate) fn sent(stage: usize, carried: Carried, rows: &[Vec<Event>]) -> impl Iterator<Item = u64> {
    rows.iter().flatten().filter_map(move |event| match event.activity {
        Activity::Instruction(Instruction::Send(transfer)) => {
            ((transfer.from, transfer.carried) == (stage, carried)).then_some(event.sent)
        }
        _ => None,
    })
}

/// What a stage handed to the next for a micro-batch, in bytes: the mean over the micro-batches; `None` where it is the last.
pub(crate) fn output(stage: usize, rows: &[Vec<Event>]) -> Option<f64> {
    let sent: Vec<_> = sent(stage, Carried::Activation, rows).collect();
    (!sent.is_empty()).then(|| sent.iter().sum::<u64>() as f64 / sent.len() as f64)
}

/// What a forward of a stage left for its backward, in bytes: the mean over the micro-batches. It is what a live micro-batch holds.
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
