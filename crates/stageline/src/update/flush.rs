//! The flush at the end of a step: every stage reports its gradient sum, and the optimizers step only if all sums are
//! right.
//!
//! The order is: sum, unscale, find non-finite results, global norm, clip, step.

use std::collections::HashMap;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};

use crate::model::replica::Replica;
use crate::state::layout::{Restored, StageState};
use crate::state::optimizer_state::{self, Given, Unfit};
use crate::update::clip::{Clip, Scaling};
use crate::update::finite::{Culprit, OnNonFinite};
use crate::update::ledger::{Ledger, LedgerError, agree};
use crate::update::moments::second_moments;
use crate::update::precision::{Precision, Rounding};
use crate::update::take_ownership::settle;
use stageline_nn::params::named::zeros;
use stageline_nn::params::shared::unify;
use stageline_nn::params::visit;

/// The settings of the flush: clipping, non-finite results and health reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushConfig {
    pub(crate) clip: Option<Clip>,
    pub(crate) on_non_finite: OnNonFinite,
    /// The number of steps from one examination of the parameters' health to the next; 0 means never.
    pub(crate) health_every: usize,
}

impl FlushConfig {
    /// Returns the assumed verdict on a step: all gradients are finite, and their norm needs no clipping.
    pub(crate) fn assumed(self, step: usize) -> Verdict {
        let scaling = self.clip.map_or(Scaling::Keep, |clip| clip.scaling(0.0));
        Verdict::Step { scaling, examine: self.examines(step) }
    }

    /// Whether a step examines the health of parameters.
    pub(crate) fn examines(self, step: usize) -> bool {
        self.health_every > 0 && step.is_multiple_of(self.health_every)
    }
}

/// The time of the optimizer step: after the verdict, or speculatively before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flush {
    /// The stages wait for the verdict, which depends on the sums of all of them.
    Together,
    /// Each stage steps as soon as its own sums are complete and finite, with this assumed verdict. If the true verdict
    /// differs, the step is rolled back and made again as the verdict says (the post-validation of Qi et al., 2023).
    Ahead(Verdict),
}

/// The verdict on a step: what every stage does at its end, decided once for all stages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Every stage steps its optimizer.
    Step {
        /// The scaling of the gradients before the step.
        scaling: Scaling,
        /// Whether to examine the health of each parameter.
        examine: bool,
    },
    /// Every stage returns its gradients, as summed and as scaled, and changes nothing.
    Show { scaling: Scaling },
    /// Every stage steps its optimizer and rolls the step back; no values of tied parameters are exchanged.
    Rehearse { examine: bool },
    /// Every stage discards its gradients and changes nothing.
    Skip,
}

impl Verdict {
    /// Whether the verdict leads to a step that is kept.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Self::Step { .. })
    }
}

/// The report of one stage at the end of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// The squared norm of every parameter's gradient, in layer order; empty except on the replica that has the sums.
    pub(crate) squared_norms: Vec<f64>,
    /// The number of reductions over the replicas that this stage made.
    pub(crate) reductions: usize,
    /// The non-finite results that an inspection found.
    pub(crate) culprits: Vec<Culprit>,
    /// The micro-batches and weight in the stage's gradient sum.
    pub(crate) ledger: Ledger,
    /// The loss of every micro-batch, term by term; empty except on the last stage.
    pub(crate) losses: Vec<Vec<f64>>,
}

impl Outcome {
    pub(crate) fn is_finite(&self) -> bool {
        let losses = self.losses.iter().flatten();
        self.squared_norms.iter().chain(losses).all(|number| number.is_finite())
    }
}

/// The sums over all stages of a step.
pub(crate) struct Sums {
    /// Each term of the loss, summed over the micro-batches.
    pub(crate) losses: Vec<f64>,
    /// The global norm: the norm of all gradients of all stages together.
    pub(crate) gradient_norm: f64,
    /// The total number of reductions over the replicas.
    pub(crate) reductions: usize,
}

impl Sums {
    /// Checks the ledgers and adds up the reports of the stages, in layer order.
    ///
    /// # Errors
    /// Returns [`LedgerError`] if a stage has not summed its replica's whole part of the step.
    pub(crate) fn of(outcomes: &[Outcome], expected: &[Ledger]) -> Result<Self, LedgerError> {
        agree(outcomes.iter().map(|outcome| (outcome.replica, outcome.stage, outcome.ledger.clone())), expected)?;
        let squares = outcomes.iter().flat_map(|outcome| &outcome.squared_norms);
        let gradient_norm = squares.sum::<f64>().sqrt();
        let reductions = outcomes.iter().map(|outcome| outcome.reductions).sum();
        Ok(Self { losses: losses(outcomes), gradient_norm, reductions })
    }

    /// Returns the verdict on the step for all stages: to step with the scaling of the settings, or to skip.
    pub(crate) fn verdict(&self, config: FlushConfig, step: usize) -> Verdict {
        let step = |scaling| Verdict::Step { scaling, examine: config.examines(step) };
        self.scaling(config).map_or(Verdict::Skip, step)
    }

    /// Returns the scaling of the gradients; `None` if the loss or a gradient is not finite.
    pub(crate) fn scaling(&self, config: FlushConfig) -> Option<Scaling> {
        let finite = self.losses.iter().all(|loss| loss.is_finite()) && self.gradient_norm.is_finite();
        finite.then(|| config.clip.map_or(Scaling::Keep, |clip| clip.scaling(self.gradient_norm)))
    }
}

/// Returns each term of the loss, summed over the micro-batches in the order of the batch.
pub(crate) fn losses(outcomes: &[Outcome]) -> Vec<f64> {
    let each = outcomes.iter().flat_map(|outcome| outcome.losses.iter().cloned());
    each.reduce(|sums, loss| sums.into_iter().zip(loss).map(|(sum, loss)| sum + loss).collect()).unwrap_or_default()
}

/// The state of a stage before an optimizer step, to which a rollback returns.
struct Before<M> {
    module: M,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

/// A stage's module with its optimizer and learning rate, and the state to which its last step can be rolled back.
pub(crate) struct Trained<M> {
    /// The parameters; `None` only while the optimizer steps them.
    module: Option<M>,
    /// The copy in a lower precision with which the stage computes; `None` in full precision.
    copy: Option<M>,
    precision: Precision,
    rounding: Option<Rounding>,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
    /// The state before the last step, kept until all stages are known to have stepped.
    before: Option<Before<M>>,
    /// Whether training steps can be rolled back.
    rollback: Rollback,
    /// Whether the module has made a step that cannot be rolled back, while other stages may not have made it.
    is_ahead: bool,
    /// Whether the module has made a step that other stages have not made, and that cannot be rolled back.
    is_torn: bool,
}

/// Whether every stage keeps its state from before a step until all stages have stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rollback {
    /// The state is kept, so that an error during the flush rolls back the step on every stage.
    Kept,
    /// The state is not kept, so that an error during the flush ends the training.
    Off,
}

impl<M: Module> Trained<M> {
    pub(crate) fn new(
        module: M,
        precision: Precision,
        (optimizer, learning_rate): (ModuleOptimizer, ModuleLrScheduler),
        rollback: Rollback,
    ) -> Self {
        let rounding = precision.rounding(&module);
        let copy = rounding.as_ref().map(|rounding| rounding.copy_of(&module));
        Self {
            module: Some(module),
            copy,
            precision,
            rounding,
            optimizer,
            learning_rate,
            before: None,
            rollback,
            is_ahead: false,
            is_torn: false,
        }
    }

    pub(crate) fn module(&self) -> &M {
        self.module.as_ref().expect("a worker that has panicked gets no more commands")
    }

    /// Returns a copy of the optimizer after one step of the parameters `own` with zero gradients; the module does not
    /// change.
    fn stepped_once(&self, own: impl Iterator<Item = ParamId>) -> ModuleOptimizer {
        let (mut optimizer, mut learning_rate) = (self.optimizer.clone(), self.learning_rate.clone());
        let gradients = zeros(self.module(), &own.collect());
        drop(optimizer.step(learning_rate.step(), self.module().clone(), gradients));
        optimizer
    }

    /// Returns the module with which the stage computes: its copy in a lower precision, or the module itself.
    pub(crate) fn computing(&self) -> &M {
        self.copy.as_ref().unwrap_or_else(|| self.module())
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Makes one optimizer step and returns its base learning rate. The step is final only after
    /// [`commit`](Self::commit); a rehearsal can be rolled back even if rollback is off.
    pub(crate) fn step(&mut self, gradients: GradientsParams, is_rehearsal: bool) -> f64 {
        if is_rehearsal || self.rollback == Rollback::Kept {
            let (module, optimizer) = (self.module().clone(), self.optimizer.clone());
            self.before = Some(Before { module, optimizer, learning_rate: self.learning_rate.clone() });
        } else {
            self.is_ahead = true;
        }
        let learning_rate = self.learning_rate.step();
        let base = learning_rate.base();
        let module = self.take();
        let stepped = self.optimizer.step(learning_rate, module, gradients);
        self.put(unify(stepped));
        base
    }

    /// Makes the last step final, because all stages have stepped.
    pub(crate) fn commit(&mut self) {
        self.before = None;
        self.is_ahead = false;
    }

    /// Rolls back the last step if it is not committed; without the kept state, marks the module as torn instead.
    pub(crate) fn roll_back(&mut self) {
        if let Some(before) = self.before.take() {
            (self.optimizer, self.learning_rate) = (before.optimizer, before.learning_rate);
            self.put(before.module);
        }
        self.is_torn |= std::mem::take(&mut self.is_ahead);
    }

    /// Whether the module has made a step that other stages have not made, and that cannot be rolled back.
    pub(crate) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Copies the parameters and the optimizer state to memory that the calling thread allocates.
    pub(crate) fn settle(&mut self) {
        let module = self.take();
        self.put(settle(module));
        if let Ok(state) = self.optimizer.into_bytes()
            && let Ok(optimizer) = self.optimizer.clone().from_bytes(state)
        {
            self.optimizer = optimizer;
        }
    }

    /// Returns the state for a checkpoint: all tensors of the module, and the optimizer state.
    pub(crate) fn state(&self, stage: usize) -> StageState {
        StageState { stage, tensors: visit::read(self.module()), optimizer: optimizer_state::read(&self.optimizer) }
    }

    /// Restores the tensors, optimizer state and learning rate of a checkpoint.
    ///
    /// # Errors
    /// Returns the parts of the optimizer state that the optimizer cannot use, if any.
    pub(crate) fn restore(&mut self, restored: &mut Restored) -> Result<(), Vec<Unfit>> {
        self.restore_tensors(restored);
        let Restored { optimizer, stateless, own, optimizer_steps: steps, .. } = restored;
        let optimizer = std::mem::take(optimizer);
        let own = || own.iter().map(|(id, path)| (*id, path.as_str()));
        let stepped = self.stepped_once(own().map(|(id, _)| id));
        let unfit = optimizer_state::unfit(&stepped, &Given { fields: &optimizer, stateless, steps: *steps });
        if !unfit.is_empty() {
            return Err(unfit);
        }
        // burn's schedulers can only be stepped, not set. The number of steps was validated before, so this loop is
        // bounded.
        for _ in 0..*steps {
            self.learning_rate.step();
        }
        self.optimizer = optimizer_state::write(self.optimizer.clone(), optimizer, own())?;
        Ok(())
    }

    /// Restores the tensors only, for a module whose optimizer is in another replica.
    pub(crate) fn restore_tensors(&mut self, restored: &Restored) {
        let module = self.take();
        self.put(unify(visit::write(module, &restored.tensors)));
    }

    /// Replaces the module by the result of `change`, which returns the module even if it fails.
    pub(crate) fn change<E>(&mut self, change: impl FnOnce(M) -> Result<M, (M, E)>) -> Result<(), E> {
        let (module, result) = match change(self.take()) {
            Ok(module) => (module, Ok(())),
            Err((module, error)) => (module, Err(error)),
        };
        self.put(module);
        result
    }

    pub(crate) fn second_moments(&self) -> HashMap<ParamId, f64> {
        second_moments(&self.optimizer)
    }

    fn take(&mut self) -> M {
        // The copy is dropped first, so that its memory is free while the module changes.
        self.copy = None;
        self.module.take().expect("a worker that has panicked gets no more commands")
    }

    fn put(&mut self, module: M) {
        self.copy = self.rounding.as_ref().map(|rounding| rounding.copy_of(&module));
        self.module = Some(module);
    }

    /// Whether the module is complete: not lost in a panic, and without a step that others have not made.
    pub(crate) fn is_whole(&self) -> bool {
        self.module.is_some() && !self.is_torn
    }

    /// Returns the module; `None` if a panic lost it.
    pub(crate) fn into_module(self) -> Option<M> {
        self.module
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(stage: usize, backwards: usize, weight: f64) -> Outcome {
        Outcome {
            replica: Replica::default(),
            stage,
            squared_norms: vec![9.0, 16.0],
            reductions: 0,
            culprits: Vec::new(),
            ledger: Ledger { backwards, weight: weight.into() },
            losses: Vec::new(),
        }
    }

    /// Without the ledger, all other stages would step with the gradients of one micro-batch too few.
    #[test]
    fn sums_that_are_not_the_whole_step_give_an_error_and_no_verdict() {
        let expected = [Ledger { backwards: 4, weight: 10.0.into() }];
        let whole = Sums::of(&[outcome(0, 4, 10.0), outcome(1, 4, 10.0)], &expected).unwrap();
        assert_eq!(whole.gradient_norm, 50.0_f64.sqrt());
        for (backwards, weight) in [(3, 10.0), (5, 10.0), (4, 9.0), (0, 0.0)] {
            for at in 0..2 {
                let mut outcomes = [outcome(0, 4, 10.0), outcome(1, 4, 10.0)];
                outcomes[at] = outcome(at, backwards, weight);
                let error = Sums::of(&outcomes, &expected).map(drop).unwrap_err();
                assert_eq!((error.stage, error.found.backwards), (at, backwards));
            }
        }
    }
}
