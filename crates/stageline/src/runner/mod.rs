//! Runners: stages with their types erased, which a worker drives by the instructions of a plan.
//!
//! Takes instructions, passes and verdicts. Runs the forwards and backwards of one stage, exchanges tensors with other
//! stages, sums gradients, and steps the optimizer when the verdict says so. Must not know threads, or the order of
//! instructions.
//!
//! - `stage`: the runner of a stage, from the begin of a pass to the verdict.
//! - `compute`: the forwards and backwards of a stage, whole or split.
//! - `exchange`: inputs and gradients from and to other stages, and values of parameters that another one owns.
//! - `output`: the destination of a stage's output: the next stage, or the loss.
//! - `slots`: values of single micro-batches that wait between two instructions.
//! - `pass`: the description of a pass over a batch, the same for all stages of a replica.

mod compute;
mod exchange;
pub(crate) mod output;
pub(crate) mod pass;
mod slots;
pub(crate) mod stage;

use std::any::Any;

use burn::tensor::Device;
use stageline_schedule::Instruction;

use crate::failure::stop::{Stopped, Waits};
use crate::model::replica::Replica;
use crate::runner::pass::Pass;
use crate::state::layout::StageState;
use crate::threads::failure::BoxError;
use crate::update::flush::{Outcome, Verdict};
use crate::update::health::ParameterHealth;
use crate::update::parameter_gradient::ParameterGradient;

/// The runners of a replica's stages, in order.
pub(crate) type Stages = Vec<Box<dyn Runner>>;

/// The reason why a worker stops executing its list of instructions.
pub(crate) enum Interrupt {
    /// Another worker failed, or the caller dropped the pipeline.
    Stopped,
    /// The stage's own code returned this error.
    Failed(BoxError),
}

impl From<Stopped> for Interrupt {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

/// The report of a stage at the end of a step, after the verdict.
#[derive(Default)]
pub(crate) struct Conclusion {
    /// The learning rate of the optimizer step; `None` if the optimizer did not step.
    pub(crate) learning_rate: Option<f64>,
    /// The health of each parameter; empty unless the verdict asks for an examination.
    pub(crate) health: Vec<ParameterHealth>,
    /// The gradient of each parameter; empty unless the verdict asks for gradients.
    pub(crate) gradients: Vec<ParameterGradient>,
}

/// A stage with its types erased. A worker calls `begin`, `run` for each instruction, `reduce`, `finish`, and after the
/// verdict `conclude` and `follow`.
pub(crate) trait Runner: Send {
    fn replica(&self) -> Replica;
    fn stage(&self) -> usize;
    /// Prepares the stage for a pass. The first and the last stage take the inputs and targets of the batch.
    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped>;
    /// Executes one instruction, and returns the number of bytes sent to another stage.
    fn run(&mut self, instruction: Instruction, waits: &Waits) -> Result<u64, Interrupt>;
    fn device(&self) -> &Device;
    /// Completes the gradient sums of a step. Replica 0 adds the sums of all replicas; the others send theirs to it.
    fn reduce(&mut self, step: usize, waits: &Waits) -> Result<(), Stopped>;
    /// Ends the pass, and returns the stage's losses, gradient norms and ledger.
    fn finish(&mut self) -> Outcome;
    /// Keeps a copy of the gradient sums, because the verdict may ask for another step after a rollback.
    fn keep_sums(&mut self);
    /// Discards the gradient sums and losses of a pass that does not count.
    fn forget(&mut self);
    /// Sends the current values of shared parameters to the stages and replicas that hold copies, without a step.
    fn publish(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Receives the owners' new values and discards them, so that the channels are empty.
    fn ignore(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Acts on the verdict: steps the optimizer, or receives the new values from the replica that does, or changes
    /// nothing.
    fn conclude(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped>;
    /// Receives the new values of tied parameters from their owners after a step, and rolls back a rehearsal.
    fn follow(&mut self, verdict: Verdict, waits: &Waits) -> Result<(), Stopped>;
    /// Discards the state from before the last step, which all stages have made.
    fn commit(&mut self);
    /// Restores the state from before the last step, with the gradient sums if they were kept.
    fn roll_back(&mut self);
    /// Copies the state for a checkpoint: parameters and optimizer state.
    fn state(&self) -> StageState;
    /// Whether the module is intact: a panic may have lost it, or a step may be impossible to roll back.
    fn is_whole(&self) -> bool;
    /// Whether the stage has made a step that other stages have not made, and cannot roll it back.
    fn is_torn(&self) -> bool;
    /// Returns the trained module; `None` if it is not intact.
    fn into_module(self: Box<Self>) -> Option<ErasedModule>;
}

/// A stage's module as `Any`, with the name of its type for error messages.
pub(crate) struct ErasedModule {
    pub(crate) module: Box<dyn Any + Send>,
    pub(crate) type_name: &'static str,
}
