//! The end of a step: every stage shows what it has summed, and only if all agree does any of them step its optimizer.
//!
//! In this order: add up, unscale, find what is not finite, global norm, clip, step.

use std::collections::HashMap;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};

use crate::model::replica::Replica;
use crate::nn::params::named::zeros;
use crate::nn::params::shared::unify;
use crate::nn::params::visit;
use crate::state::layout::{Restored, StageState};
use crate::state::optimizer_state::{self, Given, Unfit};
use crate::update::clip::{Clip, Scaling};
use crate::update::finite::{Culprit, OnNonFinite};
use crate::update::ledger::{Ledger, LedgerError, agree};
use crate::update::moments::second_moments;
use crate::update::precision::{Precision, Rounding};
use crate::update::take_ownership::settle;

/// What the flush does to gradients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushConfig {
    pub(crate) clip: Option<Clip>,
    pub(crate) on_non_finite: OnNonFinite,
    /// Every how many steps the health of parameters is examined; 0 is never.
    pub(crate) health_every: usize,
}

impl FlushConfig {
    /// What a step comes to where nothing is wrong.
    pub(crate) fn assumed(self, step: usize) -> Verdict {
        let scaling = self.clip.map_or(Scaling::Keep, |clip| clip.scaling(0.0));
        Verdict::Step { scaling, examine: self.examines(step) }
    }

    /// Whether a step examines parameters.
    pub(crate) fn examines(self, step: usize) -> bool {
        self.health_every > 0 && step.is_multiple_of(self.health_every)
    }
}

/// When stages make their step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flush {
    /// When it is known what all of them have summed.
    Together,
    /// When they have their own sums, if these are finite, as if this were the verdict; that comes later, and where it is another
    /// one the step is undone and made as it says (the post-validation of Qi et al., 2023).
    Ahead(Verdict),
}

/// What every stage does at the end of a step, decided once for all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Step.
    Step {
        /// With gradients so scaled.
        scaling: Scaling,
        /// And look at each parameter.
        examine: bool,
    },
    /// Leave everything as it is, and show the gradients, so scaled.
    Show { scaling: Scaling },
    /// Step, and undo it; of other stages' parameters nothing is seen.
    Rehearse { examine: bool },
    /// Leave everything as it is.
    Skip,
}

impl Verdict {
    /// Whether it makes a step that stays.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Self::Step { .. })
    }
}

/// What a stage has to show at the end of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// The squared norm of every parameter's gradient, in layer order; from the replica that has the sums.
    pub(crate) squared_norms: Vec<f64>,
    /// How often the sums of all replicas were added up there.
    pub(crate) reductions: usize,
    /// What an inspection found.
    pub(crate) culprits: Vec<Culprit>,
    /// What is in its gradient sum.
    pub(crate) ledger: Ledger,
    /// The losses of its micro-batches, term by term, from the last stage.
    pub(crate) losses: Vec<Vec<f64>>,
}

impl Outcome {
    pub(crate) fn is_finite(&self) -> bool {
        let losses = self.losses.iter().flatten();
        self.squared_norms.iter().chain(losses).all(|number| number.is_finite())
    }
}

/// What all stages have summed.
pub(crate) struct Sums {
    /// The terms of the loss, each added up over the micro-batches.
    pub(crate) losses: Vec<f64>,
    /// The norm of all gradients together.
    pub(crate) gradient_norm: f64,
    /// How often the sums of a stage were added up over the replicas.
    pub(crate) reductions: usize,
}

impl Sums {
    /// Adds up what the stages show, in layer order.
    ///
    /// # Errors
    /// [`LedgerError`] where a stage has not summed all that its replica has of the step.
    pub(crate) fn of(outcomes: &[Outcome], expected: &[Ledger]) -> Result<Self, LedgerError> {
        agree(outcomes.iter().map(|outcome| (outcome.replica, outcome.stage, outcome.ledger.clone())), expected)?;
        let squares = outcomes.iter().flat_map(|outcome| &outcome.squared_norms);
        let gradient_norm = squares.sum::<f64>().sqrt();
        let reductions = outcomes.iter().map(|outcome| outcome.reductions).sum();
        Ok(Self { losses: losses(outcomes), gradient_norm, reductions })
    }

    /// What all stages do.
    pub(crate) fn verdict(&self, config: FlushConfig, step: usize) -> Verdict {
        let step = |scaling| Verdict::Step { scaling, examine: config.examines(step) };
        self.scaling(config).map_or(Verdict::Skip, step)
    }

    /// What is done to the gradients; `None` where the loss or one of them is not finite.
    pub(crate) fn scaling(&self, config: FlushConfig) -> Option<Scaling> {
        let finite = self.losses.iter().all(|loss| loss.is_finite()) && self.gradient_norm.is_finite();
        finite.then(|| config.clip.map_or(Scaling::Keep, |clip| clip.scaling(self.gradient_norm)))
    }
}

/// The sum of every term of the loss, micro-batch by micro-batch of the batch.
pub(crate) fn losses(outcomes: &[Outcome]) -> Vec<f64> {
    let each = outcomes.iter().flat_map(|outcome| outcome.losses.iter().cloned());
    each.reduce(|sums, loss| sums.into_iter().zip(loss).map(|(sum, loss)| sum + loss).collect()).unwrap_or_default()
}

/// What a stage was before a step.
struct Before<M> {
    module: M,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

/// A module with what updates it.
pub(crate) struct Trained<M> {
    /// `None` only while the optimizer holds it.
    module: Option<M>,
    /// What the stage computes with, where that is not the module itself.
    copy: Option<M>,
    precision: Precision,
    rounding: Option<Rounding>,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
    /// Until it is known that all stages have stepped.
    before: Option<Before<M>>,
    /// Whether steps of the training can be undone.
    rollback: Rollback,
    /// Whether the module has made a step that cannot be undone, when it is not yet known that all stages have.
    is_ahead: bool,
    /// Whether the module has made a step that other stages have not.
    is_torn: bool,
}

/// Whether every stage keeps what was before a step until all stages have made theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rollback {
    Kept,
    /// An error in the middle of the flush ends the training.
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
        self.module.as_ref().expect("a worker that panics is not asked again")
    }

    /// Its optimizer as it is after a step of these parameters, of which nothing is kept.
    fn stepped_once(&self, own: impl Iterator<Item = ParamId>) -> ModuleOptimizer {
        let (mut optimizer, mut learning_rate) = (self.optimizer.clone(), self.learning_rate.clone());
        let gradients = zeros(self.module(), &own.collect());
        drop(optimizer.step(learning_rate.step(), self.module().clone(), gradients));
        optimizer
    }

    /// The module, or its copy in a lower precision.
    pub(crate) fn computing(&self) -> &M {
        self.copy.as_ref().unwrap_or_else(|| self.module())
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// One optimizer step, at the base learning rate that it returns. It counts once all stages have made theirs.
    /// A rehearsal can be undone whatever the setting is.
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

    /// All stages have stepped.
    pub(crate) fn commit(&mut self) {
        self.before = None;
        self.is_ahead = false;
    }

    /// Undoes the last step, as far as it was made.
    pub(crate) fn roll_back(&mut self) {
        if let Some(before) = self.before.take() {
            (self.optimizer, self.learning_rate) = (before.optimizer, before.learning_rate);
            self.put(before.module);
        }
        self.is_torn |= std::mem::take(&mut self.is_ahead);
    }

    /// Whether it has made a step that other stages have not, and that cannot be undone.
    pub(crate) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Makes the parameters, and what its optimizer remembers of them, this thread's own.
    pub(crate) fn settle(&mut self) {
        let module = self.take();
        self.put(settle(module));
        if let Ok(state) = self.optimizer.into_bytes()
            && let Ok(optimizer) = self.optimizer.clone().from_bytes(state)
        {
            self.optimizer = optimizer;
        }
    }

    /// What it keeps from step to step.
    pub(crate) fn state(&self, stage: usize) -> StageState {
        StageState { stage, tensors: visit::read(self.module()), optimizer: optimizer_state::read(&self.optimizer) }
    }

    /// Goes on from there.
    ///
    /// # Errors
    /// What of it the optimizer cannot use.
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
        // burn's schedulers can only be stepped: the number of steps is bounded before.
        for _ in 0..*steps {
            self.learning_rate.step();
        }
        self.optimizer = optimizer_state::write(self.optimizer.clone(), optimizer, own())?;
        Ok(())
    }

    /// The same, for parameters that another stage steps.
    pub(crate) fn restore_tensors(&mut self, restored: &Restored) {
        let module = self.take();
        self.put(unify(visit::write(module, &restored.tensors)));
    }

    /// Changes the module by something that gives it back in any case.
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
        // Its memory is free while the module changes.
        self.copy = None;
        self.module.take().expect("a worker that panics is not asked again")
    }

    fn put(&mut self, module: M) {
        self.copy = self.rounding.as_ref().map(|rounding| rounding.copy_of(&module));
        self.module = Some(module);
    }

    /// Whether the module is here.
    pub(crate) fn is_whole(&self) -> bool {
        self.module.is_some() && !self.is_torn
    }

    /// The module, unless something panicked with it.
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

    /// Without the ledger, all other stages would step with gradients of a micro-batch less.
    #[test]
    fn no_verdict_is_made_of_sums_that_are_not_the_whole_step() {
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
