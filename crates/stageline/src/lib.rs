//! Pipeline-parallel training on [burn](https://burn.dev): a model is split into stages, each on its own device and
//! thread.
//!
//! A batch is split into M micro-batches that flow through P stages on a schedule, most often 1F1B. M is also the
//! gradient accumulation count: every stage sums its gradients over the micro-batches. At the end of a step (the
//! flush), every stage steps its own optimizer. On a deterministic backend the trained parameters are bitwise identical
//! to those of gradient accumulation over the same M micro-batches on one thread, for every P and every schedule.
//!
//! # Where to begin
//!
//! - A model: [`Stage`] and [`LossStage`] are the traits that its stages implement. [`Payload`] marks the values that
//!   may cross the boundary between two stages, and a [`SharedInput`] goes from the batch to every stage that reads it.
//!   [`Batch`] holds the input and the targets of a step, and [`Weight`] the divisor of a loss sum, such as the number
//!   of targets.
//! - A model of many equal blocks: [`Row`] partitions it into any number of stages, and creates each layer on its
//!   stage's device. The split points are computed from the layers' [`Costs`] or given as a [`Cut`]. If the blocks
//!   implement [`Halves`], a stage may end within a block. [`LayeredModel`] makes such a row from a model that is a
//!   single struct.
//! - A pipeline: [`Pipeline::builder`] chains the stages, each with a [`StageConfig`] (device, optimizer and learning
//!   rate). [`DeviceName`] opens devices by name, and [`PipelineBuilder`] has all settings.
//! - Training: [`Pipeline::step`], [`Pipeline::steps`] and [`Pipeline::eval`] run batches, and [`Pipeline::infer`]
//!   returns outputs. [`StepReport`] says what a step did, and [`StepError`] why it failed. [`Pipeline::checkpoint`]
//!   copies the state for resuming a training run.
//! - Warnings are `tracing` events, which are invisible unless the program installs a subscriber, such as
//!   `tracing_subscriber::fmt::init()`. Programs of `stageline-train` install one.
//! - Time and memory: [`Recording`] explains the idle time of a step, and [`MemoryEstimate`] predicts the memory that
//!   each worker needs.
//! - Verification: [`verify`] checks, on the user's own model, that a pipeline trains like one device on the full
//!   batch.
//! - Layers: [`nn`] has layers whose backward pass splits into input gradient and weight gradients, and functions that
//!   mark blocks for activation recomputation. [`Dropout`] drops the same elements for every partition and M,
//!   [`AccumulatedBatchNorm`] keeps the statistics of whole batches, and [`seeded`] initialises parameters
//!   independently of the partition.
//! - Batch sizes: [`EffectiveBatch`] computes learning rates and step counts for another number of samples per step.
//!
//! # Layout
//!
//! The folders and modules, in the order that a training run uses them:
//!
//! - `model`: the traits that a user implements (`Stage`, `LossStage`), and batches split into micro-batches with loss
//!   weights.
//! - `device`: devices by name (`DeviceName`), on this host and on others ([`mod@remote`]).
//! - `build`: everything before the first step: the chain of stages, the settings (`PipelineBuilder`) and their
//!   validation, and the construction of the replicas.
//! - `pipeline`: the caller's handle, which commands the workers, decides the verdict on a step (whether all stages
//!   step their optimizers or skip it), and makes reports.
//! - `worker`: the loop of one worker thread, which executes its list of instructions in the plan.
//! - `runner`: one stage with its module, and the actions (forward passes, backward passes, transfers) that
//!   instructions ask for.
//! - `transfer`: activations, gradients and tied parameters in flight between stages and replicas.
//! - `update`: gradient sums, norms, the verdict on a step (step the optimizers, or skip), and the optimizer step with
//!   its rollback.
//! - `failure`: the stop signal, which ends all waits; the watchdog for stalls; and the errors.
//! - `threads`: threads and bounded channels, which a test can replace to decide which thread runs next.
//! - `recording`: the events (timed activities) and the memory that workers measure in a step, and the causes of idle
//!   time.
//! - `memory`: estimates of the memory that each worker will need, and suggestions of settings that need less memory.
//! - `state`: the contents of a checkpoint, whose parameter names do not depend on the partition.
//! - [`verify`]: the comparison of a pipeline with one device that trains on the full batch.
//!
//! Three other crates are re-exported: `stageline-schedule` as [`mod@schedule`] (plans and their check),
//! `stageline-checkpoint` as [`mod@checkpoint`] (files), and the public items of `stageline-nn` in [`nn`] (layers).

mod build;
mod device;
mod failure;
mod memory;
mod model;
mod pipeline;
mod recording;
mod runner;
mod state;
mod threads;
mod transfer;
mod update;
pub mod verify;
mod worker;

pub use build::builder::PipelineBuilder;
pub use build::chain::{Chain, StageConfig};
pub use build::cost::{Costs, LayerCost};
pub use build::cut::{Cut, CutError};
pub use build::fallbacks::Fallbacks;
pub use build::halves::Halves;
pub use build::layered::{BlockLayer, FirstLayer, LastLayer, LayeredModel, ModelRow};
pub use build::row::Row;
pub use device::error::{DeviceError, DeviceErrors};
pub use device::gpu::Gpu;
pub use device::gpu_api::GpuApi;
pub use device::gpu_search::GpuSearchError;
pub use device::memory::DeviceMemory;
pub use device::name::DeviceName;
pub use device::remote;
pub use device::speed::device_speeds;
pub use failure::activity::{During, StageFailure};
pub use failure::build_error::BuildError;
pub use failure::refused_fallback::RefusedFallback;
pub use failure::step_error::StepError;
pub use failure::watchdog::{Stall, Stalled, Watchdog};
pub use memory::estimate::{MemoryEstimate, StageEstimate};
pub use memory::fit::{DoesNotFit, Remedy, Shortage};
pub use memory::lever::Lever;
pub use memory::worker_estimate::WorkerEstimate;
pub use model::batch::Batch;
pub use model::batch_error::BatchError;
pub use model::effective_batch::{BatchChange, EffectiveBatch};
pub use model::loss_weight::Weight;
pub use model::payload::{Payload, PayloadMapper, SharedInput};
pub use model::replica::{Replica, ReplicaStage};
pub use model::stage::{LossStage, Stage};
pub use pipeline::modules::{ModuleError, Modules};
pub use pipeline::report::{EvalReport, LossTerm, Metric, StageReport, StepReport, Update};
pub use pipeline::{Pipeline, Steps};
pub use recording::allocator::CountingAllocator;
pub use recording::{Clock, Recording};
pub use stageline_checkpoint as checkpoint;
pub use stageline_nn::{AccumulatedBatchNorm, BlockOutOfRange, BlockSet, Dropout, Recompute, Samples, seeded};
pub use stageline_schedule as schedule;
pub use stageline_schedule::{Account, Activity, Event, Held, WaitCause, WorkerMemory};
pub use state::frozen::FrozenFrom;
pub use state::mismatch::{Difference, Kind, Mismatch};
pub use state::names::Names;
pub use state::parameter_count::ParameterCount;
pub use threads::failure::{BoxError, Failure};
pub use update::clip::Clip;
pub use update::health::{Histogram, ParameterHealth};
pub use update::loss_scale::{DynamicLossScale, LossScale};
pub use update::noise::{GradientNoise, NoiseAverage, NoiseReport};
pub use update::not_finite::{Culprit, OnNonFinite, Origin};
pub use update::parameter_gradient::ParameterGradient;
pub use update::precision::Precision;
pub use update::state_memory::{OptimizerState, OptimizerStateError, PlacedState};
pub use update::warmup_decay::{Decay, WarmupDecay, WarmupDecayError};
pub use verify::Verification;
pub use verify::Verify;

pub mod nn {
    //! Layers and functions for models, from the crate `stageline-nn`:
    //!
    //! - layers whose backward pass splits into an input gradient and weight gradients,
    //! - functions that mark blocks for activation recomputation (activation checkpointing),
    //! - functions that a layer calls in its forward pass, for example to report its FLOPs,
    //! - descriptions of operations, and of the reasons why a device has no Stageline kernel for an operation.

    pub use stageline_nn::{
        AttentionHeads, Deferred, Embedding, Fallback, LayerNorm, Linear, MASKED, Operation, Reason, RmsNorm,
        RotaryAngles, Sum, after_step, block, causal_attention, causal_attention_within, counting_flops, cross_entropy,
        feed_forward, gelu, gelu_tanh, is_recomputation, join_rotated, put_off, report_flops, selective, sequence,
        swiglu, unmasked,
    };
}
