//! Runners: single stages with their types erased, which a worker drives by the instructions of a plan.
//!
//! Input: instructions, the description of a pass ([`Pass`](pass::Pass)), and verdicts (step the optimizer, or skip the
//! step). Output: the stage's outcome of a pass (losses, gradient norms), its report after the verdict
//! ([`Conclusion`]), and its state. This folder owns a stage's module while it trains: its forward and backward passes,
//! its live micro-batches, its loss, and its calls of `transfer` and `update`. A [`Runner`] must not know threads,
//! channels of commands, or the order of instructions: the worker does.
//!
//! The worker hands each of its instructions to the runner of the instruction's stage. The runner matches on the
//! instruction (`Instruction::Compute`, `Receive`, `Send`) and performs it. The runner warns once of operations that
//! Stageline's own kernels do not compute (`Fallback`, which `stageline-nn` collects in the first forward pass), or
//! refuses them. It also warns once of backward passes that are not split, and of a recomputation (`Recompute`) without
//! effect.
//!
//! This file contains the interface [`Runner`] (begin and run a pass, reduce, finish, conclude, publish, follow,
//! ignore, commit, roll back, copy), why an instruction ends early ([`Interrupt`]), and a stage's module without its
//! type ([`ErasedModule`]), as it goes from a worker to the caller.
//!
//! - `stage`: the runner of one stage (`StageRunner`), from the start of a pass (`Mode`) to commit or rollback; its
//!   place in the pipeline (`StageSlot`), and what a forward pass leaves for its backward pass (`Taped`). It also
//!   chooses the neighbour for a transfer.
//! - `compute`: forward passes, split and unsplit backward passes, and the search for non-finite results in an
//!   inspection (a second run of a non-finite step).
//! - `sums`: the gradient sums of a stage (`StageSums`), their reduction over replicas, and the numbers that the stage
//!   reads at the end of a pass (`Numbers`).
//! - `parameters`: the parameters of a stage (`StageParameters`): their optimizer step after the verdict, and the
//!   exchange of values with the stages and replicas that share them.
//! - `neighbour`: receives from and sends to the previous or the next stage (`Neighbour`).
//! - `input`: the input side of a stage (`Source`): the caller's batch (`FromBatch`), or the previous stage
//!   (`FromPrevious`).
//! - `output`: the output side of a stage (`Sink`): the next stage (`ToNext`), or the loss, the metrics and the caller
//!   (`ToCaller`, `Results`, `Wanted`). Rejects losses and metrics of a wrong shape or of low precision, and divides
//!   the loss for the backward pass.
//! - `warnings`: the warnings that a stage has logged (`Warned`), and the warning of operations that Stageline's own
//!   kernels do not compute (`Fallback`).
//! - `slots`: storage for tensors of single micro-batches that wait between two instructions (`Slots`).
//! - `pass`: the kind (`Pass`) and context (`Context`) of a pass over a batch: step number, loss weights, divisor, loss
//!   scale.

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

/// The stages of one replica in pipeline order, with the types of module, input and output erased.
pub(crate) type Stages = Vec<Box<dyn Runner>>;

/// Why a worker stops executing its list of instructions.
pub(crate) enum Interrupt {
    /// The worker stops because the pipeline stops: another worker failed, or the caller dropped the pipeline.
    Stopped,
    /// The user's code that the stage runs (its forward pass, loss or metrics) returned an error. Or the stage's first
    /// forward pass contains an operation that the settings refuse, because Stageline has no kernel for it. The value
    /// is the error.
    Failed(BoxError),
}

impl From<Stopped> for Interrupt {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

/// The report of a stage at the end of a step: learning rate, statistics of its parameters and gradients, and counts of
/// bytes.
#[derive(Default)]
pub(crate) struct Conclusion {
    /// The learning rate of the stage's optimizer step; `None` if the optimizer did not step.
    pub(crate) learning_rate: Option<f64>,
    /// The health report of each parameter of the stage (statistics such as its gradient norm and update size), without
    /// the parameter's name. Empty in steps without health reports.
    pub(crate) health: Vec<(ParamId, ParameterHealth)>,
    /// The gradient of each trained parameter of the stage, in a step that only returns gradients to the caller. Empty
    /// in any other step.
    pub(crate) gradients: Vec<ParameterGradient>,
    /// The bytes of optimizer states that the optimizer step moved from the stage's device to the host; 0 if states
    /// stay on the device.
    pub(crate) states_on_host: u64,
    /// The bytes of the last micro-batch's parameter gradients that were in memory at the same time, beside the stage's
    /// gradient sums. Gradients that layers add to the sums one by one do not count.
    pub(crate) gradients_beside: u64,
}

/// A pipeline stage whose module, input and output types are erased. In a training step a worker calls `begin`, then
/// `run` for each instruction, then `reduce` and `finish`. After the verdict on the step it calls `conclude` and
/// `follow`.
pub(crate) trait Runner: Send {
    fn replica(&self) -> Replica;
    fn stage(&self) -> usize;
    /// Makes the stage ready for the next batch, in a training step, an evaluation or an inference (`pass`). In the
    /// first stage, waits until the caller has sent the inputs of all micro-batches. In the last stage, waits for their
    /// targets, which an inference does not have.
    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped>;
    /// Executes one instruction of the worker's list: a forward pass, a backward pass, a send or a receive. Returns the
    /// number of bytes that a send sent to another stage; 0 for any other instruction.
    fn run(&mut self, instruction: Instruction, waits: &Waits) -> Result<u64, Interrupt>;
    fn device(&self) -> &Device;
    /// Completes the stage's gradient sums of a step. Replica 0 adds up the sums of all replicas; the other replicas
    /// send their sums to replica 0.
    fn reduce(&mut self, step: usize, waits: &Waits) -> Result<(), Stopped>;
    /// Ends the pass over a batch and returns the stage's outcome, such as losses and gradient norms. The last stage
    /// sends the outputs of an inference to the caller.
    fn finish(&mut self, waits: &Waits) -> Result<Outcome, Stopped>;
    /// Keeps a copy of the gradient sums before a speculative optimizer step. The copy is needed if the step is rolled
    /// back and made again with clipped gradients.
    fn keep_sums(&mut self);
    /// Discards the gradient sums, losses and metrics of a step that began too early. A worker calls this if its stages
    /// assumed a wrong verdict on the previous step.
    fn forget(&mut self);
    /// Sends the current values of the shared parameters that this stage owns to the stages and replicas that have
    /// copies. The call does not step the optimizer.
    fn publish(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Receives the values of tied (shared) parameters that other stages send in a step whose assumed verdict was
    /// wrong, and discards them. The channels are then empty.
    fn ignore(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Acts on the verdict on a step, and returns the stage's report. If the verdict is to step, a stage of replica 0
    /// steps its optimizer, and a stage of another replica receives the new parameter values from replica 0. If the
    /// verdict is to skip the step, or only to return its gradients, no parameter changes.
    fn conclude(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped>;
    /// Completes a training step on the stage after the verdict (step the optimizer, or skip). Receives the new values
    /// of tied (shared) parameters from the stages that own them, or rolls back a rehearsal (a step that only measures
    /// memory).
    fn follow(&mut self, verdict: Verdict, waits: &Waits) -> Result<(), Stopped>;
    /// Commits the last training step: the stage discards its state from before that step.
    fn commit(&mut self);
    /// Rolls back the stage's last optimizer step: restores the state from before the step, and the step's gradient
    /// sums if a copy was kept.
    fn roll_back(&mut self);
    fn state(&self, frozen_from: FrozenFrom) -> StageState;
    /// Returns a copy of the stage's module without autodiff, in the precision of the trained parameters (not the lower
    /// one of forward and backward passes).
    fn copy(&self) -> ErasedModule;
    /// Whether the stage's module is intact: not lost in a panic, and without an optimizer step that other stages lack.
    fn is_whole(&self) -> bool;
    /// Whether the stage has made an optimizer step that other stages have not made, and cannot roll it back.
    fn is_torn(&self) -> bool;
    /// Returns the stage's trained module. Returns `None` if the module was lost in a panic, or has an optimizer step
    /// that other stages lack.
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
