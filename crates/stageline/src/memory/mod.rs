//! Memory estimates: how many bytes each worker will need, and which settings would need less.
//!
//! Input: the sizes of parameters, the plan, and the events recorded in a rehearsal: a step of two micro-batches that
//! only measures memory and is rolled back. Output: a [`MemoryEstimate`](estimate::MemoryEstimate) before the first
//! step, and predictions for other settings. This folder owns the prediction of memory, in bytes, for steps that have
//! not run. To find a worker's peak, it goes through the worker's actions in a plan, and adds up the activations,
//! gradient sums and tensors in flight (sent and not yet used) at each of them. It must not run stages, measure
//! anything or change settings: `pipeline` runs the rehearsal, and `recording` measures the times and memory of steps
//! that did run.
//!
//! The bytes of a model's parameters are counted here, from their shapes and dtypes; `model` counts the bytes of a
//! batch, and `transfer` the bytes of sent tensors.
//!
//! - `rehearsal`: turns the recorded events of a rehearsal into the figures of each stage (`Rehearsal`), and counts the
//!   bytes of each stage's parameters, gradients and copies (`Parameters`).
//! - `estimate`: the memory figures of one stage (`StageEstimate`: parameters, gradients, optimizer, activations,
//!   forward, backward, flush, tied gradients) and of a pipeline (`MemoryEstimate`), also for other replicas (`Leaf`),
//!   overlapping steps (`Steps`) and a checkpoint's copies (`Copies`).
//! - `worker_estimate`: the memory figures of one worker (`WorkerEstimate`).
//! - `independent_of_rows`: the part of a stage's memory that does not depend on the rows of a micro-batch
//!   (`IndependentOfRows`).
//! - `worker_peaks`: the peak memory of each worker and the needs of each device (`devices`), with the activations and
//!   the tensors in flight of the worker's stages (`in_flight`, `Transfers`, `Row`).
//! - `what_if`: the estimate under other settings, such as another plan, micro-batch size or number of stages.
//! - `fit`: the check against the devices' memory (`DoesNotFit`, `Shortage`, `Room`), the changes of settings that
//!   would help (`Remedy`), and the error message with all sizes (`Bytes`), which calls this host's CPU "the host".
//! - `changed_settings`, `lever`: combinations of changed settings (`Change`; its `Cut` doubles the stages or joins
//!   them into one), and the single settings in them (`Lever`).
//! - `choose_recompute`: the least activation recomputation of each stage that lets a pipeline fit into memory
//!   (`Level`).

mod changed_settings;
pub(crate) mod choose_recompute;
pub(crate) mod estimate;
pub(crate) mod fit;
pub(crate) mod independent_of_rows;
pub(crate) mod lever;
pub(crate) mod rehearsal;
pub(crate) mod what_if;
pub(crate) mod worker_estimate;
mod worker_peaks;
