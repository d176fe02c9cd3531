//! The end of a step: every stage shows its ledger, and only if all agree does any of them step its optimizer.

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};

/// What a stage has summed: it must be every micro-batch, and exactly the weight of the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ledger {
    /// Micro-batches whose gradients are in the sum.
    pub backwards: usize,
    /// The sum of their loss weights.
    pub weight: f64,
}

/// A stage's sum is not the whole batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "stage {stage} summed {} micro-batches of weight {}, but the step has {} of weight {}; \
     no stage has stepped: this is a bug in the pipeline",
    found.backwards, found.weight, expected.backwards, expected.weight
)]
pub struct LedgerError {
    /// The stage.
    pub stage: usize,
    /// What it summed.
    pub found: Ledger,
    /// What the step has.
    pub expected: Ledger,
}

/// Whether every stage, by its index, has summed the whole step.
pub(crate) fn agree(ledgers: impl IntoIterator<Item = (usize, Ledger)>, expected: Ledger) -> Result<(), LedgerError> {
    match ledgers.into_iter().find(|(_, found)| *found != expected) {
        Some((stage, found)) => Err(LedgerError { stage, found, expected }),
        None => Ok(()),
    }
}

/// A module with what updates it.
pub(crate) struct Trained<M> {
    /// `None` only while the optimizer holds it.
    module: Option<M>,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

impl<M: Module> Trained<M> {
    pub(crate) fn new(module: M, optimizer: ModuleOptimizer, learning_rate: ModuleLrScheduler) -> Self {
        Self { module: Some(module), optimizer, learning_rate }
    }

    pub(crate) fn module(&self) -> &M {
        self.module.as_ref().expect("a worker ends when its optimizer panics")
    }

    /// One optimizer step, at the base learning rate that it returns.
    pub(crate) fn step(&mut self, gradients: GradientsParams) -> f64 {
        let learning_rate = self.learning_rate.step();
        let base = learning_rate.base();
        let module = self.module.take().expect("a worker ends when its optimizer panics");
        self.module = Some(self.optimizer.step(learning_rate, module, gradients));
        base
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
        let expected = Ledger { backwards: 2, weight: 5.0 };
        assert_eq!(agree([(0, expected), (1, expected)], expected), Ok(()));
        let found = Ledger { backwards: 1, weight: 3.0 };
        let error = agree([(0, expected), (1, found)], expected).unwrap_err();
        assert!(error.to_string().starts_with("stage 1 summed 1 micro-batches of weight 3,"), "{error}");
    }
}
