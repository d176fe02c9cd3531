//! Early stopping: ends training after too many evaluations without a lower validation loss ([`Patience`]).

use std::num::NonZero;

use serde_json::{Value, json};

/// Early stopping: counts the evaluations since the lowest validation loss of the whole training, including runs before
/// a resume. The state is stored in checkpoints, so that a resumed run continues counting.
pub struct Patience {
    /// Patience: number of consecutive evaluations without a lower validation loss after which training stops.
    most: NonZero<usize>,
    /// Fingerprint of the held-out samples, stored in checkpoints: a resumed run with other samples restarts the
    /// counter, because its losses are not comparable.
    held_out: String,
    lowest: f64,
    /// Number of completed training steps at the evaluation with the lowest validation loss.
    lowest_after: usize,
    /// Number of evaluations since the one with the lowest validation loss.
    without: usize,
    /// Number of completed training steps at the last counted evaluation, so that an evaluation repeated after a resume
    /// is not counted twice; `None` before the first one.
    counted: Option<usize>,
}

impl Patience {
    /// Creates an early-stopping counter for a new training. `most` is the patience: the number of consecutive
    /// evaluations without a lower validation loss after which training stops. `held_out` is the fingerprint of the
    /// held-out samples.
    pub fn new(most: NonZero<usize>, held_out: String) -> Self {
        Self { most, held_out, lowest: f64::INFINITY, lowest_after: 0, without: 0, counted: None }
    }

    /// Restores the state that [`stored`](Self::stored) saved in a checkpoint. If the held-out samples differ from the
    /// checkpoint's, warns and counts from 0.
    #[must_use]
    pub fn resume(self, stored: &Value) -> Self {
        if stored["held_out"] != json!(self.held_out) {
            tracing::warn!(
                "the held-out samples differ from those of the checkpoint, so --patience counts from the beginning"
            );
            return self;
        }
        let number = |name: &str| stored[name].as_u64().map(|number| number as usize);
        Self {
            lowest: stored["lowest"].as_f64().unwrap_or(f64::INFINITY),
            lowest_after: number("lowest_after").unwrap_or(0),
            without: number("without").unwrap_or(0),
            counted: number("counted"),
            ..self
        }
    }

    /// Returns the counter's state as JSON for a checkpoint; [`resume`](Self::resume) restores it.
    pub fn stored(&self) -> Value {
        let lowest = Some(self.lowest).filter(|lowest| lowest.is_finite());
        let Self { lowest_after, without, counted, held_out, .. } = self;
        json!({
            "lowest": lowest, "lowest_after": lowest_after, "without": without, "counted": counted, "held_out": held_out,
        })
    }

    /// Counts an evaluation with the validation loss `loss` after `steps` training steps, unless it repeats the last
    /// counted evaluation after a resume. A NaN or infinite loss counts as not lower.
    pub fn add(&mut self, loss: f64, steps: usize) {
        if self.counted.replace(steps) == Some(steps) {
            return;
        }
        if loss < self.lowest {
            (self.lowest, self.lowest_after, self.without) = (loss, steps, 0);
        } else {
            self.without += 1;
        }
    }

    /// Returns a message with the reason if training must stop early after `steps` steps: `--patience` evaluations had
    /// no lower validation loss. Returns `None` if training continues.
    pub fn end(&self, steps: usize) -> Option<String> {
        let Self { most, without, lowest, lowest_after, .. } = self;
        (*without >= most.get()).then(|| {
            let reason = match lowest.is_finite() {
                true => format!("had no validation loss below {lowest:.4}, the one after {lowest_after} steps"),
                false => "had a validation loss that is not finite".to_owned(),
            };
            format!(
                "the training ends after {steps} steps (--patience {most}): {without} evaluations in a row {reason}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience(most: usize) -> Patience {
        Patience::new(NonZero::new(most).unwrap(), "of these samples".to_owned())
    }

    fn ends(patience: &mut Patience, losses: &[(usize, f64)]) -> Vec<bool> {
        let mut end = |&(steps, loss): &(usize, f64)| {
            patience.add(loss, steps);
            patience.end(steps).is_some()
        };
        losses.iter().map(&mut end).collect()
    }

    #[test]
    fn a_training_ends_when_as_many_evaluations_as_the_patience_bring_no_lower_loss() {
        let mut two = patience(2);
        let losses = [(10, 3.0), (20, 2.0), (30, f64::NAN), (40, 1.5), (50, 1.5), (60, 2.0)];
        assert_eq!(ends(&mut two, &losses), [false, false, false, false, false, true]);
        let expected = "the training ends after 60 steps (--patience 2): 2 evaluations in a row had no validation loss below 1.5000, \
                        the one after 40 steps";
        assert_eq!(two.end(60).unwrap(), expected);
        assert_eq!(ends(&mut patience(2), &[(10, f64::NAN), (20, f64::INFINITY)]), [false, true]);
    }

    #[test]
    fn a_resumed_training_continues_the_count_with_the_same_samples() {
        let mut before = patience(3);
        ends(&mut before, &[(10, 0.1), (20, 0.3), (30, 0.2)]);
        // A resumed run may evaluate at another interval.
        assert_eq!(ends(&mut patience(3).resume(&before.stored()), &[(31, 0.1)]), [true]);
        assert_eq!(ends(&mut patience(3).resume(&before.stored()), &[(31, 0.05), (32, 0.1)]), [false, false]);
        assert_eq!(
            ends(&mut patience(3).resume(&before.stored()), &[(30, 0.2), (30, 0.2)]),
            [false, false],
            "repeated"
        );
        let other = Patience::new(NonZero::new(3).unwrap(), "of other samples".to_owned());
        assert_eq!(ends(&mut other.resume(&before.stored()), &[(31, 0.1)]), [false]);
        let without = patience(1);
        assert_eq!(ends(&mut patience(1).resume(&without.stored()), &[(10, 5.0), (20, 5.0)]), [false, true]);
    }
}
