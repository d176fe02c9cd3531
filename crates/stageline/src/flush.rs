//! The end of a step: every stage shows what it has summed, and only if all agree does any of them step its optimizer.
//!
//! In this order: add up, unscale, find what is not finite, global norm, clip, step.

use std::collections::HashMap;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};

use crate::clip::{Clip, Scaling};
use crate::finite::OnNonFinite;
use crate::moments::second_moments;
use crate::precision::{Precision, Rounding};
use crate::tie::unify;
use crate::weight::Weight;
use crate::worker::Finished;

/// What a stage has summed: it must be every micro-batch, and exactly the weight of the batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// Micro-batches whose gradients are in the sum.
    pub backwards: usize,
    /// The sum of their loss weights.
    pub weight: Weight,
}

/// A stage's sum is not the whole batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "stage {stage} summed {} micro-batches of weight {}, but the step has {} of weight {}: {}; \
     no stage has stepped: this is a bug in the pipeline",
    found.backwards, found.weight, expected.backwards, expected.weight, self.missing()
)]
pub struct LedgerError {
    /// The stage.
    pub stage: usize,
    /// What it summed.
    pub found: Ledger,
    /// What the step has.
    pub expected: Ledger,
}

impl LedgerError {
    /// Sums are made in ascending order, so the first that is missing follows the last that is there.
    fn missing(&self) -> String {
        match self.found.backwards {
            all if all == self.expected.backwards => "their weights differ".to_owned(),
            first if first < self.expected.backwards => format!("micro-batch {first} is missing"),
            _ => "there are too many".to_owned(),
        }
    }
}

/// What the flush does to gradients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushConfig {
    pub(crate) clip: Option<Clip>,
    pub(crate) on_non_finite: OnNonFinite,
    /// Every how many steps the health of parameters is examined; 0 is never.
    pub(crate) health_every: usize,
}

impl FlushConfig {
    /// Whether a step examines parameters.
    pub(crate) fn examines(self, step: usize) -> bool {
        self.health_every > 0 && step.is_multiple_of(self.health_every)
    }
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
    /// Leave everything as it is.
    Skip,
}

/// What all stages have summed.
pub(crate) struct Sums {
    /// The terms of the loss, each added up over the micro-batches.
    pub(crate) losses: Vec<f64>,
    /// The norm of all gradients together.
    pub(crate) gradient_norm: f64,
}

impl Sums {
    /// Adds up what the stages show, in layer order.
    ///
    /// # Errors
    /// [`LedgerError`] where a stage has not summed the whole step.
    pub(crate) fn of(mut finished: Vec<Finished>, expected: &Ledger) -> Result<Self, LedgerError> {
        finished.sort_by_key(|stage| stage.stage);
        agree(finished.iter().map(|stage| (stage.stage, stage.outcome.ledger.clone())), expected)?;
        let squares = finished.iter().flat_map(|stage| &stage.outcome.squared_norms);
        let gradient_norm = squares.sum::<f64>().sqrt();
        Ok(Self { losses: losses(&finished), gradient_norm })
    }

    /// What is done to the gradients; `None` where the loss or one of them is not finite.
    pub(crate) fn scaling(&self, config: FlushConfig) -> Option<Scaling> {
        let finite = self.losses.iter().all(|loss| loss.is_finite()) && self.gradient_norm.is_finite();
        finite.then(|| config.clip.map_or(Scaling::Keep, |clip| clip.scaling(self.gradient_norm)))
    }
}

/// The sum of every term of the loss, from the one stage that makes them.
pub(crate) fn losses(finished: &[Finished]) -> Vec<f64> {
    finished.iter().find_map(|stage| stage.outcome.losses.clone()).unwrap_or_default()
}

/// Whether every stage, by its index, has summed the whole step.
fn agree(ledgers: impl IntoIterator<Item = (usize, Ledger)>, expected: &Ledger) -> Result<(), LedgerError> {
    match ledgers.into_iter().find(|(_, found)| found != expected) {
        Some((stage, found)) => Err(LedgerError { stage, found, expected: expected.clone() }),
        None => Ok(()),
    }
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
}

impl<M: Module> Trained<M> {
    pub(crate) fn new(
        module: M,
        precision: Precision,
        optimizer: ModuleOptimizer,
        learning_rate: ModuleLrScheduler,
    ) -> Self {
        let rounding = precision.rounding(&module);
        let copy = rounding.as_ref().map(|rounding| rounding.copy_of(&module));
        Self { module: Some(module), copy, precision, rounding, optimizer, learning_rate }
    }

    pub(crate) fn module(&self) -> &M {
        self.module.as_ref().expect("a worker ends when its optimizer panics")
    }

    /// The module, or its copy in a lower precision.
    pub(crate) fn computing(&self) -> &M {
        self.copy.as_ref().unwrap_or_else(|| self.module())
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// One optimizer step, at the base learning rate that it returns.
    pub(crate) fn step(&mut self, gradients: GradientsParams) -> f64 {
        let learning_rate = self.learning_rate.step();
        let base = learning_rate.base();
        let module = self.take();
        let stepped = self.optimizer.step(learning_rate, module, gradients);
        self.put(unify(stepped));
        base
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
        // First, or the optimizer could not write in place where a parameter is in both.
        self.copy = None;
        self.module.take().expect("a worker ends when its optimizer panics")
    }

    fn put(&mut self, module: M) {
        self.copy = self.rounding.as_ref().map(|rounding| rounding.copy_of(&module));
        self.module = Some(module);
    }

    /// The module, unless the optimizer panicked with it.
    pub(crate) fn into_module(self) -> Option<M> {
        self.module
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_that_missed_a_micro_batch_is_named() {
        let expected = Ledger { backwards: 2, weight: 5.0.into() };
        assert_eq!(agree([(0, expected.clone()), (1, expected.clone())], &expected), Ok(()));
        let found = Ledger { backwards: 1, weight: 3.0.into() };
        let error = agree([(0, expected.clone()), (1, found)], &expected).unwrap_err();
        let message =
            "stage 1 summed 1 micro-batches of weight 3, but the step has 2 of weight 5: micro-batch 1 is missing;";
        assert!(error.to_string().starts_with(message), "{error}");
    }
}
