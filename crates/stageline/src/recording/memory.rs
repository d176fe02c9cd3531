//! The measured memory of workers, activations and transfers, from the events of a step.

/// Returns a worker's allocated memory at the start of a training step and its peak during the step, from the worker's
/// recorded events. Returns `None` if memory was not measured.
pub(crate) fn of_worker(events: &[Event]) -> Option<WorkerMemory> {
    let held = || events.iter().filter_map(|event| event.held);
    let start = events.iter().rfind(|event| event.activity == Activity::Start)?;
    Some(WorkerMemory { resident: start.held?.end, peak: held().map(|held| held.peak).max()? })
}

/// Returns the number of bytes sent in each of a stage's transfers to other stages in a training step. `carried`
/// selects activations or gradients, and `rows` lists the recorded events of each worker.
pub(crate) fn sent(stage: usize, carried: Carried, rows: &[Vec<Event>]) -> impl Iterator<Item = u64> {
    rows.iter().flatten().filter_map(move |event| match event.activity {
        Activity::Instruction(Instruction::Send(transfer)) => {
            ((transfer.from, transfer.carried) == (stage, carried)).then_some(event.sent)
        }
        _ => None,
    })
}

/// Returns the mean number of bytes that a stage sent to the next stage for one micro-batch; `None` for the last stage.
pub(crate) fn output(stage: usize, rows: &[Vec<Event>]) -> Option<f64> {
    let sent: Vec<_> = sent(stage, Carried::Activation, rows).collect();
    (!sent.is_empty()).then(|| sent.iter().sum::<u64>() as f64 / sent.len() as f64)
}

/// Returns the mean number of bytes of activations that a stage's forward pass stores for the backward pass of the same
/// micro-batch. Returns `None` if memory was not measured.
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

use stageline_schedule::{Activity, Carried, Compute, Event, Instruction, WorkerMemory};
