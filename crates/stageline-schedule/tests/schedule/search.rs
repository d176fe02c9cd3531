//! Tests the lower bound on the step time of all plans, and the search for a plan with the shortest step. The bound is
//! compared with all small plans. The search is compared with the published schedules, the bound and the Zero Bubble
//! paper.

use std::sync::LazyLock;

use proptest::prelude::*;
use stageline_schedule::{
    Action, Checked, Compute, Costs, Interleaved, Memory, Placement, Plan, SCHEDULES, SearchError, StageCost,
    StageMemory, Transfers, ZbH2, best, best_placed, best_with_channels, check, check_search_size, lower_bound,
    simulate,
};

use crate::simulated;

/// Returns every order of a stage's six actions on two micro-batches: their forward passes, input gradients and weight
/// gradients. The three actions on a micro-batch are always in this order.
fn orders(stage: usize) -> Vec<Vec<Action>> {
    let of = |micro_batch| {
        let computes = [Compute::Forward, Compute::InputGradient, Compute::WeightGradient];
        computes.map(|compute| Action { stage, compute, micro_batch })
    };
    let merged = (0..1_u32 << 6).filter(|choice| choice.count_ones() == 3).map(|choice| {
        let mut each = [of(0).into_iter(), of(1).into_iter()];
        (0..6).map(|at| each[(choice >> at & 1) as usize].next().unwrap()).collect()
    });
    merged.collect()
}

/// The list of all plans of two stages and two micro-batches that split backward passes and do not deadlock.
static EVERY_SMALL_PLAN: LazyLock<Vec<Checked>> = LazyLock::new(|| {
    let pairs =
        orders(0).into_iter().flat_map(|first| orders(1).into_iter().map(move |last| vec![first.clone(), last]));
    let plans: Vec<_> = pairs.filter_map(|rows| check(Plan::new(rows), 2).ok()).collect();
    assert!(plans.len() > 50, "{}", plans.len());
    plans
});

/// Returns the shortest simulated step of the plans in [`EVERY_SMALL_PLAN`] that fit into the memory.
fn optimum(costs: &Costs, memory: &Memory) -> f64 {
    let fitting = EVERY_SMALL_PLAN.iter().filter(|plan| memory.suffices(plan.plan()));
    fitting.map(|plan| simulate(plan, costs).step()).fold(f64::INFINITY, f64::min)
}

fn four_costs() -> impl Strategy<Value = Vec<StageCost>> {
    let cost = (0.1..9.0_f64, 0.1..9.0_f64, 0.1..9.0_f64, 0.0..3.0_f64);
    prop::collection::vec(cost.prop_map(|(f, i, w, latency)| StageCost::new(f, i, w).with_latency(latency)), 4)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// Tests that no plan of two stages and two micro-batches has a shorter step than the lower bound. The memory is
    /// enough for one or two live micro-batches.
    #[test]
    fn nothing_beats_the_bound(
        costs in four_costs(), limit in 1..3_usize, optimizer in prop::collection::vec(0.0..5.0_f64, 2),
        link in prop_oneof![Just(0.0), 0.0..30.0_f64],
    ) {
        let costs = Costs::by_micro_batch(costs.chunks(2).map(<[_]>::to_vec).collect()).with_optimizer(optimizer);
        let costs = costs.with_links(vec![link, 0.0]);
        let memory = Memory::live(2, limit);
        let bound = lower_bound(&Placement::in_turn(2, 1), 2, &costs, &memory);
        prop_assert!(bound <= optimum(&costs, &memory) + 1e-9, "{bound}");
    }

    /// Tests the search for two stages and two micro-batches. The step of its plan is at most as long as that of the
    /// best small plan. It may be shorter, because the search may also divide stages into chunks.
    #[test]
    fn the_search_finds_the_optimum(costs in four_costs(), limit in 1..3_usize) {
        let (costs, memory) = (Costs::by_stage(costs[..2].to_vec()), Memory::live(2, limit));
        let found = best(2, &costs, &memory, 4).unwrap();
        prop_assert!(found.bound <= found.timeline.step() * (1.0 + 1e-9));
        prop_assert!(memory.cut(found.costs.stages() / 2).suffices(found.checked.plan()));
        prop_assert!(found.timeline.step() <= optimum(&costs, &memory) * (1.0 + 1e-9), "{}", found.timeline.step());
    }

    /// Tests the plan of every schedule with the plan's own peak memory as the memory limit. Its step is not shorter
    /// than the lower bound. For one of the plans, the search with the same limit finds a step that is not longer.
    #[test]
    fn no_generator_beats_the_bound_or_the_search(
        workers in 1..6_usize, micro_batches in 1..12_usize,
        costs in prop::collection::vec((0.1..9.0_f64, 0.1..9.0_f64, 0.1..9.0_f64, 0.0..3.0_f64, 0.6..1.2_f64), 5),
        bytes in prop::collection::vec((0.1..9.0_f64, 0.0..1.5_f64), 5), pick: prop::sample::Index,
        links in prop::collection::vec(prop_oneof![Just(0.0), 0.0..9.0_f64], 5), serialised: bool,
    ) {
        let cost = |&(f, i, w, latency, whole): &(f64, f64, f64, f64, f64)| {
            StageCost { backward: whole * (i + w), ..StageCost::new(f, i, w).with_latency(latency) }
        };
        let transfers = if serialised { Transfers::Serialised } else { Transfers::Asynchronous };
        let costs = Costs::by_stage(costs[..workers].iter().map(cost).collect());
        let costs = costs.with_links(links[..workers].to_vec()).with_transfers(transfers);
        let bytes = bytes[..workers].iter();
        let stages = bytes.map(|&(forward, kept)| StageMemory { forward, input_gradient: forward * kept }).collect();
        let whole = Memory { stages, limit: f64::INFINITY };
        let mut simulated = Vec::new();
        for (schedule, chunks) in SCHEDULES.iter().flat_map(|schedule| [(schedule, 1), (schedule, 2)]) {
            let Ok(plan) = schedule.plan(workers * chunks, micro_batches) else { continue };
            if plan.workers() != workers { continue }
            let mut memory = whole.cut(chunks);
            memory.limit = plan.peak_memory(&memory.stages).into_iter().fold(0.0, f64::max);
            let checked = check(plan, micro_batches).unwrap();
            let costs = costs.cut(&checked.placement());
            let step = simulate(&checked, &costs).step();
            let bound = lower_bound(&checked.placement(), micro_batches, &costs, &memory);
            prop_assert!(bound <= step * (1.0 + 1e-9), "{}: {step} below {bound}", schedule.name());
            simulated.push((schedule.name(), memory.limit, step));
        }
        let (name, limit, step) = simulated[pick.index(simulated.len())];
        let limited = Memory { limit, ..whole };
        let found = best(micro_batches, &costs, &limited, 4).unwrap();
        prop_assert!(found.timeline.step() <= step * (1.0 + 1e-9), "{name}: {step}");
        prop_assert!(found.bound <= found.timeline.step() * (1.0 + 1e-9));
        prop_assert!(limited.cut(found.costs.stages() / workers).suffices(found.checked.plan()));
    }
}

/// Tests a plan whose step is as short as the lower bound. It is ZB-H2's plan, if forward pass, input gradient and
/// weight gradient take the same time. The last of P stages then begins after P-1 forward passes and never idles.
#[test]
fn the_bound_is_reached() {
    for stages in 1..=6 {
        let (micro_batches, costs) = (2 * stages, Costs::uniform(stages, 1.0, 2.0));
        let bound = lower_bound(&Placement::in_turn(stages, 1), micro_batches, &costs, &Memory::unlimited(stages));
        assert_eq!(simulated(&ZbH2, stages, micro_batches, &costs).step(), bound);
    }
}

/// Tests the lower bound on the step time if there is memory for only one live micro-batch. Each micro-batch must then
/// pass all stages forward and backward before the next one begins.
#[test]
fn the_bound_counts_delays_by_memory() {
    let costs = Costs::equal(3, StageCost::new(1.0, 2.0, 4.0).with_latency(0.5));
    let bound = lower_bound(&Placement::in_turn(3, 1), 5, &costs, &Memory::live(3, 1));
    assert_eq!(bound, 5.0 * (3.0 * (1.0 + 2.0) + 4.0 * 0.5 + 4.0));
    let found = best(5, &costs, &Memory::live(3, 1), 4).unwrap();
    assert!(found.checked.plan().peak_memory(&Memory::live(3, 1).cut(found.costs.stages() / 3).stages)[0] <= 1.0);
}

/// Tests searches in which many plans have equal steps, because there is one worker or all costs are 0. The found plan
/// has the least memory and, among the plans with that memory, the fewest stages per worker.
#[test]
fn equal_steps_are_decided_by_memory_and_chunks() {
    let single = best(1, &Costs::uniform(1, 1.0, 2.0), &Memory::unlimited(1), 4).unwrap();
    assert_eq!((single.schedule, single.checked.plan().peak_live()), ("gpipe", vec![1]));
    // A single worker has the same step in every order of its actions, except for rounding errors of the sum.
    let thirds = Costs::equal(1, StageCost::new(0.1, 0.2, 0.7));
    for costs in [thirds, Costs::uniform(1, 0.0, 0.0)] {
        let found = best(6, &costs, &Memory::unlimited(1), 4).unwrap();
        assert_eq!(
            (found.checked.plan().stages(), found.checked.plan().peak_live()),
            (1, vec![1]),
            "{}",
            found.schedule
        );
    }
    let free = best(8, &Costs::uniform(4, 0.0, 0.0), &Memory::unlimited(4), 1).unwrap();
    assert!(free.checked.plan().peak_live().into_iter().max() <= Some(4), "{}", free.schedule);
    assert_eq!(best(8, &Costs::uniform(4, 1.0, 2.0), &Memory::unlimited(4), 1).unwrap().timeline.step(), 27.0);
}

/// Tests the search with links that a transfer occupies for 2 units of time, at 4 workers and 8 micro-batches. In a V,
/// the last worker waits for three forward passes of half a stage and three transfers, and must then compute without a
/// pause. Plans that ignore the links take 114.
#[test]
fn the_search_takes_links_into_account() {
    let costs = Costs::equal(4, StageCost::new(4.0, 4.0, 4.0)).with_links(vec![2.0; 4]);
    let found = best(8, &costs, &Memory::unlimited(4), 2).unwrap();
    assert_eq!(found.timeline.step(), 3.0 * (2.0 + 2.0) + 8.0 * 12.0);
}

/// Tests a link that is slower than the workers. The link carries 5 activations after the first forward pass. After the
/// last activation come the forward pass and the input gradient of stage 1, the transfer of that gradient, and the
/// input and weight gradients of stage 0.
#[test]
fn the_bound_counts_slow_links() {
    let costs = Costs::equal(2, StageCost::new(1.0, 1.0, 1.0).with_latency(0.5)).with_links(vec![3.0; 2]);
    let step = 1.0 + 5.0 * 3.0 + 0.5 + 1.0 + 1.0 + (3.0 + 0.5) + 1.0 + 1.0;
    assert_eq!(lower_bound(&Placement::in_turn(2, 1), 5, &costs, &Memory::unlimited(2)), step);
    let found = best(5, &costs, &Memory::unlimited(2), 4).unwrap();
    assert_eq!((found.timeline.step(), found.bound), (step, step));
    // In a V, each worker sends 5 activations and 5 gradients to the other.
    assert!(
        lower_bound(&Placement::in_a_v(2), 5, &costs.cut(&Placement::in_a_v(2)), &Memory::unlimited(4)) > 2.0 * 15.0
    );
}

/// Compares the search with ZB-1p and ZB-2p of the Zero Bubble paper (arXiv:2401.10241), at the paper's costs of 8
/// stages. The memory is enough for 8 or 16 live micro-batches. In the paper, the bubbles by span (the idle share of
/// the time from a worker's first to its last action) are 0.1585 and 0.0433.
#[test]
fn the_search_is_not_worse_than_the_zero_bubble_papers() {
    let costs = Costs::equal(8, StageCost::new(18.522, 18.086, 9.337).with_latency(0.601));
    for (live, papers) in [(8, 0.1585), (16, 0.0433)] {
        let found = best(24, &costs, &Memory::live(8, live), 4).unwrap();
        assert!(found.timeline.span_bubble() <= papers + 5e-5, "{live}: {}", found.timeline.span_bubble());
    }
}

#[test]
fn the_search_uses_whole_backwards_if_they_are_faster() {
    let cost = |forward| StageCost { backward: 2.0, ..StageCost::new(forward, 2.0, 2.0) };
    let costs = Costs::by_stage(vec![cost(1.0), cost(1.0), cost(2.0), cost(1.0)]);
    assert_eq!(best(8, &costs, &Memory::live(4, 1), 4).unwrap().timeline.step(), 8.0 * (5.0 + 4.0 * 2.0));
}

#[test]
fn the_search_tries_more_chunks() {
    let costs = Costs::uniform(8, 1.0, 2.0);
    let interleaved = simulated(&Interleaved { chunks: 4 }, 32, 8, &costs.cut(&Placement::in_turn(8, 4))).step();
    let found = best(8, &costs, &Memory::unlimited(8), 4).unwrap();
    assert!(found.bound <= found.timeline.step() && found.timeline.step() <= interleaved);
}

#[test]
fn too_little_memory_and_empty_searches_are_rejected() {
    let costs = Costs::uniform(3, 1.0, 2.0);
    let memory = Memory { stages: vec![StageMemory::whole(10.0); 3], limit: 9.0 };
    let message = best(4, &costs, &memory, 4).unwrap_err().to_string();
    assert!(message.contains("no plan fits into 9 a worker; raise the limit to 10,"), "{message}");
    assert!(best(4, &costs, &Memory { limit: 10.0, ..memory.clone() }, 4).is_ok());
    assert!(
        best(0, &costs, &memory, 4).unwrap_err().to_string().contains("ask for at least 1 stage and 1 micro-batch")
    );
    assert!(best(1, &Costs::by_stage(vec![]), &Memory::unlimited(0), 4).is_err());
}

#[test]
fn the_search_keeps_to_the_chunks_that_a_model_has() {
    let (costs, memory) = (Costs::uniform(3, 1.0, 2.0), Memory::unlimited(3));
    assert_eq!(best(4, &costs, &memory, 1).unwrap().checked.plan().stages(), 3);
    let chunked = best(4, &costs, &memory, 4).unwrap();
    assert!(chunked.checked.plan().stages() > 3, "{}", chunked.schedule);
}

/// Tests the search with costs that depend on the placement of stages on workers. The found plan has one stage per
/// worker if several stages per worker are slower, or if their costs are not known.
#[test]
fn the_search_takes_the_costs_of_each_placement() {
    let of = |chunked: Option<f64>| {
        best_placed(3, 6, 1..=4, |placement| {
            let chunks = placement.stages() / 3;
            let costs = Costs::uniform(3, 1.0, 2.0).cut(placement);
            let costs = if chunks > 1 { costs.times(chunked?) } else { costs };
            Some((costs, Memory::unlimited(3).cut(chunks)))
        })
        .unwrap()
    };
    assert!(of(Some(1.0)).checked.plan().stages() > 3);
    for chunked in [Some(10.0), None] {
        let found = of(chunked);
        assert_eq!(found.checked.plan().stages(), 3);
        assert_eq!(found.costs, Costs::uniform(3, 1.0, 2.0));
    }
    let error = best_placed(3, 6, 1..=4, |_| None).unwrap_err();
    assert_eq!(error, SearchError::Costs { workers: 3 });
    // A range that begins at 0 chunks counts as beginning at 1.
    assert_eq!(best_placed(3, 6, 0..=4, |_| None).unwrap_err(), error);
    assert!(matches!(best_placed(0, 6, 1..=4, |_| None).unwrap_err(), SearchError::Nothing { workers: 0, .. }));
    // A search that would be too long is rejected before it requests any costs.
    let too_large = best_placed(1001, 300, 1..=4, |_| unreachable!()).unwrap_err();
    let expected = SearchError::TooLarge { workers: 1001, micro_batches: 300, most_workers: 1000, most: 300_000 };
    assert_eq!(too_large, expected);
    assert!(
        too_large.to_string().contains("the limits are 1000 workers and a product of 300000, for a few minutes; ask")
    );
    assert!(matches!(check_search_size(601, 500), Err(SearchError::TooLarge { .. })));
    // A search that takes about two minutes is accepted.
    assert_eq!(check_search_size(400, 500), Ok(()));
}

/// Tests that the search finds the best plan that does not deadlock at the given channel capacity. Larger channels
/// allow shorter steps.
#[test]
fn the_search_keeps_to_the_channels() {
    let costs = Costs::uniform(4, 1.0, 2.0).with_latencies(&[0.5; 4]);
    let of = |placement: &Placement| {
        let chunks = placement.stages() / 4;
        Some((costs.cut(placement), Memory::unlimited(4).cut(chunks)))
    };
    let found = |capacity| best_with_channels(4, 8, capacity, 1..=2, of).unwrap();
    let steps: Vec<_> = (0..=8)
        .map(|capacity| {
            let found = found(capacity);
            assert!(found.checked.capacity() == capacity && found.checked.least_capacity() <= capacity);
            assert!(found.bound <= found.timeline.step());
            found.timeline.step()
        })
        .collect();
    assert!(steps.is_sorted_by(|small, large| *large <= small + 1e-9) && steps[0] > steps[8], "{steps:?}");
    assert_eq!(found(8).checked.plan(), best_placed(4, 8, 1..=2, of).unwrap().checked.plan());
    let too_small = best_with_channels(4, 8, 0, 2..=2, of).unwrap_err();
    let SearchError::Channels { capacity: 0, enough } = too_small else { panic!("{too_small}") };
    assert!(too_small.to_string().ends_with(&format!("raise the channel capacity to {enough}")));
    assert!(best_with_channels(4, 8, enough, 2..=2, of).is_ok());
}

/// Tests the search for a model that is cut by hand into 6 stages per worker. The found plan keeps all of these stages.
#[test]
fn the_search_keeps_the_stages_of_a_model_that_cannot_be_joined() {
    let of = |limit: f64| {
        move |placement: &Placement| {
            let stages = placement.stages();
            Some((Costs::uniform(stages, 1.0, 2.0), Memory { stages: vec![StageMemory::whole(1.0); stages], limit }))
        }
    };
    for workers in [1, 2, 4] {
        let found = best_placed(workers, 8, 6..=6, of(f64::INFINITY)).unwrap();
        let plan = found.checked.plan();
        assert_eq!((plan.workers(), plan.stages()), (workers, 6 * workers));
        let interleaved = simulated(&Interleaved { chunks: 6 }, 6 * workers, 8, &found.costs).step();
        assert!(found.bound <= found.timeline.step() && found.timeline.step() <= interleaved);
    }
    // A single worker never waits: 8 micro-batches pass 6 stages, each forward in time 1 and backward in time 2.
    assert_eq!(best_placed(1, 8, 6..=6, of(f64::INFINITY)).unwrap().timeline.step(), 8.0 * 6.0 * 3.0);
    // A worker needs memory for one micro-batch on each of its 6 stages.
    let too_small = best_placed(2, 8, 6..=6, of(5.0)).unwrap_err();
    assert_eq!(too_small, SearchError::Memory { limit: 5.0, enough: 6.0 });
    assert_eq!(best_placed(2, 8, 6..=6, of(6.0)).unwrap().checked.plan().stages(), 12);
}
