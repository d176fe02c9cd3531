//! How much a loss weighs, term by term.

use std::fmt;

/// How much the loss of some targets weighs: a number for every term of the loss, most often one.
///
/// A loss of several terms, such as one over tokens and one over samples, has a weight for each: `[tokens, samples].into()`.
/// Each term is divided by its own total over the whole step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weight(Vec<f64>);

impl Weight {
    /// The weight of each term.
    pub fn terms(&self) -> &[f64] {
        &self.0
    }

    /// Adds another one, term by term.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0.0);
        self.0.iter_mut().zip(&other.0).for_each(|(sum, weight)| *sum += weight);
    }

    /// Whether no term counts.
    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|weight| *weight == 0.0)
    }

    /// Sums of losses, each divided by the weight of its term; 0 where a term does not count.
    pub(crate) fn divide(&self, sums: &[f64]) -> Vec<f64> {
        let each = sums.iter().zip(&self.0);
        each.map(|(sum, weight)| if *weight == 0.0 && *sum == 0.0 { 0.0 } else { sum / weight }).collect()
    }
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
        assert!(!total.is_zero() && Weight::from([0.0, 0.0]).is_zero());
        assert_eq!(total.divide(&[10.0, 0.0]), [2.0, 0.0]);
        assert_eq!((Weight::from(3.0).to_string(), total.to_string()), ("3".to_owned(), "[5.0, 0.0]".to_owned()));
    }
}
