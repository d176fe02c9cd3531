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

mod allocator;
mod backends;
pub mod batch;
pub mod batch_norm;
pub mod batch_size;
pub mod builder;
pub mod chain;
pub mod clip;
mod collective;
mod context;
mod cores;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // only tests use it
mod cuda_driver;
mod deferred;
pub mod device;
pub mod dropout;
pub mod effects;
mod erased;
pub mod error;
pub mod estimate;
pub mod events;
pub mod failure;
pub mod finite;
pub mod fit;
pub mod flush;
mod fork;
#[cfg(any(feature = "cuda", test))]
mod fusion;
mod gauges;
mod gradients;
pub mod health;
mod host;
mod joined;
mod layout;
pub mod ledger;
mod line;
mod link;
mod location;
pub mod loss_scale;
pub mod memory;
pub mod mismatch;
pub mod modules;
mod moments;
mod named;
pub mod names;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // only tests use it
mod nccl;
pub mod nn;
mod norm;
mod optimizer_state;
mod owners;
pub mod payload;
mod peaks;
pub mod pipeline;
mod placing;
pub mod precision;
mod readout;
pub mod recompute;
mod recompute_level;
pub mod recording;
mod rehearsal;
pub mod remote;
pub mod replica;
pub mod report;
mod runner;
pub mod samples;
mod scope;
mod seed;
mod sent;
mod settle;
mod share;
mod shown;
mod sink;
mod site;
mod slots;
pub mod stage;
mod stage_runner;
mod stop;
mod tape;
mod tensors;
mod threads;
mod tie;
mod turns;
mod unify;
pub mod verify;
mod vjp;
mod warmup_cosine;
pub mod watchdog;
pub mod weight;
mod worker;

pub use allocator::CountingAllocator;
pub use batch::{Batch, BatchError};
pub use batch_norm::AccumulatedBatchNorm;
pub use batch_size::{BatchChange, EffectiveBatch};
pub use builder::PipelineBuilder;
pub use chain::{Chain, StageConfig};
pub use clip::Clip;
pub use device::{DeviceError, DeviceErrors, DeviceName};
pub use dropout::Dropout;
pub use error::{BuildError, StepError};
pub use estimate::{MemoryEstimate, StageEstimate, WorkerEstimate};
pub use events::{Event, Held};
pub use failure::{Activity, During, Failure, StageFailure, WaitCause};
pub use finite::{Culprit, OnNonFinite, Origin};
pub use fit::{DoesNotFit, Lever, WayOut};
pub use health::{Histogram, ParameterHealth};
pub use loss_scale::{DynamicLossScale, LossScale};
pub use memory::WorkerMemory;
pub use mismatch::{Difference, Kind, Mismatch};
pub use modules::{ModuleError, Modules};
pub use names::Names;
pub use payload::{Payload, PayloadMapper};
pub use pipeline::{Pipeline, Steps};
pub use precision::Precision;
pub use recompute::Recompute;
pub use recording::{Account, Clock, Recording};
pub use replica::Replica;
pub use report::{EvalReport, LossTerm, StageReport, StepReport, Update};
pub use samples::Samples;
pub use seed::seeded;
pub use shown::ParameterGradient;
pub use stage::{BoxError, LossStage, Stage};
pub use stageline_checkpoint as checkpoint;
pub use stageline_schedule as schedule;
pub use verify::{Verification, Verify};
pub use warmup_cosine::{WarmupCosine, WarmupCosineError};
pub use watchdog::{Stall, Stalled, Watchdog};
pub use weight::Weight;

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
