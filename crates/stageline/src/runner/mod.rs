//! Runners: a runner is one pipeline stage with its types erased. A worker drives it with the instructions of a plan.
//!
//! Input: instructions, the description of a step, evaluation or inference ([`Pass`](pass::Pass)), and verdicts (step
//! the optimizer, or skip the step). Output: the stage's outcome (losses, gradient norms), its report after the verdict
//! ([`Conclusion`]), and its state. This folder owns a stage's module while it trains, with its loss and its live
//! micro-batches (between forward and backward pass). It runs forward and backward passes, and calls `transfer` and
//! `update`. A [`Runner`] must not know threads, channels of commands, or the order of instructions: the worker does.
//!
//! The worker passes each instruction to the runner of the instruction's stage. The runner matches on the instruction
//! (`Instruction::Compute`, `Receive`, `Send`) and executes it. The runner warns once about operations that Stageline's
//! own kernels do not compute (`Fallback`, which `stageline-nn` collects in the first forward pass), or returns an
//! error. It also warns once about backward passes that are not split, and about activation recomputation (`Recompute`)
//! without effect.
//!
//! This file contains the trait [`Runner`], why an instruction ends early ([`Interrupt`]), and a stage's type-erased
//! module ([`ErasedModule`]), as a worker sends it to the caller.
//!
//! - `stage`: the runner of one stage (`StageRunner`), from the start of a step (`Mode`) to commit or rollback; its
//!   place in the pipeline (`StageSlot`); and what a forward pass retains for its backward pass (`Taped`). It also
//!   chooses the neighbour for a transfer.
//! - `compute`: forward passes, split and unsplit backward passes (input and weight gradients separately or together),
//!   and the search for non-finite results in an inspection (a second run of a non-finite step).
//! - `sums`: a stage's gradient sums (`StageSums`), their reduction over replicas, and the losses, metrics and norms
//!   that the stage reads from its device at the end of a step or evaluation (`Numbers`).
//! - `parameters`: a stage's parameters (`StageParameters`), their optimizer step after the verdict, and the exchange
//!   of values with the stages and replicas that share them.
//! - `neighbour`: receives from and sends to the previous or the next stage (`Neighbour`).
//! - `input`: the input side of a stage (`Source`): the caller's batch (`FromBatch`), or the previous stage
//!   (`FromPrevious`).
//! - `output`: the output side of a stage (`Sink`): the next stage (`ToNext`), or the loss, the metrics and the caller
//!   (`ToCaller`, `Results`, `Wanted`). Rejects losses and metrics with a wrong shape or in BF16 or F16, and divides
//!   the loss by its weight for the backward pass.
//! - `warnings`: the warnings that a stage has logged (`Warned`), and the warning about operations that Stageline's own
//!   kernels do not compute (`Fallback`).
//! - `slots`: storage for tensors of single micro-batches that wait between two instructions (`Slots`).
//! - `pass`: the kind of work on a batch (`Pass`: a step, inspection, evaluation or inference) and its `Context`: step
//!   number, loss weights, divisor, loss scale.

mod compute;
pub(crate) mod input;
mod neighbour;
pub(crate) mod output;
mod parameters;
pub(crate) mod pass;
mod slots;
pub(crate) mod stage;
mod sums;
pub(crate) mod warnings;

use std::any::{Any, type_name};

use burn::module::ParamId;
use burn::tensor::Device;
use stageline_schedule::Instruction;

use crate::failure::stop::{Stopped, Waits};
use crate::model::replica::Replica;
use crate::runner::pass::Pass;
use crate::state::frozen::FrozenFrom;
use crate::state::layout::StageState;
use crate::threads::failure::BoxError;
use crate::update::flush::{Outcome, Verdict};
use crate::update::health::ParameterHealth;
use crate::update::parameter_gradient::ParameterGradient;

/// All stages of one replica in pipeline order, with their module, input and output types erased.
pub(crate) type Stages = Vec<Box<dyn Runner>>;

/// The reason why a worker stops executing its list of instructions before the end.
pub(crate) enum Interrupt {
    /// The pipeline stops, because another worker failed or the caller dropped the pipeline.
    Stopped,
    /// The stage failed with this error: either the user's code (forward pass, loss or metrics) returned it, or the
    /// first forward pass contains an operation without a Stageline kernel and the settings forbid such operations.
    Failed(BoxError),
}

impl From<Stopped> for Interrupt {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

/// A stage's report at the end of a step: the learning rate, statistics of its parameters and gradients, and the sizes
/// of gradients and of optimizer state moved to host memory.
#[derive(Default)]
pub(crate) struct Conclusion {
    /// Learning rate of the stage's optimizer step; `None` if the stage made no optimizer step.
    pub(crate) learning_rate: Option<f64>,
    /// Health report (statistics such as gradient norm and update size) of each of the stage's parameters, before names
    /// are added. Empty in steps without health reports.
    pub(crate) health: Vec<(ParamId, ParameterHealth)>,
    /// Gradient of each of the stage's trained parameters, in a step that only returns gradients to the caller. Empty
    /// in any other step.
    pub(crate) gradients: Vec<ParameterGradient>,
    /// Bytes of optimizer state that the optimizer step moved from device memory to host memory; 0 if the optimizer
    /// state stays on the stage's device.
    pub(crate) states_on_host: u64,
    /// Bytes of the last micro-batch's parameter gradients that were allocated in addition to the stage's gradient
    /// sums. Excludes gradients that layers add directly to the sums during the backward pass.
    pub(crate) gradients_beside: u64,
}

/// A pipeline stage whose module, input and output types are erased. In a training step a worker calls `begin`, then
/// `run` for each instruction, then `reduce` and `finish`. After the verdict on the step it calls `conclude` and
/// `follow`.
pub(crate) trait Runner: Send {
    fn replica(&self) -> Replica;
    fn stage(&self) -> usize;
    /// Prepares the stage for the next training step, evaluation or inference. The first stage waits for the inputs of
    /// all micro-batches from the caller. The last stage waits for their targets, except in inference.
    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped>;
    /// Executes one instruction of the worker's list: a forward pass, a backward pass, a send or a receive. Returns the
    /// number of bytes that a send sent to another stage; 0 for any other instruction.
    fn run(&mut self, instruction: Instruction, waits: &Waits) -> Result<u64, Interrupt>;
    fn device(&self) -> &Device;
    /// Completes the stage's gradient sums of a step. With several data-parallel replicas, replica 0 adds up the sums
    /// of all replicas, and the other replicas send their sums to replica 0.
    fn reduce(&mut self, step: usize, waits: &Waits) -> Result<(), Stopped>;
    /// Ends a step, evaluation or inference, and returns the stage's outcome, such as losses and gradient norms. In
    /// inference, the last stage sends its outputs to the caller.
    fn finish(&mut self, waits: &Waits) -> Result<Outcome, Stopped>;
    /// Saves a copy of the gradient sums before a speculative optimizer step, which is made before the verdict (step or
    /// skip) is known. The copy is needed if the step is rolled back and made again, for example with clipped
    /// gradients.
    fn keep_sums(&mut self);
    /// Discards the gradient sums, losses and metrics of a step that began too early, because its worker assumed a
    /// wrong verdict (step or skip) on the previous step.
    fn forget(&mut self);
    /// Sends the current values of the shared parameters that this stage owns (updates with its optimizer) to the
    /// stages and replicas that have copies. Does not step the optimizer.
    fn publish(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Receives and discards the values of tied (shared) parameters that other stages send in a mispredicted step (one
    /// for which stages assumed a wrong verdict: step or skip). This empties the channels.
    fn ignore(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Carries out the verdict on a step, and returns the stage's report:
    ///
    /// - Step: a stage of replica 0 steps its optimizer, and a stage of another replica receives the new parameter
    ///   values from replica 0.
    /// - Skip the step, or only return its gradients: no parameter changes.
    /// - Rehearse (only measure memory): a stage of replica 0 steps its optimizer, and [`follow`](Self::follow) rolls
    ///   the step back.
    fn conclude(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped>;
    /// Completes a training step after [`conclude`](Self::conclude) has carried out the verdict. Receives the new
    /// values of tied (shared) parameters from the stages that own them, or rolls back a rehearsal (a step that only
    /// measures memory).
    fn follow(&mut self, verdict: Verdict, waits: &Waits) -> Result<(), Stopped>;
    /// Makes the last training step final: the stage discards the copy of its state from before that step.
    fn commit(&mut self);
    /// Rolls back the stage's last optimizer step: restores the state from before the step, and the step's gradient
    /// sums if a copy was kept.
    fn roll_back(&mut self);
    fn state(&self, frozen_from: FrozenFrom) -> StageState;
    /// Returns a copy of the stage's module without autodiff, in the precision of the trained parameters, not in the
    /// lower precision of forward and backward passes.
    fn copy(&self) -> ErasedModule;
    /// Whether the stage's module can be returned to the caller: it was not lost in a panic, and has made no optimizer
    /// step that other stages have not made.
    fn is_whole(&self) -> bool;
    /// Whether the stage is torn, that is, inconsistent with other stages: it has made an optimizer step that they have
    /// not made, and cannot roll it back.
    fn is_torn(&self) -> bool;
    /// Returns the stage's trained module, or `None` if the module was lost in a panic or has made an optimizer step
    /// that other stages have not made.
    fn into_module(self: Box<Self>) -> Option<ErasedModule>;
}

/// A stage's trained module with its type erased (as `Any`), and the name of its type for error messages.
pub(crate) struct ErasedModule {
    pub(crate) module: Box<dyn Any + Send>,
    pub(crate) type_name: &'static str,
}

impl ErasedModule {
    pub(crate) fn new<M: Send + 'static>(module: M) -> Self {
        Self { module: Box::new(module), type_name: type_name::<M>() }
    }
}
