//! Tests simulated steps, bubbles and idle times against closed forms and worked examples.

use proptest::prelude::*;
use stageline_schedule::{
    Costs, DualPipeV, EagerOneFOneB, GPipe, Idle, Interleaved, LoopedBreadthFirst, OneFOneB, Plan, SCHEDULES, Schedule,
    StageCost, Transfers, VHalf, VMin, ZbH1, ZbH2, ZbV, check, simulate,
};

use crate::{checked, simulated};

/// Compares simulated bubbles by span with those of the Zero Bubble paper (arXiv:2401.10241), at the costs that the
/// paper measured. The bubble by span is the fraction of the longest span of a worker in which the busiest worker does
/// not compute.
#[test]
fn bubbles_by_span_are_the_zero_bubble_papers() {
    let costs = Costs::equal(8, StageCost::new(18.522, 18.086, 9.337).with_latency(0.601));
    let rounded = |schedule: &dyn Schedule| format!("{:.4}", simulated(schedule, 8, 24, &costs).span_bubble());
    assert_eq!(rounded(&OneFOneB), "0.2431");
    assert_eq!(rounded(&ZbH1), "0.1585");
    assert_eq!(rounded(&ZbH2), "0.1083");
}

/// Tests the bubble by span (the fraction of the longest span in which the busiest worker does not compute) for P
/// stages and M micro-batches. As in the Zero Bubble paper (arXiv:2401.10241), it is (P-1)/(3M+P-1) under ZB-H1 and 0
/// under ZB-H2.
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

/// Tests GPipe and 1F1B with P stages and M micro-batches, where a forward pass takes the time F and a backward pass
/// the time B. The step is (M+P-1)(F+B), and the bubble is (P-1)/(M+P-1), as in arXiv:1811.06965 and arXiv:2104.04473.
#[test]
fn step_and_bubble_are_the_papers() {
    for schedule in [&GPipe as &dyn Schedule, &OneFOneB, &EagerOneFOneB] {
        for (stages, micro_batches) in (1..=8).flat_map(|stages| (1..=20).map(move |m| (stages, m))) {
            let timeline = simulated(schedule, stages, micro_batches, &Costs::uniform(stages, 1.0, 2.0));
            let (p, m) = (stages as f64, micro_batches as f64);
            let case = format!("{} P={stages} M={micro_batches}", schedule.name());
            assert_eq!(timeline.step(), (m + p - 1.0) * 3.0, "{case}");
            assert!((timeline.bubble() - (p - 1.0) / (m + p - 1.0)).abs() < 1e-12, "{case}");
        }
    }
}

/// Tests the bubble of schedules with V chunks (stages) on each of P workers. For M micro-batches it is (P-1)/(VM+P-1),
/// as in arXiv:2104.04473 and arXiv:2211.05953.
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

/// Tests the idle time of ZB-V, V-Half and V-Min, if forward pass, input gradient and weight gradient take the same
/// time. The idle time follows the formula in each schedule's documentation.
#[test]
fn idle_time_in_a_v_is_as_documented() {
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

/// Tests that the idle time of DualPipeV on P workers is (P-1)(2F-W) for 2P or more micro-batches. A forward pass (F)
/// takes as long as an input gradient, and at least as long as a weight gradient (W).
#[test]
fn idle_time_of_dualpipe_v_is_as_documented() {
    for (forward, weight_gradient) in [(1.0, 1.0), (1.0, 0.25), (3.0, 2.0)] {
        let cost = StageCost::new(forward, forward, weight_gradient);
        for (workers, more) in (1..=6).flat_map(|workers| (0..=4).map(move |more| (workers, more))) {
            let (stages, micro_batches) = (2 * workers, 2 * workers + more);
            let costs = Costs::equal(stages, cost);
            let work = 2.0 * micro_batches as f64 * (2.0 * forward + weight_gradient);
            let idle = simulated(&DualPipeV, stages, micro_batches, &costs).span() - work;
            let expected = (workers as f64 - 1.0) * (2.0 * forward - weight_gradient);
            assert!((idle - expected).abs() < 1e-9, "P={workers} M={micro_batches} {cost:?}: {idle}");
        }
    }
}

/// Tests how much longer a transfer latency c makes the step of P stages and M micro-batches, if P divides M. Under
/// 1F1B it is c[2(P-1)M/P + 2(P-2)]. Under eager 1F1B it is 2(P-1)c, if 2c is at most the time of a forward pass and a
/// backward pass together.
#[test]
fn latency_adds_the_time_of_the_closed_forms() {
    let (forward, backward, latency) = (3.0, 5.0, 0.25);
    for (stages, rounds) in (2..=6).flat_map(|stages| (1..=4).map(move |rounds| (stages, rounds))) {
        let micro_batches = rounds * stages;
        let costs = Costs::equal(stages, StageCost::new(forward, 0.0, backward).with_latency(latency));
        let (p, m) = (stages as f64, micro_batches as f64);
        let ideal = (m + p - 1.0) * (forward + backward);
        let eager = simulated(&EagerOneFOneB, stages, micro_batches, &costs).step();
        assert!((eager - ideal - 2.0 * (p - 1.0) * latency).abs() < 1e-9, "eager, P={p} M={m}: {eager}");
        let plain = simulated(&OneFOneB, stages, micro_batches, &costs).step();
        let delay = latency * (2.0 * (p - 1.0) * m / p + 2.0 * (p - 2.0));
        assert!((plain - ideal - delay).abs() < 1e-9, "1F1B, P={p} M={m}: {plain} against {}", ideal + delay);
    }
}

#[test]
fn latency_delays_every_boundary_once_each_way() {
    let costs = Costs::equal(3, StageCost::new(1.0, 1.0, 1.0).with_latency(0.5));
    assert_eq!(simulated(&OneFOneB, 3, 1, &costs).step(), 9.0 + 4.0 * 0.5);
}

#[test]
fn a_split_backward_sends_its_gradient_earlier() {
    let step = |csv: &str| {
        let cost = StageCost { backward: 2.5, ..StageCost::new(1.0, 1.0, 2.0) };
        simulate(&check(Plan::from_csv(csv).unwrap(), 1).unwrap(), &Costs::equal(2, cost)).step()
    };
    assert_eq!(step("0F0,0B0\n1F0,1B0\n"), 2.0 + 2.5 + 2.5);
    assert_eq!(step("0F0,0B0\n1F0,1I0,1W0\n"), 2.0 + 1.0 + 2.5);
}

#[test]
fn costs_may_differ_by_micro_batch() {
    let first = StageCost::new(1.0, 1.0, 1.0);
    let later = StageCost::new(5.0, 0.0, 5.0).with_latency(0.5);
    let costs = Costs::by_micro_batch(vec![vec![first, later], vec![first]]);
    // On stage 0, F0 takes 1, and F1 and F2 take 5 each. The activations of F1 and F2 arrive with a latency of 0.5.
    let timeline = simulate(&checked(&GPipe, 2, 3), &costs);
    let starts: Vec<_> = timeline.rows()[1].iter().take(3).map(|span| span.start).collect();
    assert_eq!(starts, [1.0, 6.5, 11.5]);
}

/// Tests a network link that is slower than the stages. The transfers on the link then determine the step time.
#[test]
fn transfers_follow_each_other_on_a_link() {
    let step = |micro_batches: usize, occupied: f64, latency: f64| {
        let plan = check(GPipe.plan(2, micro_batches).unwrap(), micro_batches).unwrap();
        let cost = StageCost::new(1.0, 1.0, 1.0).with_latency(latency);
        simulate(&plan, &Costs::equal(2, cost).with_links(vec![occupied, 0.0])).step()
    };
    for micro_batches in [1, 2, 5, 40] {
        let crossings = 2.0 * micro_batches as f64;
        assert_eq!(step(micro_batches, 3.0, 0.5), 6.0 + 3.0 * crossings + 1.0);
        assert_eq!(step(micro_batches, 2.0, 0.0), 6.0 + 2.0 * crossings);
        // A faster link adds its time only once per direction.
        assert_eq!(step(micro_batches, 0.25, 0.0), 3.0 * (micro_batches as f64 + 1.0) + 0.5);
    }
    // Without time on the link, transfers with latency overlap.
    assert_eq!(step(5, 0.0, 3.0), 3.0 * 6.0 + 6.0);
}

/// Tests two workers with two stages each. An activation occupies the link from worker 0 to worker 1 for 8 units of
/// time, and the link back for no time. The link carries the two activations of stage 0 from 1 to 9 and from 9 to 17.
/// An activation of stage 2 is ready at 11, but the link carries it only from 17 to 25.
#[test]
fn stages_of_the_same_two_workers_share_their_link() {
    let costs = Costs::equal(4, StageCost::new(1.0, 0.0, 0.0)).with_links(vec![8.0, 0.0, 8.0, 0.0]);
    let forwards = checked(&LoopedBreadthFirst { chunks: 2 }, 4, 2).forwards(2);
    let ends: Vec<_> = simulate(&forwards, &costs).rows()[1].iter().map(|span| span.end).collect();
    assert_eq!(ends, [10.0, 18.0, 26.0, 34.0]);
    // With 4 chunks, worker 0 sends activations of four stages and gradients of three to worker 1.
    let costs = Costs::equal(8, StageCost::new(1.0, 0.5, 0.5)).with_links(vec![8.0; 8]);
    let step = simulated(&Interleaved { chunks: 4 }, 8, 8, &costs).step();
    assert!(step > (4.0 + 3.0) * 8.0 * 8.0, "{step}");
}

/// Tests that a transfer waits for the end of the transfer in flight on the same communication stream (a worker's queue
/// of transfers).
#[test]
fn transfers_take_turns_on_a_stream() {
    let costs = Costs::equal(3, StageCost::new(1.0, 0.0, 1.0).with_latency(2.0));
    // Stage 1 receives micro-batch 1, which is sent at 2, before it sends micro-batch 0 at 4. So its stream is busy
    // from 1 to 3, from 3 to 5 and from 5 to 7.
    let forwards = checked(&GPipe, 3, 2).forwards(2);
    let ends = |costs: &Costs| simulate(&forwards, costs).rows()[2].iter().map(|span| span.end).collect::<Vec<_>>();
    assert_eq!(ends(&costs), [7.0, 8.0]);
    assert_eq!(ends(&costs.with_transfers(Transfers::Serialised)), [8.0, 10.0]);
}

#[test]
fn transfers_within_a_worker_are_free() {
    let plan = Plan::from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n").unwrap();
    let costs = Costs::equal(4, StageCost::new(1.0, 0.0, 1.0).with_latency(10.0));
    assert_eq!(simulate(&check(plan, 1).unwrap(), &costs).step(), 8.0 + 4.0 * 10.0);
}

/// Tests each schedule's formula for the step time. Its result equals the simulated step time, and is `None` for 0
/// stages or 0 micro-batches.
#[test]
fn closed_forms_are_the_simulated_steps() {
    let mut held = vec![0; SCHEDULES.len()];
    let latencies = [0.0, 0.25, 0.5, 1.0, 3.0, 7.0];
    let thirds = [(1.0, 1.0, 1.0), (4.0, 2.0, 6.0), (3.0, 7.0, 5.0), (7.0, 3.0, 5.0), (9.0, 9.0, 1.0), (2.0, 3.0, 9.0)];
    for (stages, micro_batches) in (1..=8).flat_map(|stages| (1..=17).map(move |m| (stages, m))) {
        for (schedule, held) in SCHEDULES.iter().zip(&mut held) {
            let Ok(plan) = schedule.plan(stages, micro_batches) else { continue };
            let checked = check(plan, micro_batches).unwrap();
            for (latency, (f, i, w)) in latencies.iter().flat_map(|latency| thirds.map(|third| (*latency, third))) {
                let cost = StageCost::new(f, i, w).with_latency(latency);
                let Some(form) = schedule.closed_form(stages, micro_batches, cost) else { continue };
                let step = simulate(&checked, &Costs::equal(stages, cost)).step();
                let case = format!("{} P={stages} M={micro_batches} {cost:?}", schedule.name());
                assert!((form - step).abs() < 1e-9, "{case}: {form}, simulated {step}");
                *held += 1;
            }
        }
    }
    for (schedule, (p, m)) in
        SCHEDULES.iter().flat_map(|schedule| [(0, 1), (1, 0), (0, 0)].map(|none| (schedule, none)))
    {
        assert_eq!(schedule.closed_form(p, m, StageCost::new(1.0, 1.0, 1.0)), None, "{}", schedule.name());
    }
    let named = SCHEDULES.iter().map(|schedule| schedule.name()).zip(held);
    let rarely: Vec<_> = named.filter(|(_, held)| *held < 50).map(|(name, _)| name).collect();
    for name in ["gpipe", "1f1b", "eager-1f1b", "interleaved", "looped-breadth-first", "zb-h1", "zb-h2"] {
        assert!(!rarely.contains(&name), "{name}");
    }
}

/// Tests the idle time of 1F1B with equal stages, where a forward pass takes the time F and a backward pass the time B.
/// From each stage to the next, the idle time while the pipeline fills falls by B-F, and the idle time while the
/// pipeline drains rises by B-F.
#[test]
fn idle_time_of_equal_stages_is_fill_and_drain() {
    let (plan, costs) = (checked(&OneFOneB, 4, 8), Costs::uniform(4, 1.0, 2.0));
    let idle = simulate(&plan, &costs).idle_by_cause(&plan, &costs);
    let fill_and_drain: Vec<_> = idle.iter().map(|idle| (idle.fill, idle.drain)).collect();
    assert_eq!(fill_and_drain, [(6.0, 3.0), (5.0, 4.0), (4.0, 5.0), (3.0, 6.0)]);
    assert!(idle.iter().all(|idle| (idle.imbalance, idle.transfer, idle.flush) == (0.0, 0.0, 0.0)));
}

#[test]
fn idle_time_is_attributed_to_slow_stages_transfers_and_optimizer_steps() {
    let plan = checked(&OneFOneB, 3, 6);
    let costs = || vec![StageCost::new(1.0, 1.0, 1.0); 3];
    let causes = |costs: Costs| simulate(&plan, &costs).idle_by_cause(&plan, &costs);

    let mut slow = costs();
    slow[1] = StageCost::new(2.0, 2.0, 2.0);
    let idle = causes(Costs::by_stage(slow));
    assert_eq!(idle.iter().map(|idle| idle.imbalance).collect::<Vec<_>>(), [18.0, 0.0, 18.0]);

    let late = costs().into_iter().map(|cost| cost.with_latency(0.5)).collect();
    let idle = causes(Costs::by_stage(late));
    let delay = 0.5 * (2.0 * 2.0 * 2.0 + 2.0);
    assert!(idle.iter().all(|idle| idle.transfer == delay && idle.imbalance == 0.0), "{idle:?}");

    let idle = causes(Costs::by_stage(costs()).with_optimizer(vec![1.0, 4.0, 0.0]));
    assert_eq!(idle.iter().map(|idle| idle.flush).collect::<Vec<_>>(), [3.0, 0.0, 4.0]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn closed_forms_hold_for_any_costs(
        stages in 1..9_usize, micro_batches in 1..25_usize,
        f in 0.1..9.0_f64, i in 0.1..9.0_f64, w in 0.1..9.0_f64, latency in prop_oneof![Just(0.0), 0.01..5.0_f64],
    ) {
        let cost = StageCost::new(f, i, w).with_latency(latency);
        for schedule in SCHEDULES {
            let Some(form) = schedule.closed_form(stages, micro_batches, cost) else { continue };
            let step = simulated(schedule, stages, micro_batches, &Costs::equal(stages, cost)).step();
            prop_assert!((form - step).abs() < 1e-9, "{}: {form}, simulated {step}", schedule.name());
        }
    }

    #[test]
    fn causes_add_up_to_the_idle_time(
        workers in 1..5_usize, micro_batches in 1..9_usize, pick in 0..SCHEDULES.len(), serialised: bool,
        costs in prop::collection::vec((0.0..9.0_f64, 0.0..9.0_f64, 0.0..9.0_f64, 0.0..3.0_f64, 0.0..5.0_f64), 8),
    ) {
        let schedule = SCHEDULES[pick];
        let stages = if schedule.plan(workers, micro_batches).is_ok() { workers } else { 2 * workers };
        let Ok(plan) = schedule.plan(stages, micro_batches) else { return Ok(()) };
        let plan = check(plan, micro_batches).unwrap();
        let stage = |&(f, i, w, latency, _): &(f64, f64, f64, f64, f64)| StageCost::new(f, i, w).with_latency(latency);
        let transfers = if serialised { Transfers::Serialised } else { Transfers::Asynchronous };
        let optimizer = costs[..stages].iter().map(|cost| cost.4).collect();
        let costs = Costs::by_stage(costs[..stages].iter().map(stage).collect());
        let costs = costs.with_optimizer(optimizer).with_transfers(transfers);
        let timeline = simulate(&plan, &costs);
        for (idle, busy) in timeline.idle_by_cause(&plan, &costs).iter().zip(timeline.busy()) {
            prop_assert!((idle.total() - (timeline.step() - busy)).abs() < 1e-9, "{:?}", idle);
            let Idle { fill, drain, imbalance, transfer, flush } = *idle;
            prop_assert!([fill, drain, imbalance, transfer, flush].iter().all(|cause| *cause >= 0.0), "{:?}", idle);
        }
    }
}
