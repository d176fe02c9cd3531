//! Checks, before any optimizer step is committed, that every stage has summed the gradients of the whole batch. A
//! stage's ledger has the number of micro-batches in its gradient sum, and the sum of their loss weights.

use crate::model::loss_weight::Weight;
use crate::model::replica::{Replica, ReplicaStage};

/// A record of what a stage's accumulated gradient contains: the number of micro-batches, and the sum of their loss
/// weights (usually their numbers of unmasked targets). Both must equal those of the replica's part of the batch.
/// Otherwise the step fails with [`LedgerError`], and no optimizer step is committed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// The number of micro-batches whose gradients the stage has accumulated in its gradient sum.
    pub backwards: usize,
    /// The sum of the loss weights of all micro-batches in the stage's gradient sum.
    pub weight: Weight,
}

/// A stage's gradient sum does not contain each of its replica's micro-batches exactly once, so the step fails. This is
/// a bug in the pipeline. No optimizer step is committed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{} summed {} micro-batches of weight {}, but the step has {} of weight {}: {}; \
     no stage has stepped: this is a bug in the pipeline",
    replica.stage(*stage), found.backwards, found.weight, expected.backwards, expected.weight, self.missing()
)]
pub struct LedgerError {
    /// The data-parallel replica of the stage with the wrong gradient sum.
    pub replica: Replica,
    /// Zero-based index of the stage with the wrong gradient sum.
    pub stage: usize,
    /// The contents of the wrong gradient sum: its number of micro-batches, and the sum of their loss weights.
    pub found: Ledger,
    /// The expected contents of the stage's gradient sum: the number of micro-batches in its replica's part of the
    /// batch, and the sum of their loss weights.
    pub expected: Ledger,
}

impl LedgerError {
    /// Describes what is wrong with the stage's gradient sum, for an error message. Micro-batches are summed in
    /// ascending order, so the first missing one follows the last one in the sum.
    fn missing(&self) -> String {
        match self.found.backwards {
            all if all == self.expected.backwards => "their weights differ".to_owned(),
            first if first < self.expected.backwards => format!("micro-batch {first} is missing"),
            _ => "there are too many".to_owned(),
        }
    }
}

/// Checks that every stage's gradient sum contains its replica's whole part of the batch. `ledgers` pairs each stage
/// with the contents of its sum. `expected` has the expected contents for each replica.
///
/// # Errors
/// Returns [`LedgerError`] for the first stage whose sum has different contents.
pub(crate) fn agree(
    ledgers: impl IntoIterator<Item = (ReplicaStage, Ledger)>,
    expected: &[Ledger],
) -> Result<(), LedgerError> {
    match ledgers.into_iter().find(|(at, found)| *found != expected[at.replica.index]) {
        Some((ReplicaStage { replica, stage }, found)) => {
            Err(LedgerError { replica, stage, found, expected: expected[replica.index].clone() })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_that_missed_a_micro_batch_is_named() {
        let expected = Ledger { backwards: 2, weight: 5.0.into() };
        let summed = [expected.clone()];
        let of_stage = |stage, ledger: &Ledger| (ReplicaStage { replica: Replica::default(), stage }, ledger.clone());
        assert_eq!(agree([of_stage(0, &expected), of_stage(1, &expected)], &summed), Ok(()));
        let found = Ledger { backwards: 1, weight: 3.0.into() };
        let error = agree([of_stage(0, &expected), of_stage(1, &found)], &summed).unwrap_err();
        let message =
            "stage 1 summed 1 micro-batches of weight 3, but the step has 2 of weight 5: micro-batch 1 is missing;";
        assert!(error.to_string().starts_with(message), "{error}");
    }
}
