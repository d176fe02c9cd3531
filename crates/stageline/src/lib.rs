//! Pipeline-parallel training on [burn](https://burn.dev): a model cut into stages, each on its own device and thread.
//!
//! A batch is cut into M micro-batches that flow through P stages on a schedule, most often 1F1B. M is also the
//! gradient accumulation count: every stage adds its gradients over the micro-batches, and after the flush steps its
//! own optimizer. On a deterministic backend the result is the same bits as accumulation over the same M micro-batches on
//! one thread, for every P and schedule.
//!
//! # Layout
//!
//! In the order in which a batch goes through:
//!
//! - [`stage`], [`mod@payload`]: what a user writes: parts of a model, and what crosses between them.
//! - [`chain`]: stages joined by their types, each with a device and an optimizer; `owners`: which of them trains which parameter.
//! - [`builder`]: how they are to run; `joined`: how they are put up, in every [`replica`], each a `site`.
//! - [`pipeline`]: [`Pipeline::step`] and [`Pipeline::eval`].
//! - [`batch`]: a batch, cut into micro-batches with their loss weights.
//! - `context`: what all workers are told of it.
//! - `line`: what the caller and its workers tell each other.
//! - `worker`: one thread, which interprets its list of instructions; `stop` ends its waits; `threads` are the system's, or ones
//!   whose order a test decides.
//! - `runner`: what a worker drives; `stage_runner`: what a stage does at each instruction; `sink` is where its output goes, `link` the boundary to its
//!   neighbour, `turns` when it may be used, `sent` what it may not have sent yet, `placing` what goes another way, `tape` what a forward leaves for its backward, `vjp` how that starts, `slots` what waits between two instructions.
//! - [`weight`]: what a loss weighs; [`precision`] and [`loss_scale`]: in what it is computed.
//! - `gradients`: the running sum over micro-batches; `share`: parameters that two stages have, and how gradients and values go
//!   between them; `tie`: within a replica, `collective` between replicas; `unify`: those that a module has several times;
//!   `settle`: parameters that are the thread's own.
//! - [`flush`]: the [`ledger`] that all stages must agree on, the verdict, and the optimizer step; `norm`, [`clip`] and
//!   [`finite`] are its parts.
//! - [`health`]: how each parameter is doing; `named`: parameters under their paths; `moments`: what their optimizer knows.
//! - `shown`: gradients that are shown, not used.
//! - [`events`]: what a worker did, and when; [`recording`]: a step as it was, and why its workers idled;
//!   [`memory`]: what they held, as `gauges` read it and `allocator` counts it.
//! - `layout`: the tensors of all stages under their [`names`], as a checkpoint has them and a restored pipeline takes them ([`mismatch`]
//!   says where it cannot); `tensors` and `optimizer_state` read and write them, `host` is their form outside burn.
//! - [`watchdog`]: a pipeline that stands still is looked at, and given up.
//! - [`report`], [`error`] with [`failure`], [`modules`]: what comes out.
//!
//! [`verify`] proves on a model of one's own that all this comes to one full batch on one device.
//!
//! [`Dropout`] drops the same elements however a training is cut, and [`AccumulatedBatchNorm`] keeps statistics of whole
//! batches; [`samples`] tells them which samples a forward sees, and [`effects`] when its step has stepped.
//! [`EffectiveBatch`] does the arithmetic of batch sizes.
//! [`seeded`] makes parameters that do not depend on the cut, and [`DeviceName`] names devices.

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
pub use device::name::{DeviceError, DeviceErrors, DeviceName};
pub use failure::activity::{Activity, During, StageFailure, WaitCause};
pub use failure::build_error::BuildError;
pub use failure::step_error::StepError;
pub use failure::watchdog::{Stall, Stalled, Watchdog};
pub use memory::estimate::{MemoryEstimate, StageEstimate, WorkerEstimate};
pub use memory::fit::{DoesNotFit, Lever, WayOut};
pub use model::batch::Batch;
pub use model::batch_error::BatchError;
pub use model::effective_batch::{BatchChange, EffectiveBatch};
pub use model::loss_weight::Weight;
pub use model::payload::{Payload, PayloadMapper};
pub use model::replica::Replica;
pub use model::stage::{LossStage, Stage};
pub use pipeline::modules::{ModuleError, Modules};
pub use pipeline::report::{EvalReport, LossTerm, StageReport, StepReport, Update};
pub use pipeline::{Pipeline, Steps};
pub use recording::allocator::CountingAllocator;
pub use recording::events::{Event, Held};
pub use recording::memory::WorkerMemory;
pub use recording::{Account, Clock, Recording};
pub use stageline_checkpoint as checkpoint;
pub use stageline_schedule as schedule;
pub use state::mismatch::{Difference, Kind, Mismatch};
pub use state::names::Names;
pub use threads::failure::{BoxError, Failure};
pub use update::clip::Clip;
pub use update::finite::{Culprit, OnNonFinite, Origin};
pub use update::health::{Histogram, ParameterHealth};
pub use update::loss_scale::{DynamicLossScale, LossScale};
pub use update::parameter_gradient::ParameterGradient;
pub use update::precision::Precision;
pub use update::warmup_cosine::{WarmupCosine, WarmupCosineError};
pub use verify::Verification;
pub use verify::Verify;

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
pub use device::remote;
pub use stageline_nn::{AccumulatedBatchNorm, Dropout, Recompute, Samples, seeded};

pub mod nn {
    //! Layers whose backward splits, functions that mark blocks for recomputation, and facts about the running forward.

    pub use stageline_nn::forward::{after_step, samples};
    pub use stageline_nn::{
        Deferred, Embedding, LayerNorm, Linear, Sum, block, causal_attention, cross_entropy, gelu, is_recomputation,
        put_off, selective,
    };
}
