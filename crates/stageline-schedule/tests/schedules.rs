//! What must hold for every schedule, over P, M and channel capacity.

use std::collections::{BTreeMap, HashMap, VecDeque};

use proptest::prelude::*;
use stageline_schedule::{
    Action, Carried, CheckError, Checked, Compute, Costs, DualPipeV, EagerOneFOneB, GPipe, Instruction, Interleaved,
    LoopedBreadthFirst, OneFOneB, Plan, SCHEDULES, Schedule, ScheduleError, StageCost, Timeline, Transfer, VHalf, VMin,
    ZbH1, ZbH2, ZbV, check, schedule_named, simulate,
};

/// Those without split backwards.
const WHOLE: [&dyn Schedule; 3] = [&GPipe, &OneFOneB, &EagerOneFOneB];

/// Those with chunks in a V.
const V_SHAPED: [&dyn Schedule; 4] = [&ZbV, &DualPipeV, &VHalf, &VMin];

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

/// PyTorch 2.15's `ScheduleZBVZeroBubble` without its idle slots, P = 3, M = 5 and M = 2.
#[test]
fn zb_v_is_pytorchs() {
    let expected = "\
0F0,0F1,0F2,0F3,0F4,5F0,5I0,5W0,5F1,5I1,5W1,5F2,5I2,5W2,0I0,0W0,5F3,5I3,5W3,0I1,0W1,5F4,5I4,5W4,0I2,0W2,0I3,0W3,\
0I4,0W4
1F0,1F1,1F2,4F0,1F3,4F1,4I0,4W0,4F2,4I1,4W1,1F4,1I0,1W0,4F3,4I2,4W2,1I1,1W1,4F4,4I3,4W3,1I2,4I4,1I3,1W2,1I4,1W3,\
4W4,1W4
2F0,3F0,2F1,3F1,2F2,3F2,3I0,3W0,2F3,2I0,2W0,3F3,3I1,3W1,2F4,2I1,2W1,3F4,3I2,3W2,2I2,3I3,2I3,3I4,2I4,2W2,3W3,3W4,\
2W3,2W4
";
    assert_eq!(ZbV.plan(6, 5).unwrap().to_csv(), expected);
    let fewer_than_fill_it = "\
0F0,0F1,5F0,5I0,5W0,5F1,5I1,5W1,0I0,0W0,0I1,0W1
1F0,1F1,4F0,4F1,4I0,4W0,4I1,4W1,1I0,1W0,1I1,1W1
2F0,3F0,2F1,3F1,3I0,3W0,2I0,2W0,3I1,3W1,2I1,2W1
";
    assert_eq!(ZbV.plan(6, 2).unwrap().to_csv(), fewer_than_fill_it);
}

/// PyTorch 2.15's `ScheduleDualPipeV`, its overlapped pairs one after the other, P = 3 and M = 6.
#[test]
fn dualpipe_v_is_pytorchs() {
    let expected = "\
0F0,0F1,0F2,0F3,0F4,5F0,5I0,5W0,5F1,5I1,5W1,5F2,0F5,5B2,5F3,0B0,5B3,5F4,0B1,5B4,5F5,0B2,5B5,0I3,0W3,0I4,0W4,0I5,0W5
1F0,1F1,1F2,4F0,1F3,4F1,4I0,4W0,4F2,1F4,4B1,4F3,1B0,1F5,4B2,4F4,1B1,4B3,4F5,1B2,4B4,1B3,4I5,1I4,4W5,1I5,1W4,1W5
2F0,3F0,2F1,3F1,2F2,3F2,2F3,3B0,3F3,2B0,2F4,3B1,3F4,2B1,2F5,3B2,3F5,2B2,3B3,2B3,3B4,2I4,3I5,2I5,2W4,3W5,2W5
";
    assert_eq!(DualPipeV.plan(6, 6).unwrap().to_csv(), expected);
}

#[test]
fn no_stages_and_no_micro_batches_are_errors() {
    for schedule in SCHEDULES {
        assert!(schedule.plan(0, 1).unwrap_err().to_string().contains("0 stages"));
        assert!(schedule.plan(1, 0).unwrap_err().to_string().contains("0 micro-batches"));
    }
}

#[test]
fn a_v_needs_an_even_number_of_stages() {
    for schedule in V_SHAPED {
        assert_eq!(schedule.plan(7, 4), Err(ScheduleError::Chunks { stages: 7, chunks: 2 }));
        for (worker, row) in schedule.plan(8, 4).unwrap().rows().iter().enumerate() {
            assert!(row.iter().all(|action| [worker, 7 - worker].contains(&action.stage)), "{}", schedule.name());
        }
    }
}

#[test]
fn a_plan_is_the_schedule_of_its_own_shape_only() {
    let plan = OneFOneB.plan(2, 3).unwrap();
    assert_eq!(plan.plan(2, 3).as_ref(), Ok(&plan));
    let message = plan.plan(4, 3).unwrap_err().to_string();
    assert!(message.contains("2 stages") && message.contains("4 stages"), "{message}");
}

/// (M+P-1)(F+B) and (P-1)/(M+P-1): arXiv:1811.06965 and arXiv:2104.04473.
#[test]
fn makespan_and_bubble_are_the_papers() {
    for schedule in WHOLE {
        for (stages, micro_batches) in (1..=8).flat_map(|stages| (1..=20).map(move |m| (stages, m))) {
            let checked = check(schedule.plan(stages, micro_batches).unwrap(), micro_batches).unwrap();
            let costs = Costs::uniform(stages, 1.0, 2.0);
            let timeline = simulate(checked.plan(), micro_batches, &costs).unwrap();
            let (p, m) = (stages as f64, micro_batches as f64);
            let case = format!("{} P={stages} M={micro_batches}", schedule.name());
            assert_eq!(timeline.makespan(), (m + p - 1.0) * 3.0, "{case}");
            assert!((timeline.bubble() - (p - 1.0) / (m + p - 1.0)).abs() < 1e-12, "{case}");
        }
    }
}

/// (P-1)/(VM+P-1): arXiv:2104.04473 and arXiv:2211.05953.
#[test]
fn chunks_divide_the_bubble() {
    for (workers, chunks, rounds) in (1..=4).flat_map(|p| (1..=3).flat_map(move |v| (1..=4).map(move |r| (p, v, r)))) {
        let (stages, micro_batches) = (workers * chunks, rounds * workers);
        let costs = Costs::uniform(stages, 1.0, 2.0);
        let (p, total) = (workers as f64, (chunks * micro_batches) as f64);
        for schedule in [&Interleaved { chunks } as &dyn Schedule, &LoopedBreadthFirst { chunks }] {
            let timeline = simulated(schedule, stages, micro_batches, &costs);
            let case = format!("{} P={workers} V={chunks} M={micro_batches}", schedule.name());
            assert!((timeline.bubble() - (p - 1.0) / (total + p - 1.0)).abs() < 1e-12, "{case}: {}", timeline.bubble());
        }
    }
}

#[test]
fn live_micro_batches_are_the_papers() {
    for (stages, micro_batches) in (1..=6).flat_map(|stages| (1..=10).map(move |m| (stages, m))) {
        let peak = |schedule: &dyn Schedule| {
            let checked = check(schedule.plan(stages, micro_batches).unwrap(), micro_batches).unwrap();
            simulate(checked.plan(), micro_batches, &Costs::uniform(stages, 1.0, 2.0)).unwrap().peak_live()
        };
        assert_eq!(peak(&GPipe), vec![micro_batches; stages]);
        let expected: Vec<_> = (0..stages).map(|stage| micro_batches.min(stages - stage)).collect();
        assert_eq!(peak(&OneFOneB), expected);
        let expected: Vec<_> = (0..stages).map(|stage| micro_batches.min(2 * (stages - stage) - 1)).collect();
        assert_eq!(peak(&EagerOneFOneB), expected);
        let expected: Vec<_> = (0..stages).map(|worker| (2 * micro_batches).min(3 * stages - 1 - 2 * worker)).collect();
        let interleaved = Interleaved { chunks: 2 }.plan(2 * stages, micro_batches);
        if let Ok(plan) = interleaved {
            let timeline = simulate(&plan, micro_batches, &Costs::uniform(2 * stages, 1.0, 2.0)).unwrap();
            assert_eq!(timeline.peak_live(), expected, "P={stages} M={micro_batches}");
        }
        assert_eq!(peak(&ZbH1), vec![micro_batches.min(stages); stages]);
        assert_eq!(peak(&ZbH2), vec![micro_batches.min(2 * stages - 1); stages]);
    }
}

/// Of chunks, each half a worker's share: those of ZB-V are 1F1B's memory (arXiv:2401.10241), and V-Half's and V-Min's
/// about a half and a third of that (arXiv:2405.15362).
#[test]
fn live_chunks_in_a_v_are_the_papers() {
    for (workers, micro_batches) in (1..=8).flat_map(|workers| (1..=3 * workers).map(move |m| (workers, m))) {
        let costs = Costs::uniform(2 * workers, 1.0, 2.0);
        let peak = |schedule: &dyn Schedule| simulated(schedule, 2 * workers, micro_batches, &costs).peak_live();
        let case = format!("P={workers} M={micro_batches}");
        let filling = |most: usize| (0..workers).map(move |w| most.min(2 * micro_batches).min(micro_batches + 1 + w));
        assert_eq!(peak(&ZbV), filling(2 * workers).collect::<Vec<_>>(), "{case}");
        assert_eq!(peak(&DualPipeV), filling(2 * workers + 1).collect::<Vec<_>>(), "{case}");
        let all = |most: usize| vec![most.min(2 * micro_batches); workers];
        assert_eq!(peak(&VHalf), all(2 * (workers / 2) + 2), "{case}");
        assert_eq!(peak(&VMin), all(2 * ((workers + 4) / 3)), "{case}");
    }
}

fn simulated(schedule: &dyn Schedule, stages: usize, micro_batches: usize, costs: &Costs) -> Timeline {
    let checked = check(schedule.plan(stages, micro_batches).unwrap(), micro_batches).unwrap();
    simulate(checked.plan(), micro_batches, costs).unwrap()
}

/// The Zero Bubble paper's model (arXiv:2401.10241): sends of one latency on every edge, costs as measured there.
#[test]
fn bubbles_by_span_are_the_zero_bubble_papers() {
    let cost = StageCost { forward: 18.522, input_gradient: 18.086, weight_gradient: 9.337 };
    let costs = Costs { stages: vec![cost; 8], latency: 0.601 };
    let rounded = |schedule: &dyn Schedule| format!("{:.4}", simulated(schedule, 8, 24, &costs).span_bubble());
    assert_eq!(rounded(&OneFOneB), "0.2431");
    assert_eq!(rounded(&ZbH1), "0.1585");
    assert_eq!(rounded(&ZbH2), "0.1083");
}

/// A third of 1F1B's idle time, (P-1)/(3M+P-1) by span, and none at all.
#[test]
fn zero_bubble_schedules_leave_the_bubble_of_the_paper() {
    for stages in 1..=6 {
        for micro_batches in 2 * stages - 1..=2 * stages + 9 {
            let costs = Costs::uniform(stages, 1.0, 2.0);
            let (p, m) = (stages as f64, micro_batches as f64);
            let h1 = simulated(&ZbH1, stages, micro_batches, &costs).span_bubble();
            assert!((h1 - (p - 1.0) / (3.0 * m + p - 1.0)).abs() < 1e-12, "ZB-H1, P={stages} M={micro_batches}: {h1}");
            let h2 = simulated(&ZbH2, stages, micro_batches, &costs).span_bubble();
            assert!(h2.abs() < 1e-12, "ZB-H2, P={stages} M={micro_batches}: {h2}");
        }
    }
}

/// In equal thirds: 2(2P-1-M) for ZB-V while M < 2P-1; and, from M = P+1 on, less than P/2M and 2P/3M of the work for
/// V-Half and V-Min, as arXiv:2405.15362 says.
#[test]
fn idle_time_in_a_v_is_what_the_docs_say() {
    for (workers, micro_batches) in (1..=10).flat_map(|workers| (1..=3 * workers).map(move |m| (workers, m))) {
        let (p, m) = (workers as f64, micro_batches as f64);
        let costs = Costs::uniform(2 * workers, 1.0, 2.0);
        let idle = |schedule: &dyn Schedule| simulated(schedule, 2 * workers, micro_batches, &costs).span() - 6.0 * m;
        assert_eq!(idle(&ZbV), (2.0 * (2.0 * p - 1.0 - m)).max(0.0), "P={p} M={m}");
        let (half, least) = (idle(&VHalf), idle(&VMin));
        if micro_batches > workers {
            assert_eq!(half, (6.0 * ((p - 1.0) / 2.0).floor() - 1.0).max(0.0), "P={p} M={m}");
            let expected = match workers {
                1 | 2 => p - 1.0,
                _ if workers.is_multiple_of(3) => 4.0 * p - 7.0,
                _ => 4.0 * p - 5.0,
            };
            assert_eq!(least, expected, "P={p} M={m}");
        }
    }
}

/// (P-1)(2F-W), from M = 2P on, where F = I >= W.
#[test]
fn idle_time_of_dualpipe_v_is_what_the_docs_say() {
    for (forward, weight_gradient) in [(1.0, 1.0), (1.0, 0.25), (3.0, 2.0)] {
        let cost = StageCost { forward, input_gradient: forward, weight_gradient };
        for (workers, more) in (1..=6).flat_map(|workers| (0..=4).map(move |more| (workers, more))) {
            let (stages, micro_batches) = (2 * workers, 2 * workers + more);
            let costs = Costs { stages: vec![cost; stages], latency: 0.0 };
            let work = 2.0 * micro_batches as f64 * (2.0 * forward + weight_gradient);
            let idle = simulated(&DualPipeV, stages, micro_batches, &costs).span() - work;
            let expected = (workers as f64 - 1.0) * (2.0 * forward - weight_gradient);
            assert!((idle - expected).abs() < 1e-9, "P={workers} M={micro_batches} {cost:?}: {idle}");
        }
    }
}

/// With P | M, transfers of latency c cost 1F1B c[2(P-1)M/P + 2(P-2)], and eager 1F1B 2(P-1)c while 2c <= F+B.
#[test]
fn latency_costs_what_the_closed_forms_say() {
    let (forward, backward, latency) = (3.0, 5.0, 0.25);
    for (stages, rounds) in (2..=6).flat_map(|stages| (1..=4).map(move |rounds| (stages, rounds))) {
        let micro_batches = rounds * stages;
        let costs = Costs { latency, ..Costs::uniform(stages, forward, backward) };
        let (p, m) = (stages as f64, micro_batches as f64);
        let ideal = (m + p - 1.0) * (forward + backward);
        let eager = simulated(&EagerOneFOneB, stages, micro_batches, &costs).makespan();
        assert!((eager - ideal - 2.0 * (p - 1.0) * latency).abs() < 1e-9, "eager, P={p} M={m}: {eager}");
        let plain = simulated(&OneFOneB, stages, micro_batches, &costs).makespan();
        let delay = latency * (2.0 * (p - 1.0) * m / p + 2.0 * (p - 2.0));
        assert!((plain - ideal - delay).abs() < 1e-9, "1F1B, P={p} M={m}: {plain} against {}", ideal + delay);
    }
}

#[test]
fn the_pictures_in_the_docs_are_the_plans() {
    let chunks = 2;
    let documented: [(&dyn Schedule, usize, usize, &str); 11] = [
        (&GPipe, 4, 4, include_str!("../src/gpipe.rs")),
        (&OneFOneB, 4, 8, include_str!("../src/one_f_one_b.rs")),
        (&EagerOneFOneB, 4, 8, include_str!("../src/eager_one_f_one_b.rs")),
        (&Interleaved { chunks }, 8, 8, include_str!("../src/interleaved.rs")),
        (&LoopedBreadthFirst { chunks }, 8, 4, include_str!("../src/looped_breadth_first.rs")),
        (&ZbH1, 4, 8, include_str!("../src/zb_h1.rs")),
        (&ZbH2, 4, 8, include_str!("../src/zb_h2.rs")),
        (&ZbV, 8, 8, include_str!("../src/zb_v.rs")),
        (&DualPipeV, 8, 8, include_str!("../src/dualpipe_v.rs")),
        (&VHalf, 8, 8, include_str!("../src/v_half.rs")),
        (&VMin, 8, 8, include_str!("../src/v_min.rs")),
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
                         looped-breadth-first, zb-h1, zb-h2, zb-v, dualpipe-v, v-half, v-min"
    );
}

#[test]
fn latency_delays_every_boundary_once_each_way() {
    let checked = check(OneFOneB.plan(3, 1).unwrap(), 1).unwrap();
    let costs = Costs { latency: 0.5, ..Costs::uniform(3, 1.0, 2.0) };
    assert_eq!(simulate(checked.plan(), 1, &costs).unwrap().makespan(), 9.0 + 4.0 * 0.5);
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

    /// So do chunks in a V. From 30 workers on V-Half needs room for two at times.
    #[test]
    fn chunks_in_a_v_need_room_for_one(workers in 1..17_usize, micro_batches in 1..40_usize) {
        for schedule in V_SHAPED {
            let plan = schedule.plan(2 * workers, micro_batches).unwrap();
            prop_assert!(check(plan, 1).is_ok(), "{}", schedule.name());
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
                prop_assert!(simulate(checked.forwards(micro_batches).plan(), capacity, &costs).is_ok());
            }
            let mut seed = seed.into_iter().cycle();
            run_in_turns(&checked, |ready| seed.next().unwrap() % ready);
        }
    }

    /// Whether a plan completes does not depend on what anything costs.
    #[test]
    fn completion_does_not_depend_on_costs(
        plan in random_plan(), capacity in 0..4_usize,
        costs in prop::collection::vec((0.1..9.0_f64, 0.1..9.0_f64, 0.1..9.0_f64), 4), latency in 0.0..5.0_f64,
    ) {
        let stages = costs.into_iter().map(|(forward, input_gradient, weight_gradient)| {
            StageCost { forward, input_gradient, weight_gradient }
        });
        let costs = Costs { stages: stages.collect(), latency };
        match check(plan.clone(), capacity) {
            Ok(checked) => prop_assert!(simulate(checked.plan(), capacity, &costs).is_ok()),
            Err(CheckError::Deadlock { deadlock, .. }) => {
                let again = simulate(&plan, capacity, &costs).unwrap_err();
                prop_assert_eq!(again, deadlock);
            }
            Err(CheckError::Sequence { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
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
