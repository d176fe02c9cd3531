//! Partitions a model's layers into the stages of a plan with several stages on each worker ([`balance_for`]).

use std::ops::Range;

use crate::check::{Checked, check};
use crate::costs::{Costs, StageCost};
use crate::schedules::Schedule;
use crate::search::balance::{SpeedError, balance_with_speeds};
use crate::simulate::simulate;

/// Maximum number of actions (such as forward passes) that one call of [`balance_for`] simulates to compare partitions.
/// It limits the search to about two seconds.
const MOST_ACTIONS: usize = 10_000_000;

/// Returns a plan of the schedule with few micro-batches, which is fast to simulate in [`balance_for`]. It has two
/// micro-batches per worker, or `micro_batches` if that is fewer, and fills and drains like the plan with
/// `micro_batches`. If the schedule has no valid plan for so few micro-batches, returns the plan with `micro_batches`.
/// Returns `None` if the latter plan is not valid either.
pub fn short_plan(schedule: &dyn Schedule, stages: usize, micro_batches: usize) -> Option<Checked> {
    let few = micro_batches.min(2 * stages / schedule.chunks().max(1));
    let plan = |micro_batches| check(schedule.plan(stages, micro_batches).ok()?, micro_batches).ok();
    plan(few).or_else(|| plan(micro_batches))
}

/// Partitions layers into contiguous, non-empty ranges, one for each stage of a plan, so that the plan's simulated step
/// is short. Returns the ranges of layer indices, from 0.
///
/// If every worker has one stage, the result is that of [`balance_with_speeds`]. If workers have several stages, a step
/// is short if all workers have about the same work, even if their stages differ. But stages of very different cost
/// delay their neighbours. So the search starts from the stages of [`balance_with_speeds`], and moves boundaries
/// between stages as long as this shortens the simulated step. A move shifts one boundary by one layer or, if no such
/// move helps, two boundaries by one layer each.
///
/// In the simulation, the forward pass of a stage takes the cost of the stage divided by the speed of its device. A
/// whole backward pass takes twice as long; the input and weight gradients of a split one each take as long as the
/// forward pass. Transfers take no time. The search takes about two seconds at most. A plan with few micro-batches
/// ([`short_plan`]) is faster to simulate, so the search tries more partitions.
///
/// `costs` has the cost of every layer, which must not be negative; this is not checked. `speeds` has one entry per
/// stage, in the order of the stages: the relative speed of the stage's device. Stages on the same device have the same
/// entry. If the number of speeds is not the plan's number of stages, the result is that of [`balance_with_speeds`],
/// with one range per speed.
///
/// # Errors
/// Returns a [`SpeedError`] if there are fewer layers than speeds, or no speeds, or if a speed is not a finite number
/// above 0.
pub fn balance_for(plan: &Checked, costs: &[f64], speeds: &[f64]) -> Result<Vec<Range<usize>>, SpeedError> {
    let even = balance_with_speeds(costs, speeds)?;
    let actions = plan.plan().rows().iter().map(Vec::len).sum::<usize>().max(1);
    let (stages, workers) = (plan.plan().stages(), plan.plan().workers());
    if stages == workers || stages != even.len() {
        return Ok(even);
    }
    let step = |ends: &[usize]| step_of(plan, &ranges(ends, costs.len()), costs, speeds);
    let mut ends: Vec<usize> = even[..stages - 1].iter().map(|range| range.end).collect();
    let (mut least, mut left) = (step(&ends), MOST_ACTIONS / actions);
    // Among equally good moves, the first one is taken, so the result is deterministic.
    let mut best = |moves: &mut dyn Iterator<Item = Vec<usize>>, least: f64| {
        let mut found: Option<(f64, Vec<usize>)> = None;
        for moved in moves.filter(|ends| is_sound(ends, costs.len())) {
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => break,
            };
            let shorter = step(&moved);
            if shorter < found.as_ref().map_or(least * (1.0 - 1e-9), |(shortest, _)| *shortest) {
                found = Some((shorter, moved));
            }
        }
        found
    };
    loop {
        let found = best(&mut singles(&ends), least).or_else(|| best(&mut pairs(&ends), least));
        match found {
            Some(found) => (least, ends) = found,
            None => return Ok(ranges(&ends, costs.len())),
        }
    }
}

/// Returns the simulated step time of a plan for the partition `cut` of the layers, which has one range of layer
/// indices per stage. `costs` has the cost of each layer, and `speeds` the relative speed of each stage's device.
fn step_of(plan: &Checked, cut: &[Range<usize>], costs: &[f64], speeds: &[f64]) -> f64 {
    let forward = cut.iter().zip(speeds).map(|(range, speed)| costs[range.clone()].iter().sum::<f64>() / speed);
    let stages = forward.map(|forward| StageCost::new(forward, forward, forward)).collect();
    simulate(plan, &Costs::by_stage(stages)).step()
}

/// Returns all partitions that differ from `ends` in one boundary between stages, by one layer. Each boundary is moved
/// in both directions. `ends` has the index after the last layer of every stage but the last. A result may leave a
/// stage without layers.
fn singles(ends: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..ends.len()).flat_map(|boundary| [-1, 1].map(|by| moved(ends, boundary, by)))
}

/// Returns all partitions that differ from `ends` in two boundaries between stages, each by one layer, for all pairs of
/// boundaries and of directions. `ends` has the index after the last layer of every stage but the last. A result may
/// leave a stage without layers.
fn pairs(ends: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let others = |one: usize| (one + 1..ends.len()).map(move |other| (one, other));
    let each = [(-1, -1), (-1, 1), (1, -1), (1, 1)];
    let both = move |(one, other)| each.map(|(by, also)| moved(&moved(ends, one, by), other, also));
    (0..ends.len()).flat_map(others).flat_map(both)
}

fn moved(ends: &[usize], boundary: usize, by: isize) -> Vec<usize> {
    let mut moved = ends.to_vec();
    moved[boundary] = moved[boundary].saturating_add_signed(by);
    moved
}

/// Whether every stage has at least one of `layers` layers. `ends` has the index after the last layer of every stage
/// but the last.
fn is_sound(ends: &[usize], layers: usize) -> bool {
    ends[0] > 0 && ends[ends.len() - 1] < layers && ends.windows(2).all(|pair| pair[0] < pair[1])
}

/// Returns the range of layer indices of each stage. `ends` has the index after the last layer of every stage but the
/// last, and `layers` is the number of layers.
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

    /// Tests two workers with their stages in a V, so that worker 0 has the first and the last stage. The partition of
    /// `balance_with_speeds` gives all four blocks to worker 1, and only a cheap embedding and a head to worker 0.
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

    /// Returns the shortest simulated step of a plan over all partitions of the layers into stages.
    fn shortest(plan: &Checked, costs: &[f64]) -> f64 {
        let stages = plan.plan().stages();
        let mut ends: Vec<usize> = (1..stages).collect();
        let mut shortest = f64::INFINITY;
        loop {
            shortest = shortest.min(step_of(plan, &ranges(&ends, costs.len()), costs, &vec![1.0; stages]));
            // This moves on to the next partition in lexicographic order.
            let most = |boundary: usize| costs.len() - (stages - 1 - boundary);
            let Some(at) = (0..stages - 1).rfind(|at| ends[*at] < most(*at)) else { return shortest };
            ends[at] += 1;
            (at + 1..stages - 1).for_each(|later| ends[later] = ends[later - 1] + 1);
        }
    }

    /// Tests the search against all partitions of random layers. On average, the step that the search finds is less
    /// than 1% longer than the shortest step, and the step with the partition of `balance_with_speeds` is more than 4%
    /// longer.
    #[test]
    fn steps_are_nearly_the_shortest_of_all_partitions() {
        let (mut found, mut even, mut random) = (0.0, 0.0, 7_u64);
        let cases = 40;
        for case in 0..cases {
            let plan = if case % 2 == 0 { checked(&ZbV, 4, 8) } else { checked(&Interleaved { chunks: 2 }, 6, 6) };
            let costs: Vec<f64> = (0..11)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    1.0 + (random >> 60) as f64
                })
                .collect();
            let speeds = vec![1.0; plan.plan().stages()];
            let above = |cut: Vec<Range<usize>>| step_of(&plan, &cut, &costs, &speeds) / shortest(&plan, &costs) - 1.0;
            found += above(balance_for(&plan, &costs, &speeds).unwrap()) / f64::from(cases);
            even += above(balance_with_speeds(&costs, &speeds).unwrap()) / f64::from(cases);
        }
        assert!(found < 0.01 && even > 0.04, "{found} and {even}");
    }

    #[test]
    fn a_short_plan_is_one_of_the_schedule() {
        let micro_batches = |schedule: &dyn Schedule, stages, micro_batches| {
            short_plan(schedule, stages, micro_batches).map(|plan| plan.plan().micro_batches())
        };
        assert_eq!(micro_batches(&ZbV, 8, 64), Some(8));
        assert_eq!(micro_batches(&ZbV, 8, 3), Some(3));
        assert_eq!(micro_batches(&Interleaved { chunks: 2 }, 8, 64), Some(8));
        assert_eq!(micro_batches(&Interleaved { chunks: 2 }, 8, 7), None);
        assert_eq!(micro_batches(&OneFOneB.plan(2, 9).unwrap(), 2, 9), Some(9), "a plan has one number");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        /// Tests that every stage gets at least one layer, and that the step is not longer than with the partition of
        /// `balance_with_speeds`.
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
            let step = |cuts: &[Range<usize>]| step_of(&plan, cuts, &costs, &speeds);
            let cuts = balance_for(&plan, &costs, &speeds).unwrap();
            prop_assert!(cuts.len() == 8 && cuts[0].start == 0 && cuts[7].end == costs.len());
            prop_assert!(cuts.iter().all(|cut| !cut.is_empty()));
            prop_assert!(cuts.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(step(&cuts) <= step(&balance_with_speeds(&costs, &speeds).unwrap()));
        }
    }
}
