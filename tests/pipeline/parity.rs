//! The parameters after training are the same bits for every P, schedule and channel capacity, and for a plain loop.

use burn::tensor::Tensor;
use proptest::prelude::*;
use stageline::schedule::{EagerOneFOneB, GPipe, Interleaved, LoopedBreadthFirst, OneFOneB, Plan, Schedule};

use stageline::{Clip, Update};

use crate::mlp::{Cut, Mlp, Target};

const SCHEDULES: [&(dyn Schedule + Sync); 3] = [&GPipe, &OneFOneB, &EagerOneFOneB];

fn batches(rows: usize, width: usize, masked: bool, seed: u64) -> Vec<(Tensor<2>, Target)> {
    (0..3).map(|step| Mlp::batch(rows, width, masked, seed * 10 + step)).collect()
}

fn same_bits(model: &Mlp, plain: &[u32], cut: &Cut, batches: &[(Tensor<2>, Target)], case: &str) {
    let trained = model.clone().train_cut(cut, batches).unwrap();
    assert!(trained.bits() == plain, "{case}: other bits than the plain loop");
}

#[test]
fn every_cut_and_schedule_gives_the_bits_of_the_plain_loop() {
    let model = Mlp::new(5, 8, 1);
    for micro_batches in [1, 2, 3, 8] {
        // 11 rows: uneven at 2, 3 and 8; a third of them masked in the second round.
        for masked in [false, true] {
            let batches = batches(11, 8, masked, 7);
            let plain = model.clone().train_plainly(micro_batches, &batches).bits();
            assert_ne!(plain, model.bits());
            for stages in [1, 2, 4] {
                for schedule in SCHEDULES {
                    let case = format!("P={stages} M={micro_batches} {} masked={masked}", schedule.name());
                    let cut = Cut { schedule, ..Cut::new(stages, micro_batches) };
                    same_bits(&model, &plain, &cut, &batches, &case);
                }
            }
        }
    }
}

#[test]
fn channel_capacity_and_repetition_change_nothing() {
    let model = Mlp::new(3, 8, 2);
    let batches = batches(8, 8, true, 5);
    let plain = model.clone().train_plainly(8, &batches).bits();
    for capacity in [1, 2, 3, 8, 100, usize::MAX] {
        for schedule in SCHEDULES {
            let cut = Cut { schedule, capacity: Some(capacity), ..Cut::new(4, 8) };
            same_bits(&model, &plain, &cut, &batches, &format!("capacity {capacity}"));
        }
    }
    // GPipe needs no room in its channels at all: every hand-over is a rendezvous.
    let rendezvous = Cut { schedule: &GPipe, capacity: Some(0), ..Cut::new(4, 8) };
    same_bits(&model, &plain, &rendezvous, &batches, "capacity 0");
    for repetition in 0..8 {
        same_bits(&model, &plain, &Cut::new(3, 8), &batches, &format!("repetition {repetition}"));
    }
}

/// Schedules with several chunks a worker, on half and a third as many workers as stages.
#[test]
fn chunks_give_the_bits_of_the_plain_loop() {
    let model = Mlp::new(5, 8, 8);
    for (chunks, micro_batches) in [(2, 3), (2, 6), (3, 4)] {
        let interleaved: &'static Interleaved = Box::leak(Box::new(Interleaved { chunks }));
        let looped: &'static LoopedBreadthFirst = Box::leak(Box::new(LoopedBreadthFirst { chunks }));
        let batches = batches(7, 8, true, 3);
        let plain = model.clone().train_plainly(micro_batches, &batches).bits();
        for schedule in [interleaved as &(dyn Schedule + Sync), looped] {
            let cut = Cut { schedule, ..Cut::new(6, micro_batches) };
            let case = format!("{} V={chunks} M={micro_batches}", schedule.name());
            same_bits(&model, &plain, &cut, &batches, &case);
        }
    }
}

/// The global norm and what is made of it do not depend on the cut either.
#[test]
fn clipping_gives_the_bits_of_the_plain_loop() {
    let model = Mlp::new(5, 8, 12);
    let batches = batches(11, 8, true, 6);
    for clip in [Clip::GlobalNorm(0.05), Clip::GlobalNorm(1e3), Clip::Value(0.01)] {
        let (plain, norms) = model.clone().train_plainly_clipped(3, &batches, Some(clip));
        for (stages, schedule) in [1, 2, 4].into_iter().flat_map(|stages| SCHEDULES.map(|schedule| (stages, schedule)))
        {
            let cut = Cut { schedule, clip: Some(clip), ..Cut::new(stages, 3) };
            let (trained, updates) = model.clone().train_cut_clipped(&cut, &batches).unwrap();
            assert!(trained.bits() == plain.bits(), "P={stages} {} {clip:?}", schedule.name());
            let clipped = clip != Clip::GlobalNorm(1e3);
            let expected: Vec<_> =
                norms.iter().map(|&gradient_norm| Update::Stepped { gradient_norm, clipped }).collect();
            assert_eq!(updates, expected, "P={stages} {} {clip:?}", schedule.name());
        }
    }
    assert_ne!(
        model.clone().train_plainly_clipped(3, &batches, Some(Clip::GlobalNorm(0.05))).0.bits(),
        model.train_plainly(3, &batches).bits()
    );
}

fn by_hand(csv: &str) -> &'static Plan {
    Box::leak(Box::new(Plan::from_csv(csv).unwrap()))
}

/// Two workers with two chunks each, by a plan written by hand: one interpreter runs any plan.
#[test]
fn a_plan_by_hand_with_two_chunks_a_worker_gives_the_same_bits() {
    let csv = "0F0,0F1,2F0,2F1,2B0,0B0,2B1,0B1\n1F0,1F1,3F0,3B0,3F1,1B0,3B1,1B1\n";
    let plan = by_hand(csv);
    let model = Mlp::new(3, 8, 3);
    let batches = batches(6, 8, false, 4);
    let plain = model.clone().train_plainly(2, &batches).bits();
    let cut = Cut { schedule: plan, ..Cut::new(4, 2) };
    same_bits(&model, &plain, &cut, &batches, "by hand");
}

/// Backwards in descending order: the sum is still taken in ascending order.
#[test]
fn backwards_out_of_order_give_the_same_bits() {
    let csv = "0F0,0F1,0F2,0B2,0B0,0B1\n1F0,1F1,1F2,1B2,1B0,1B1\n";
    let plan = by_hand(csv);
    let model = Mlp::new(1, 8, 3);
    let batches = batches(7, 8, true, 9);
    let plain = model.clone().train_plainly(3, &batches).bits();
    let cut = Cut { schedule: plan, ..Cut::new(2, 3) };
    same_bits(&model, &plain, &cut, &batches, "descending");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_seed_and_shape_gives_the_bits_of_the_plain_loop(
        seed in 0..1_000_000_u64, layers in 0..6_usize, width in 1..20_usize, rows in 1..24_usize,
        stages in 1..7_usize, micro_batches in 1..10_usize, schedule in 0..SCHEDULES.len(), capacity in 1..5_usize, masked: bool,
    ) {
        let stages = stages.min(layers + 1);
        let micro_batches = micro_batches.min(rows);
        let model = Mlp::new(layers, width, seed);
        let batches = batches(rows, width, masked, seed);
        let plain = model.clone().train_plainly(micro_batches, &batches).bits();
        let cut = Cut { schedule: SCHEDULES[schedule], capacity: Some(capacity), ..Cut::new(stages, micro_batches) };
        let trained = model.train_cut(&cut, &batches).unwrap();
        prop_assert!(trained.bits() == plain);
    }
}
