//! Tests that plans that pass the check complete, and that damaged plans are rejected. Plans also complete if the
//! workers make their transfers one at a time in the plan's global order.

use std::collections::{BTreeMap, HashMap, VecDeque};

use proptest::prelude::*;
use stageline_schedule::{
    Action, Carried, Checked, Compute, Costs, Instruction, Plan, SCHEDULES, Schedule, StageCost, Transfer, Transfers,
    check, simulate,
};

use crate::V_SHAPED;

/// Generates random plans in which every stage trains on every micro-batch, in a random order on a random number of
/// workers.
fn random_plan() -> impl Strategy<Value = Plan> {
    let shape = (1..4_usize, 1..5_usize, 1..4_usize);
    shape.prop_flat_map(|(stages, micro_batches, workers)| {
        let actions: Vec<Action> = (0..stages)
            .flat_map(|stage| (0..micro_batches).map(move |micro_batch| (stage, micro_batch)))
            .flat_map(|(stage, m)| [Action::forward(stage, m), Action::backward(stage, m)])
            .collect();
        let keys = prop::collection::vec(0..1000_u32, actions.len());
        (Just(actions), keys, 1..=workers.min(stages)).prop_map(|(actions, keys, workers)| {
            let mut rows: BTreeMap<usize, Vec<(bool, u32, Action)>> = BTreeMap::new();
            for (&action, key) in actions.iter().zip(keys) {
                let late = action.compute == Compute::Backward && key % 4 != 0;
                rows.entry(action.stage % workers).or_default().push((late, key, action));
            }
            let sorted = rows.into_values().map(|mut row| {
                row.sort();
                row.into_iter().map(|(_, _, action)| action).collect()
            });
            Plan::new(sorted.collect())
        })
    })
}

/// Generates plans of schedules in which some neighbouring actions are swapped. Most of these plans still complete.
fn swapped_plan() -> impl Strategy<Value = Plan> {
    let swaps = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12);
    (1..6_usize, 1..7_usize, 0..SCHEDULES.len(), swaps).prop_map(|(workers, micro_batches, schedule, swaps)| {
        let schedule = SCHEDULES[schedule];
        // Some schedules need a number of micro-batches that is a multiple of the number of workers.
        let plan = |micro_batches| schedule.plan(workers * schedule.chunks(), micro_batches);
        let plan = plan(micro_batches).or_else(|_| plan(workers * micro_batches)).unwrap();
        let mut rows = plan.rows().to_vec();
        for (worker, at) in swaps {
            let row = worker.index(rows.len());
            let at = at.index(rows[row].len() - 1);
            rows[row].swap(at, at + 1);
        }
        Plan::new(rows)
    })
}

fn any_plan() -> impl Strategy<Value = Plan> {
    prop_oneof![random_plan(), swapped_plan()]
}

/// Runs a checked plan on simulated workers that make their transfers one at a time, in the plan's global order of
/// transfers. `choices` gets the number n of workers that can advance, and returns which of them advances, as a number
/// below n.
fn run_in_turns(checked: &Checked, mut choices: impl FnMut(usize) -> usize) {
    let rows: Vec<Vec<_>> =
        (0..checked.plan().workers()).map(|worker| checked.instructions(worker).collect()).collect();
    let order = checked.transfers();
    let mut next = vec![0; rows.len()];
    let mut turn = 0;
    let mut channels: HashMap<(usize, Carried), VecDeque<Transfer>> = HashMap::new();
    loop {
        let receiver = |transfer: Transfer| {
            (0..rows.len()).find(|&worker| rows[worker].get(next[worker]) == Some(&Instruction::Receive(transfer)))
        };
        let held = |transfer: Transfer| channels.get(&(transfer.from, transfer.carried));
        let ready = |worker: &usize| match rows[*worker].get(next[*worker]) {
            None => false,
            Some(Instruction::Compute(_)) => true,
            Some(Instruction::Receive(transfer)) => held(*transfer).and_then(VecDeque::front) == Some(transfer),
            Some(Instruction::Send(transfer)) => {
                let room = match checked.capacity() {
                    0 => receiver(*transfer).is_some(),
                    capacity => held(*transfer).map_or(0, VecDeque::len) < capacity,
                };
                order.get(turn) == Some(transfer) && room
            }
        };
        let ready: Vec<_> = (0..rows.len()).filter(ready).collect();
        if ready.is_empty() {
            break;
        }
        let worker = ready[choices(ready.len())];
        match rows[worker][next[worker]] {
            Instruction::Compute(_) => {}
            Instruction::Send(transfer) => {
                turn += 1;
                match receiver(transfer).filter(|_| checked.capacity() == 0) {
                    Some(receiver) => next[receiver] += 1,
                    None => channels.entry((transfer.from, transfer.carried)).or_default().push_back(transfer),
                }
            }
            Instruction::Receive(transfer) => {
                channels.get_mut(&(transfer.from, transfer.carried)).unwrap().pop_front();
            }
        }
        next[worker] += 1;
    }
    for (row, next) in rows.iter().zip(next) {
        assert_eq!(next, row.len(), "stuck at {}", row[next]);
    }
    assert_eq!(turn, order.len());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_completes(stages in 1..9_usize, micro_batches in 1..20_usize) {
        for schedule in SCHEDULES {
            let Ok(plan) = schedule.plan(stages, micro_batches) else { continue };
            prop_assert_eq!(plan.stages(), stages);
            prop_assert_eq!(plan.micro_batches(), micro_batches);
            prop_assert!(check(plan.clone(), micro_batches).is_ok(), "{}", schedule.name());
            // Plans with one stage per worker complete at capacity 1.
            prop_assert!(plan.workers() < stages || check(plan, 1).is_ok(), "{}", schedule.name());
        }
    }

    /// Tests plans with two chunks (stages) per worker in a V, for up to 16 workers. They complete if each channel
    /// between two stages holds one micro-batch.
    #[test]
    fn chunks_in_a_v_complete_at_capacity_one(workers in 1..17_usize, micro_batches in 1..40_usize) {
        for schedule in V_SHAPED {
            let plan = schedule.plan(2 * workers, micro_batches).unwrap();
            prop_assert!(check(plan, 1).is_ok(), "{}", schedule.name());
        }
    }

    /// Tests the global order of a plan's transfers. The plan completes if its workers make their transfers one after
    /// another in this order, however the workers are interleaved.
    #[test]
    fn taking_turns_never_waits_for_a_later_transfer(
        plan in any_plan(), capacity in 0..4_usize, seed in prop::collection::vec(0..1000_usize, 64),
    ) {
        if let Ok(checked) = check(plan.clone(), capacity) {
            for micro_batches in 1..=plan.micro_batches() {
                let costs = Costs::uniform(plan.stages(), 1.0, 2.0);
                prop_assert!(simulate(&checked.forwards(micro_batches), &costs).step() > 0.0);
            }
            let mut seed = seed.into_iter().cycle();
            run_in_turns(&checked, |ready| seed.next().unwrap() % ready);
        }
    }

    /// Tests that every plan that passes the check completes, whatever the costs are. Serialised transfers, which run
    /// one at a time on each communication stream, never shorten the step.
    #[test]
    fn completion_does_not_depend_on_costs(
        plan in any_plan(), capacity in 0..4_usize,
        costs in prop::collection::vec((0.1..9.0_f64, 0.1..9.0_f64, 0.1..9.0_f64), 10), latency in 0.0..5.0_f64,
    ) {
        let stages = costs.into_iter().map(|(f, i, w)| StageCost::new(f, i, w).with_latency(latency));
        let costs = Costs::by_stage(stages.collect());
        if let Ok(checked) = check(plan, capacity) {
            let step = simulate(&checked, &costs).step();
            prop_assert!(simulate(&checked, &costs.clone().with_transfers(Transfers::Serialised)).step() >= step);
            prop_assert!(simulate(&checked, &costs.without_latency()).step() <= step);
        }
    }

    /// Tests that wrong plans are rejected. Each is a correct plan in which one backward pass, or one half of a split
    /// backward pass, is dropped, doubled, or moved to the front of its worker's list.
    #[test]
    fn mutated_plans_are_rejected(
        stages in 1..5_usize, micro_batches in 1..6_usize, schedule in 0..SCHEDULES.len(), pick: prop::sample::Index, kind in 0..3,
    ) {
        let plan = SCHEDULES[schedule].plan(stages, micro_batches);
        prop_assume!(plan.is_ok());
        let plan = plan.unwrap();
        let mut rows = plan.rows().to_vec();
        let backwards: Vec<_> = (0..plan.workers())
            .flat_map(|stage| rows[stage].iter().enumerate().map(move |(at, action)| (stage, at, *action)))
            .filter(|(_, _, action)| action.compute != Compute::Forward)
            .collect();
        let (stage, at, action) = backwards[pick.index(backwards.len())];
        match kind {
            0 => { rows[stage].remove(at); }
            1 => rows[stage].insert(at, action),
            _ => { let action = rows[stage].remove(at); rows[stage].insert(0, action); }
        }
        prop_assert!(check(Plan::new(rows), micro_batches).is_err());
    }
}
