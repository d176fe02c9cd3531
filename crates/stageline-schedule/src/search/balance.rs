//! The balanced partition of a row of layers into stages.

use std::fmt;
use std::ops::Range;

/// Partitions layers into `stages` contiguous, non-empty ranges, so that the cost of the most expensive range is as
/// small as possible.
///
/// `costs` has one entry per layer, not negative, in any one unit. Among equally good partitions the result has the
/// shortest first ranges, because the first stages keep the activations of the most micro-batches. This is the ordered
/// partition problem, solved exactly in O(stages x layers²) (Skiena, *The Algorithm Design Manual*).
///
/// # Errors
/// Returns a [`BalanceError`] if there are fewer layers than stages, or no stages.
///
/// ```
/// // The layers are a cheap embedding, four blocks, and a head with half the cost of a block.
/// let cuts = stageline_schedule::balance(&[0.1, 1.0, 1.0, 1.0, 1.0, 0.5], 2)?;
/// assert_eq!(cuts, [0..3, 3..6]);
/// # Ok::<(), stageline_schedule::BalanceError>(())
/// ```
pub fn balance(costs: &[f64], stages: usize) -> Result<Vec<Range<usize>>, BalanceError> {
    let layers = costs.len();
    if stages == 0 || layers < stages {
        return Err(BalanceError { layers, stages });
    }
    // largest[n] is the largest cost of a range, at best, for the layers from n on in the number of ranges so far.
    let mut largest: Vec<f64> = (0..layers).map(|from| costs[from..].iter().sum()).collect();
    let mut first_ends = Vec::with_capacity(stages);
    for ranges in 2..=stages {
        let mut best = vec![f64::INFINITY; layers];
        let mut ends = vec![layers; layers];
        for from in 0..=layers - ranges {
            let mut first = 0.0;
            for end in from + 1..=layers - ranges + 1 {
                first += costs[end - 1];
                let worst = largest[end].max(first);
                if worst < best[from] {
                    (best[from], ends[from]) = (worst, end);
                }
            }
        }
        largest = best;
        first_ends.push(ends);
    }
    let mut start = 0;
    let mut cuts = Vec::with_capacity(stages);
    for ends in first_ends.iter().rev() {
        cuts.push(start..ends[start]);
        start = ends[start];
    }
    cuts.push(start..layers);
    Ok(cuts)
}

/// The error for a partition of layers into more stages than layers, or into no stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceError {
    /// The number of layers that were to be partitioned.
    pub layers: usize,
    /// The number of stages into which the layers were to be partitioned.
    pub stages: usize,
}

impl fmt::Display for BalanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layers, stages } = self;
        write!(f, "{layers} layers cannot be cut into {stages} stages; ask for 1 to {layers} stages")
    }
}

impl std::error::Error for BalanceError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn largest(costs: &[f64], cuts: &[Range<usize>]) -> f64 {
        cuts.iter().map(|cut| costs[cut.clone()].iter().sum()).fold(0.0, f64::max)
    }

    /// Returns the smallest possible cost of the most expensive stage, by trying every partition of the layers into
    /// stages. The test compares it with the partition that `balance` finds.
    fn least(costs: &[f64], stages: usize) -> f64 {
        if stages == 1 {
            return costs.iter().sum();
        }
        let ends = 1..=costs.len() - (stages - 1);
        ends.map(|end| least(&costs[end..], stages - 1).max(costs[..end].iter().sum())).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn more_stages_than_layers_are_rejected() {
        assert!(balance(&[1.0], 2).unwrap_err().to_string().contains("1 layers cannot be cut into 2 stages"));
        assert!(balance(&[1.0], 0).is_err());
    }

    proptest! {
        #[test]
        fn no_partition_is_better(costs in prop::collection::vec((0..20_u8).prop_map(f64::from), 1..9), stages in 1..9_usize) {
            prop_assume!(stages <= costs.len());
            let cuts = balance(&costs, stages).unwrap();
            prop_assert_eq!(cuts.len(), stages);
            prop_assert!(cuts.iter().all(|cut| !cut.is_empty()));
            prop_assert_eq!((cuts[0].start, cuts[stages - 1].end), (0, costs.len()));
            prop_assert!(cuts.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert_eq!(largest(&costs, &cuts), least(&costs, stages));
        }
    }
}
