//! What must hold for every schedule, over P, M and channel capacity.

use std::collections::{BTreeMap, HashMap, VecDeque};

use proptest::prelude::*;
use stageline_schedule::{
    Action, Carried, Checked, Compute, Costs, EagerOneFOneB, GPipe, Instruction, Interleaved, LoopedBreadthFirst,
    OneFOneB, Plan, SCHEDULES, Schedule, StageCost, Timeline, Transfer, Transfers, ZbH1, ZbH2, check, schedule_named,
    simulate,
};

/// PipeDream-Flush, P = 4 and M = 8, written out by hand.
#[test]
fn one_f_one_b_is_pipedream_flush() {
    let expected = "\
0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7
1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7
2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7
3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7
";
    assert_eq!(OneFOneB.plan(4, 8).unwrap().to_csv(), expected);
}

#[test]
fn no_stages_and_no_micro_batches_are_errors() {
    for schedule in SCHEDULES {
        assert!(schedule.plan(0, 1).unwrap_err().to_string().contains("0 stages"));
        assert!(schedule.plan(1, 0).unwrap_err().to_string().contains("0 micro-batches"));
    }
}

#[test]
fn a_plan_is_the_schedule_of_its_own_shape_only() {
    let plan = OneFOneB.plan(2, 3).unwrap();
    assert_eq!(plan.plan(2, 3).as_ref(), Ok(&plan));
    let message = plan.plan(4, 3).unwrap_err().to_string();
    assert!(message.contains("2 stages") && message.contains("4 stages"), "{message}");
}

#[test]
fn live_micro_batches_are_the_papers() {
    for (stages, micro_batches) in (1..=6).flat_map(|stages| (1..=10).map(move |m| (stages, m))) {
        let peak = |schedule: &dyn Schedule| schedule.plan(stages, micro_batches).unwrap().peak_live();
        assert_eq!(peak(&GPipe), vec![micro_batches; stages]);
        let expected: Vec<_> = (0..stages).map(|stage| micro_batches.min(stages - stage)).collect();
        assert_eq!(peak(&OneFOneB), expected);
        let expected: Vec<_> = (0..stages).map(|stage| micro_batches.min(2 * (stages - stage) - 1)).collect();
        assert_eq!(peak(&EagerOneFOneB), expected);
        let expected: Vec<_> = (0..stages).map(|worker| (2 * micro_batches).min(3 * stages - 1 - 2 * worker)).collect();
        let interleaved = Interleaved { chunks: 2 }.plan(2 * stages, micro_batches);
        if let Ok(plan) = interleaved {
            assert_eq!(plan.peak_live(), expected, "P={stages} M={micro_batches}");
        }
        assert_eq!(peak(&ZbH1), vec![micro_batches.min(stages); stages]);
        assert_eq!(peak(&ZbH2), vec![micro_batches.min(2 * stages - 1); stages]);
    }
}

fn simulated(schedule: &dyn Schedule, stages: usize, micro_batches: usize, costs: &Costs) -> Timeline {
    let checked = check(schedule.plan(stages, micro_batches).unwrap(), micro_batches).unwrap();
    simulate(&checked, costs)
}

#[test]
fn the_pictures_in_the_docs_are_the_plans() {
    let chunks = 2;
    let documented: [(&dyn Schedule, usize, usize, &str); 7] = [
        (&GPipe, 4, 4, include_str!("../src/gpipe.rs")),
        (&OneFOneB, 4, 8, include_str!("../src/one_f_one_b.rs")),
        (&EagerOneFOneB, 4, 8, include_str!("../src/eager_one_f_one_b.rs")),
        (&Interleaved { chunks }, 8, 8, include_str!("../src/interleaved.rs")),
        (&LoopedBreadthFirst { chunks }, 8, 4, include_str!("../src/looped_breadth_first.rs")),
        (&ZbH1, 4, 8, include_str!("../src/zb_h1.rs")),
        (&ZbH2, 4, 8, include_str!("../src/zb_h2.rs")),
    ];
    assert_eq!(documented.len(), SCHEDULES.len());
    for (schedule, stages, micro_batches, source) in documented {
        let timeline = simulated(schedule, stages, micro_batches, &Costs::uniform(stages, 1.0, 2.0));
        let picture: String = timeline.grid(1.0).lines().map(|line| format!("/// {line}\n")).collect();
        assert!(source.contains(&picture), "{} looks so:\n{picture}", schedule.name());
    }
}

#[test]
fn the_picture_in_the_readme_is_the_plan() {
    let timeline = simulated(&OneFOneB, 4, 8, &Costs::uniform(4, 1.0, 2.0));
    assert!(include_str!("../../../README.md").contains(&timeline.grid(1.0)));
}

#[test]
fn schedules_are_found_by_name() {
    for schedule in SCHEDULES {
        assert_eq!(schedule_named(schedule.name()).unwrap().name(), schedule.name());
    }
    let message = schedule_named("2f2b").err().unwrap().to_string();
    assert_eq!(
        message,
        "there is no schedule `2f2b`; there are gpipe, 1f1b, eager-1f1b, interleaved, \
                         looped-breadth-first, zb-h1, zb-h2"
    );
}

/// Every stage does every micro-batch in a random but complete order, and each stage stands on some worker.
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

/// Runs a checked plan with workers that take turns at transfers, choosing the next worker by `choices`.
fn run_in_turns(checked: &Checked, mut choices: impl FnMut(usize) -> usize) {
    let rows: Vec<Vec<_>> =
        (0..checked.plan().workers()).map(|worker| checked.instructions(worker).collect()).collect();
    let order = checked.transfers();
    let mut next = vec![0; rows.len()];
    let mut turn = 0;
    let mut channels: HashMap<(usize, Carried), VecDeque<Transfer>> = HashMap::new();
    loop {
        let ready: Vec<_> = (0..rows.len())
            .filter(|&worker| match rows[worker].get(next[worker]) {
                None => false,
                Some(Instruction::Compute(_)) => true,
                Some(Instruction::Receive(transfer)) => {
                    channels.get(&(transfer.from, transfer.carried)).and_then(VecDeque::front) == Some(transfer)
                }
                Some(Instruction::Send(transfer)) => {
                    let held = channels.get(&(transfer.from, transfer.carried)).map_or(0, VecDeque::len);
                    order.get(turn) == Some(transfer) && held < checked.capacity()
                }
            })
            .collect();
        if ready.is_empty() {
            break;
        }
        let worker = ready[choices(ready.len())];
        match rows[worker][next[worker]] {
            Instruction::Compute(_) => {}
            Instruction::Send(transfer) => {
                channels.entry((transfer.from, transfer.carried)).or_default().push_back(transfer);
                turn += 1;
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
    #[test]
    fn every_schedule_completes(stages in 1..9_usize, micro_batches in 1..20_usize) {
        for schedule in SCHEDULES {
            let Ok(plan) = schedule.plan(stages, micro_batches) else { continue };
            prop_assert_eq!(plan.stages(), stages);
            prop_assert_eq!(plan.micro_batches(), micro_batches);
            prop_assert!(check(plan.clone(), micro_batches).is_ok(), "{}", schedule.name());
            // One stage a worker needs room for one micro-batch at the most.
            prop_assert!(plan.workers() < stages || check(plan, 1).is_ok(), "{}", schedule.name());
        }
    }

    /// The order of transfers is safe under any interleaving: an accepted plan whose workers take turns completes.
    #[test]
    fn taking_turns_never_waits_for_a_later_transfer(
        plan in random_plan(), capacity in 1..4_usize, seed in prop::collection::vec(0..1000_usize, 64),
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

    /// Whether a plan completes does not depend on what anything costs, nor on how transfers share the devices, and
    /// taking turns makes nothing earlier.
    #[test]
    fn completion_does_not_depend_on_costs(
        plan in random_plan(), capacity in 0..4_usize,
        costs in prop::collection::vec((0.1..9.0_f64, 0.1..9.0_f64, 0.1..9.0_f64), 4), latency in 0.0..5.0_f64,
    ) {
        let stages = costs.into_iter().map(|(f, i, w)| StageCost::new(f, i, w).with_latency(latency));
        let costs = Costs::by_stage(stages.collect());
        if let Ok(checked) = check(plan, capacity) {
            let step = simulate(&checked, &costs).step();
            prop_assert!(simulate(&checked, &costs.clone().with_transfers(Transfers::Serialised)).step() >= step);
            prop_assert!(simulate(&checked, &costs.without_latency()).step() <= step);
        }
    }

    /// Dropping, doubling or moving to the front any backward, whole or half, of a good plan makes it a refused one.
    #[test]
    fn mutated_plans_are_refused(
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
