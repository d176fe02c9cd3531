//! The loss weight ([`Weight`]): the divisor of the loss sum, one number for every term of the loss.
//!
//! The weights of the micro-batches add up to the weight of the whole step. Losses are summed and then divided once by
//! this weight, so the means of micro-batches are never averaged.

use std::fmt;

/// The weight of a micro-batch's loss: one number for every term of the loss, usually the number of unmasked targets.
///
/// Most losses have one term. A loss of several terms, such as one over tokens and one over samples, has a weight for
/// each: `[tokens, samples].into()`. The pipeline divides each term's loss sum by the term's total weight in the whole
/// step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weight(Vec<f64>);

impl Weight {
    /// Returns the loss weight of each term of the loss, such as the number of unmasked targets.
    pub fn terms(&self) -> &[f64] {
        &self.0
    }

    /// Returns the weight of the loss's first term, usually the number of unmasked targets; metrics are divided by it.
    /// Returns 0 if there are no terms.
    pub(crate) fn first(&self) -> f64 {
        self.0.first().copied().unwrap_or_default()
    }

    /// Adds the loss weight of another micro-batch to this loss weight, term by term; missing terms count as 0.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0.0);
        self.0.iter_mut().zip(&other.0).for_each(|(sum, weight)| *sum += weight);
    }

    /// Returns a loss weight with the same number of terms, each of weight 1. Memory measurements use it in place of a
    /// weight of 0, because the measured batch would otherwise be skipped.
    pub(crate) fn ones(&self) -> Self {
        Self(vec![1.0; self.0.len()])
    }

    /// Whether the loss weight of a micro-batch or batch is 0 in every loss term, as when all targets are masked.
    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|weight| *weight == 0.0)
    }

    /// Returns the mean loss of every term: the term's loss sum divided by its weight. With several terms, a term of
    /// weight 0 has the mean 0, as in the loss that is trained on. A single term of weight 0 has the mean 0 only if its
    /// sum is 0; otherwise its mean is not finite.
    pub(crate) fn divide(&self, sums: &[f64]) -> Vec<f64> {
        let several = self.0.len() > 1;
        let mean_of = |(sum, weight): (&f64, &f64)| if several && *weight == 0.0 { 0.0 } else { mean(*sum, *weight) };
        sums.iter().zip(&self.0).map(mean_of).collect()
    }
}

/// Returns the mean of a loss or metric: its sum over targets, divided by the weight of these targets; 0 if sum and
/// weight are both 0.
pub(crate) fn mean(sum: f64, weight: f64) -> f64 {
    if sum == 0.0 && weight == 0.0 { 0.0 } else { sum / weight }
}

impl From<f64> for Weight {
    fn from(weight: f64) -> Self {
        Self(vec![weight])
    }
}

impl From<usize> for Weight {
    fn from(targets: usize) -> Self {
        Self::from(targets as f64)
    }
}

impl<const TERMS: usize> From<[f64; TERMS]> for Weight {
    fn from(weights: [f64; TERMS]) -> Self {
        Self(weights.to_vec())
    }
}

impl<const TERMS: usize> From<[usize; TERMS]> for Weight {
    fn from(targets: [usize; TERMS]) -> Self {
        Self::from(targets.map(|targets| targets as f64))
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [weight] => write!(f, "{weight}"),
            weights => write!(f, "{weights:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_term_by_term() {
        let mut total = Weight::default();
        total.add(&[2.0, 0.0].into());
        total.add(&[3.0, 0.0].into());
        assert_eq!(total, [5.0, 0.0].into());
        assert_eq!(total, [5, 0].into());
        assert!(!total.is_zero() && Weight::from([0.0, 0.0]).is_zero());
        assert_eq!(total.divide(&[10.0, 0.0]), [2.0, 0.0]);
        assert_eq!((Weight::from(3.0).to_string(), total.to_string()), ("3".to_owned(), "[5.0, 0.0]".to_owned()));
    }
}
