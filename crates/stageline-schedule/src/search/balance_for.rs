//! The partition of a model's layers into the stages of a plan with several stages on a worker ([`balance_for`]).

use std::ops::Range;

use crate::check::Checked;
use crate::costs::{Costs, StageCost};
use crate::search::balance::{SpeedError, balance_with_speeds};
use crate::simulate::simulate;

/// The largest number of actions that are simulated while partitions are compared. It bounds the time of the search,
/// to about two seconds.
const MOST_ACTIONS: usize = 10_000_000;

/// Partitions layers into contiguous, non-empty ranges, one for each stage of a plan, such that the simulated step of the
/// plan is short. Returns the ranges of layer indices, from 0.
///
/// If every worker has one stage, the result is that of [`balance_with_speeds`]. If workers have several stages, equal
/// workers count for more than equal stages, but stages that are too unequal delay their neighbours. So the search begins
/// with the most even stages, and moves single boundaries and pairs of them by one layer, as long as that shortens the
/// simulated step. The forward of a stage takes its cost divided by the speed of its device, a backward twice as long, and
/// each half of a split backward as long as the forward.
///
/// `costs` has the cost of every layer, which must not be negative. `speeds` has the relative speed of the device of every
/// stage, in the order of the stages; if several stages share a device, it is the speed of the device.
///
/// # Errors
/// Returns a [`SpeedError`] if there are fewer layers than stages, or if a speed is not a finite number above 0.
pub fn balance_for(plan: &Checked, costs: &[f64], speeds: &[f64]) -> Result<Vec<Range<usize>>, SpeedError> {
    let even = balance_with_speeds(costs, speeds)?;
    let actions = plan.plan().rows().iter().map(Vec::len).sum::<usize>().max(1);
    let (stages, workers) = (plan.plan().stages(), plan.plan().workers());
    if stages == workers || stages != even.len() {
        return Ok(even);
    }
    let step = |ends: &[usize]| {
        let ranges = ranges(ends, costs.len());
        let forward = ranges.into_iter().zip(speeds).map(|(range, speed)| costs[range].iter().sum::<f64>() / speed);
        simulate(plan, &Costs::by_stage(forward.map(|forward| StageCost::new(forward, forward, forward)).collect()))
            .step()
    };
    let mut ends: Vec<usize> = even[..stages - 1].iter().map(|range| range.end).collect();
    let (mut least, mut left) = (step(&ends), MOST_ACTIONS / actions);
    loop {
        let moves = moves(&ends, costs.len());
        let tried = moves.len().min(left);
        left -= tried;
        // Of equally good moves, the first is taken, so the result depends on nothing else.
        let stepped = moves.into_iter().take(tried).map(|moved| (step(&moved), moved));
        let best = stepped.min_by(|a, b| a.0.total_cmp(&b.0));
        match best {
            Some((shorter, moved)) if shorter < least * (1.0 - 1e-9) => (least, ends) = (shorter, moved),
            _ => return Ok(ranges(&ends, costs.len())),
        }
    }
}

/// Returns the partitions in which one or two boundaries of the partition with the boundaries `ends` are moved by a layer.
fn moves(ends: &[usize], layers: usize) -> Vec<Vec<usize>> {
    let mut found = Vec::new();
    for (one, by) in (0..ends.len()).flat_map(|one| [(one, -1), (one, 1)]) {
        let mut moved = ends.to_vec();
        moved[one] = moved[one].wrapping_add_signed(by);
        found.push(moved.clone());
        for (other, by) in (one + 1..ends.len()).flat_map(|other| [(other, -1), (other, 1)]) {
            let mut both = moved.clone();
            both[other] = both[other].wrapping_add_signed(by);
            found.push(both);
        }
    }
    found.retain(|ends| (1..layers).contains(&ends[0]) && ends[ends.len() - 1] < layers);
    found.retain(|ends| ends.windows(2).all(|pair| pair[0] < pair[1]));
    found
}

/// Returns the ranges of layers between the boundaries `ends`.
fn ranges(ends: &[usize], layers: usize) -> Vec<Range<usize>> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends.iter().copied().chain([layers])).map(|(start, end)| start..end).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::check::check;
    use crate::schedules::{Interleaved, OneFOneB, Schedule, ZbV};

    fn checked(schedule: &dyn Schedule, stages: usize, micro_batches: usize) -> Checked {
        check(schedule.plan(stages, micro_batches).unwrap(), micro_batches).unwrap()
    }

    /// Tests a V of two workers, of which the first has the first and the last stage. The most even stages give four
    /// blocks to the second worker, and a cheap embedding and a head to the first.
    #[test]
    fn workers_of_a_v_are_balanced() {
        let costs = [0.9, 1.0, 1.0, 1.0, 1.0, 1.5];
        let even = balance_with_speeds(&costs, &[1.0; 4]).unwrap();
        assert_eq!(even, [0..1, 1..3, 3..5, 5..6], "the second worker has all four blocks");
        let plan = checked(&ZbV, 4, 8);
        let cut = balance_for(&plan, &costs, &[1.0; 4]).unwrap();
        let work = |stages: [usize; 2]| stages.iter().flat_map(|stage| &costs[cut[*stage].clone()]).sum::<f64>();
        let workers = [work([0, 3]), work([1, 2])];
        assert!(workers.iter().all(|work| (work - 3.2).abs() <= 0.3), "{cut:?}: {workers:?}");
    }

    #[test]
    fn one_stage_a_worker_is_balanced_as_ever() {
        let costs = [0.5, 1.0, 1.0, 1.0, 2.0];
        let plan = checked(&OneFOneB, 2, 4);
        assert_eq!(balance_for(&plan, &costs, &[1.0; 2]), balance_with_speeds(&costs, &[1.0; 2]));
        assert!(balance_for(&plan, &costs[..1], &[1.0; 2]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        /// Tests that a partition is sound, and that its step is not longer than that of the most even stages.
        #[test]
        fn the_step_is_never_longer_than_with_even_stages(
            costs in prop::collection::vec((1..20_u8).prop_map(f64::from), 8..16),
            fast in 1..4_u8,
            is_v in any::<bool>(),
        ) {
            let plan = if is_v { checked(&ZbV, 8, 4) } else { checked(&Interleaved { chunks: 2 }, 8, 8) };
            let placement = plan.placement();
            let speeds: Vec<_> =
                (0..8).map(|stage| if placement.worker(stage) == 1 { f64::from(fast) } else { 1.0 }).collect();
            let step = |cuts: &[Range<usize>]| {
                let forward = cuts.iter().zip(&speeds).map(|(cut, speed)| costs[cut.clone()].iter().sum::<f64>() / speed);
                let stages = forward.map(|forward| StageCost::new(forward, forward, forward)).collect();
                simulate(&plan, &Costs::by_stage(stages)).step()
            };
            let cuts = balance_for(&plan, &costs, &speeds).unwrap();
            prop_assert!(cuts.len() == 8 && cuts[0].start == 0 && cuts[7].end == costs.len());
            prop_assert!(cuts.iter().all(|cut| !cut.is_empty()));
            prop_assert!(cuts.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(step(&cuts) <= step(&balance_with_speeds(&costs, &speeds).unwrap()));
        }
    }
}
