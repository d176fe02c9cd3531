//! A stage, its types erased: what a worker drives.

mod compute;
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

/// The stages of a replica, in order.
pub(crate) type Stages = Vec<Box<dyn Runner>>;

/// Why a worker leaves its list.
pub(crate) enum Interrupt {
    /// Another worker failed, or the caller is gone.
    Stopped,
    /// The stage returned an error.
    Failed(BoxError),
}

impl From<Stopped> for Interrupt {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

/// What a stage has to tell of the end of a step.
#[derive(Default)]
pub(crate) struct Conclusion {
    /// `None` where no optimizer stepped.
    pub(crate) learning_rate: Option<f64>,
    /// Of its parameters, where they were examined.
    pub(crate) health: Vec<ParameterHealth>,
    /// Of its parameters, where they were asked for.
    pub(crate) gradients: Vec<ParameterGradient>,
}

/// A stage, its types erased: what the worker drives.
pub(crate) trait Runner: Send {
    fn replica(&self) -> Replica;
    fn stage(&self) -> usize;
    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped>;
    /// Follows an instruction, and hands so many bytes on to another stage.
    fn run(&mut self, instruction: Instruction, waits: &Waits) -> Result<u64, Interrupt>;
    fn device(&self) -> &Device;
    /// Ends the sum of a step: adds up those of all replicas, or gives its own away.
    fn reduce(&mut self, step: usize, waits: &Waits) -> Result<(), Stopped>;
    fn finish(&mut self) -> Outcome;
    /// What it has summed may be needed once more: by a verdict after it has stepped.
    fn keep_sums(&mut self);
    /// Forgets what it has summed, and what it has seen of losses.
    fn forget(&mut self);
    /// Gives other stages the values of parameters that they have, too, without a step.
    fn publish(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Takes from other stages the values of parameters that it has, too, to no end.
    fn ignore(&mut self, waits: &Waits) -> Result<(), Stopped>;
    /// Steps the optimizer, or takes over the values of the replica that does, or leaves all as it is.
    fn conclude(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped>;
    /// Waits for the new values of other stages' parameters, if they have stepped; undoes what was a rehearsal.
    fn follow(&mut self, verdict: Verdict, waits: &Waits) -> Result<(), Stopped>;
    /// All stages have made the last step.
    fn commit(&mut self);
    /// Undoes the last step; what it had summed is there again, if it was kept.
    fn roll_back(&mut self);
    /// What it keeps from step to step.
    fn state(&self) -> StageState;
    /// Whether its module is there: a panic may have taken it.
    fn is_whole(&self) -> bool;
    /// Whether it has made a step that other stages have not, and cannot undo it.
    fn is_torn(&self) -> bool;
    fn into_module(self: Box<Self>) -> Option<ErasedModule>;
}

/// A module with the name of its type.
pub(crate) struct ErasedModule {
    pub(crate) module: Box<dyn Any + Send>,
    pub(crate) type_name: &'static str,
}
