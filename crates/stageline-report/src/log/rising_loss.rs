//! Tells a run whose loss rises, such as one that diverges, from one that learns ([`RisingLoss`]).

use super::run_log::RunLog;

/// The fewest steps with a loss from which a rise is told.
const FEWEST: usize = 8;

/// The number of standard errors by which the mean loss of the second half of a run exceeds that of the first half if
/// the loss rises. Chance alone gives as much in about one run of 700.
const ERRORS: f64 = 3.0;

/// The mean losses of a run whose loss rises from its first half to its second. No training is to reach such a loss, so
/// the time to it says nothing about other settings.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the loss of the run rises, from a mean of {first:.4} in the first half of its steps to {second:.4} in the second, so the time to \
     it says nothing; log a run whose loss falls, for example with a lower --learning-rate"
)]
pub struct RisingLoss {
    /// The mean loss over the first half of the run's steps.
    pub first: f64,
    /// The mean loss over the second half of the run's steps.
    pub second: f64,
}

impl RunLog {
    /// Returns the mean losses of the two halves of the run if its loss rises: if the second mean is above the first by
    /// more than 3 standard errors of their difference. Returns `None` if it does not, or if fewer than 8 steps that
    /// updated parameters have a loss.
    pub fn rising_loss(&self) -> Option<RisingLoss> {
        let updated = self.steps.iter().filter(|step| step.gradient_norm.is_some());
        let losses: Vec<f64> = updated.filter_map(|step| step.loss).filter(|loss| loss.is_finite()).collect();
        if losses.len() < FEWEST {
            return None;
        }
        let (first, second) = losses.split_at(losses.len() / 2);
        let ([first, error], [second, other]) = (mean_and_squared_error(first), mean_and_squared_error(second));
        (second - first > ERRORS * (error + other).sqrt()).then_some(RisingLoss { first, second })
    }
}

/// Returns the mean of two numbers or more, and the square of its standard error.
fn mean_and_squared_error(numbers: &[f64]) -> [f64; 2] {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    [mean, squares / (count - 1.0) / count]
}
