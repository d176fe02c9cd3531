//! The balanced partition of a model's layers, in their order, into stages.

use std::fmt;
use std::ops::Range;

/// Partitions layers into `stages` contiguous, non-empty ranges, one for each pipeline stage, so that the most
/// expensive range costs as little as possible. Returns the ranges of layer indices, from 0.
///
/// `costs` has one entry per layer, such as its measured time. All entries have the same unit and must not be negative,
/// which is not checked. Among equally good partitions, the result has the shortest first ranges, because the first
/// stages keep the activations of the most micro-batches. The problem is the ordered partition problem, and is solved
/// exactly in O(stages x layers²) (Skiena, *The Algorithm Design Manual*).
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
    if costs.len() < stages {
        return Err(BalanceError { layers: costs.len(), stages }); // This avoids allocating a huge list of speeds.
    }
    partition(costs, &vec![1.0; stages])
}

/// Partitions layers into contiguous, non-empty ranges, one for each stage, for devices of different speeds, so that
/// the slowest range takes as little time as possible. The time of a range is its cost divided by the speed of its
/// stage's device. Returns the ranges of layer indices, from 0.
///
/// `costs` has the cost of every layer, which must not be negative; all costs have the same unit. `speeds` has the
/// relative speed of every stage's device, in the order of the stages. The devices are not reordered. With equal speeds
/// the result is the same as from [`balance`].
///
/// # Errors
/// Returns a [`SpeedError`] if there are fewer layers than stages, or no stages, or if a speed is not a finite number
/// above 0.
///
/// ```
/// // The second device is three times as fast as the first.
/// let cuts = stageline_schedule::balance_with_speeds(&[1.0; 8], &[1.0, 3.0])?;
/// assert_eq!(cuts, [0..2, 2..8]);
/// # Ok::<(), stageline_schedule::SpeedError>(())
/// ```
pub fn balance_with_speeds(costs: &[f64], speeds: &[f64]) -> Result<Vec<Range<usize>>, SpeedError> {
    match speeds.iter().position(|speed| !speed.is_finite() || *speed <= 0.0) {
        Some(stage) => Err(SpeedError::Speed { stage, speed: speeds[stage] }),
        None => Ok(partition(costs, speeds)?),
    }
}

/// Returns the partition of layers into stages that minimises the time of the slowest stage. `costs` has the cost of
/// every layer, and `speeds` the speed of every stage's device. Returns an error if there are fewer layers than stages,
/// or no stages. The method is dynamic programming from the last layer to the first.
fn partition(costs: &[f64], speeds: &[f64]) -> Result<Vec<Range<usize>>, BalanceError> {
    let (layers, stages) = (costs.len(), speeds.len());
    if stages == 0 || layers < stages {
        return Err(BalanceError { layers, stages });
    }
    // slowest[n] is the smallest possible time of the slowest range if the layers from n on are split into the current
    // number of ranges.
    let last = speeds[stages - 1];
    let mut slowest: Vec<f64> = (0..layers).map(|from| costs[from..].iter().sum::<f64>() / last).collect();
    let mut first_ends = Vec::with_capacity(stages);
    for ranges in 2..=stages {
        let speed = speeds[stages - ranges];
        let mut best = vec![f64::INFINITY; layers];
        // If costs are not finite, the loop below may find no end. The initial ends then give the range one layer.
        let mut ends: Vec<_> = (1..=layers).collect();
        for from in 0..=layers - ranges {
            let mut first = 0.0;
            for end in from + 1..=layers - ranges + 1 {
                first += costs[end - 1];
                let worst = slowest[end].max(first / speed);
                if worst < best[from] {
                    (best[from], ends[from]) = (worst, end);
                }
            }
        }
        slowest = best;
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

/// The error if layers cannot be partitioned, because more stages than layers are requested, or no stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceError {
    /// Number of layers that were to be partitioned into stages.
    pub layers: usize,
    /// Requested number of stages; it is 0 or above `layers`.
    pub stages: usize,
}

impl fmt::Display for BalanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layers, stages } = self;
        write!(f, "{layers} layers cannot be cut into {stages} stages; ask for 1 to {layers} stages")
    }
}

impl std::error::Error for BalanceError {}

/// The error if layers cannot be partitioned into stages for devices of given speeds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum SpeedError {
    /// There are fewer layers than requested stages, or no stages are requested. Request at least one stage, and at
    /// most one per layer.
    Stages(BalanceError),
    /// The speed of a stage's device is not a finite number above 0. Speeds are relative, such as 1 for the slowest
    /// device.
    Speed {
        /// Zero-based index of the stage whose device has an invalid speed.
        stage: usize,
        /// Invalid relative speed of the stage's device, which is not a finite number above 0.
        speed: f64,
    },
}

impl From<BalanceError> for SpeedError {
    fn from(error: BalanceError) -> Self {
        Self::Stages(error)
    }
}

impl fmt::Display for SpeedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stages(error) => error.fmt(f),
            Self::Speed { stage, speed } => {
                write!(
                    f,
                    "the speed of stage {stage} is {speed}; give a number above 0, such as 1 for the slowest device"
                )
            }
        }
    }
}

impl std::error::Error for SpeedError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the time of the slowest stage in a partition of layers into stages.
    fn slowest(costs: &[f64], cuts: &[Range<usize>], speeds: &[f64]) -> f64 {
        let time = |(cut, speed): (&Range<usize>, &f64)| costs[cut.clone()].iter().sum::<f64>() / speed;
        cuts.iter().zip(speeds).map(time).fold(0.0, f64::max)
    }

    /// Returns the smallest possible time of the slowest stage, by trying every partition of the layers into stages.
    fn least(costs: &[f64], speeds: &[f64]) -> f64 {
        let [speed, others @ ..] = speeds else { return 0.0 };
        if others.is_empty() {
            return costs.iter().sum::<f64>() / speed;
        }
        let ends = 1..=costs.len() - others.len();
        let time = |end: usize| least(&costs[end..], others).max(costs[..end].iter().sum::<f64>() / speed);
        ends.map(time).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn more_stages_than_layers_are_rejected() {
        assert!(balance(&[1.0], 2).unwrap_err().to_string().contains("1 layers cannot be cut into 2 stages"));
        assert!(balance(&[1.0], 0).is_err());
        assert_eq!(balance(&[1.0], usize::MAX), Err(BalanceError { layers: 1, stages: usize::MAX }));
    }

    #[test]
    fn speeds_that_are_not_positive_are_rejected_with_their_stage() {
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = balance_with_speeds(&[1.0; 3], &[1.0, speed]).unwrap_err();
            assert!(matches!(error, SpeedError::Speed { stage: 1, .. }), "{error}");
        }
        let too_many = balance_with_speeds(&[1.0], &[1.0, 2.0]).unwrap_err();
        assert_eq!(too_many, SpeedError::Stages(BalanceError { layers: 1, stages: 2 }));
        assert!(balance_with_speeds(&[1.0], &[]).is_err());
    }

    /// Tests the partition of layers for one slow and two fast devices. The slow device gets the fewest layers, whether
    /// it is the first, second or third.
    #[test]
    fn a_slow_device_gets_fewer_layers_wherever_it_is() {
        for (speeds, cuts) in [
            ([1.0, 4.0, 4.0], [0..1, 1..5, 5..9]),
            ([4.0, 1.0, 4.0], [0..4, 4..5, 5..9]),
            ([4.0, 4.0, 1.0], [0..4, 4..8, 8..9]),
        ] {
            assert_eq!(balance_with_speeds(&[1.0; 9], &speeds).unwrap(), cuts, "{speeds:?}");
        }
    }

    proptest! {
        #[test]
        fn no_partition_is_better(
            costs in prop::collection::vec((0..20_u8).prop_map(f64::from), 1..9),
            speeds in prop::collection::vec((1..5_u8).prop_map(f64::from), 1..9),
        ) {
            let stages = speeds.len();
            prop_assume!(stages <= costs.len());
            let equal = vec![1.0; stages];
            for (speeds, cuts) in
                [(&equal, balance(&costs, stages).unwrap()), (&speeds, balance_with_speeds(&costs, &speeds).unwrap())]
            {
                prop_assert_eq!(cuts.len(), stages);
                prop_assert!(cuts.iter().all(|cut| !cut.is_empty()));
                prop_assert_eq!((cuts[0].start, cuts[stages - 1].end), (0, costs.len()));
                prop_assert!(cuts.windows(2).all(|pair| pair[0].end == pair[1].start));
                prop_assert_eq!(slowest(&costs, &cuts, speeds), least(&costs, speeds));
            }
            prop_assert_eq!(balance_with_speeds(&costs, &equal).unwrap(), balance(&costs, stages).unwrap());
        }
    }

    #[test]
    fn every_stage_has_a_layer_also_with_costs_that_are_not_finite() {
        for stages in 1..=4 {
            let cuts = balance(&[1.0, f64::INFINITY, f64::NAN, 1.0], stages).unwrap();
            assert!(cuts.len() == stages && cuts.iter().all(|cut| !cut.is_empty()), "{cuts:?}");
            assert!(
                cuts[0].start == 0
                    && cuts[stages - 1].end == 4
                    && cuts.windows(2).all(|two| two[0].end == two[1].start)
            );
        }
    }
}
