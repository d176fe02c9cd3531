//! Tests of bitwise parity: trained parameters have the same bits for every number of stages (P), schedule and channel
//! capacity, and for a training loop without Stageline.

use burn::module::{Module, ParamGroup};
use burn::optim::{AdamWConfig, LionConfig, ModuleOptimizer, MuonConfig};
use burn::tensor::Tensor;
use proptest::prelude::*;
use stageline::schedule::{
    DualPipeV, EagerOneFOneB, GPipe, Interleaved, LoopedBreadthFirst, OneFOneB, Plan, Schedule, VHalf, VMin, ZbH1,
    ZbH2, ZbV,
};

use stageline::nn::Linear;
use stageline::{Batch, Clip, Dropout, Pipeline, Stage, StageConfig, Update};

use crate::mlp::{Cut, Error, LEARNING_RATE, Layer, Mlp, Target, bits, config, device};

const SCHEDULES: [&(dyn Schedule + Sync); 5] = [&GPipe, &OneFOneB, &EagerOneFOneB, &ZbH1, &ZbH2];

fn batches(rows: usize, width: usize, masked: bool, seed: u64) -> Vec<(Tensor<2>, Target)> {
    (0..3).map(|step| Mlp::batch(rows, width, masked, seed * 10 + step)).collect()
}

/// Trains a model as a pipeline with the stages and schedule of `cut`. Asserts that its parameters have the bits
/// `plain` of a training loop without Stageline.
fn same_bits(model: &Mlp, plain: &[u32], cut: &Cut, batches: &[(Tensor<2>, Target)], case: &str) {
    let trained = model.clone().train_cut(cut, batches).unwrap();
    assert!(trained.bits() == plain, "{case}: other bits than the plain loop");
}

#[test]
fn every_cut_and_schedule_gives_the_bits_of_the_plain_loop() {
    let model = Mlp::new(5, 8, 1);
    for micro_batches in [1, 2, 3, 8] {
        // 11 rows do not divide evenly into 2, 3 or 8 micro-batches. A third of them is masked in the second round.
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
fn channel_capacity_and_repetition_change_no_bit() {
    let model = Mlp::new(3, 8, 2);
    let batches = batches(8, 8, true, 5);
    let plain = model.clone().train_plainly(8, &batches).bits();
    for capacity in [1, 2, 3, 8, 100, usize::MAX] {
        for schedule in SCHEDULES {
            let cut = Cut { schedule, capacity: Some(capacity), ..Cut::new(4, 8) };
            same_bits(&model, &plain, &cut, &batches, &format!("capacity {capacity}"));
        }
    }
    // GPipe also runs with channels of capacity 0, where every send waits for its receiver.
    let rendezvous = Cut { schedule: &GPipe, capacity: Some(0), ..Cut::new(4, 8) };
    same_bits(&model, &plain, &rendezvous, &batches, "capacity 0");
    for repetition in 0..8 {
        same_bits(&model, &plain, &Cut::new(3, 8), &batches, &format!("repetition {repetition}"));
    }
}

/// Tests schedules with several chunks (stages) per worker: 6 stages on 3 or 2 workers train to the same bits as a
/// training loop without Stageline.
#[test]
fn several_chunks_a_worker_give_the_bits_of_the_plain_loop() {
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

/// Tests the V-shaped schedules, which have two chunks (stages) per worker: the second chunks are on the workers in
/// reverse order. Backwards are split. The schedules give the same bits as a training loop without Stageline.
#[test]
fn v_schedules_give_the_bits_of_the_plain_loop() {
    let model = Mlp::new(5, 8, 8);
    for micro_batches in [6, 8] {
        let batches = batches(9, 8, true, 3);
        let plain = model.clone().train_plainly(micro_batches, &batches).bits();
        for schedule in [&ZbV as &(dyn Schedule + Sync), &VHalf, &VMin, &DualPipeV] {
            let cut = Cut { schedule, ..Cut::new(6, micro_batches) };
            same_bits(&model, &plain, &cut, &batches, &format!("{} M={micro_batches}", schedule.name()));
        }
    }
}

/// Tests that the global gradient norm and the clipped gradients do not depend on the partition of the model into
/// stages.
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
            // A pipeline adds the squares of the norm in another order than the plain loop.
            let is_expected = |(update, norm): (&Update, &f64)| match update {
                Update::Stepped { gradient_norm, clipped: was } => {
                    *was == clipped && (gradient_norm / norm - 1.0).abs() < 1e-14
                }
                _ => false,
            };
            let agree = updates.len() == norms.len() && updates.iter().zip(&norms).all(is_expected);
            assert!(agree, "P={stages} {} {clip:?}: {updates:?} and {norms:?}", schedule.name());
        }
    }
    assert_ne!(
        model.clone().train_plainly_clipped(3, &batches, Some(Clip::GlobalNorm(0.05))).0.bits(),
        model.train_plainly(3, &batches).bits()
    );
}

/// Tests other optimizers than AdamW against a training loop in burn without Stageline: Lion, and Muon for the weights
/// beside AdamW for the biases.
#[test]
fn lion_and_muon_give_the_bits_of_the_plain_loop() {
    let lion = || LionConfig::new().init();
    let weights = || ParamGroup::from_any_predicates(vec!["weight"]);
    let muon = || AdamWConfig::new().init().with_group(weights(), MuonConfig::new().build(), None);
    let model = Mlp::new(3, 8, 6);
    let batches = batches(7, 8, true, 3);
    for (name, optimizer) in [("Lion", &lion as &dyn Fn() -> ModuleOptimizer), ("Muon", &muon)] {
        let (plain, _) = model.clone().train_plainly_by(optimizer(), 1, 3, &batches, None);
        assert_ne!(plain.bits(), model.clone().train_plainly(3, &batches).bits(), "{name}");
        for (stages, schedule) in [1, 2, 4].into_iter().flat_map(|stages| SCHEDULES.map(|schedule| (stages, schedule)))
        {
            let builder = model.clone().split(stages, &StageConfig::new(device(), optimizer(), LEARNING_RATE));
            let mut pipeline = builder.micro_batches(3).schedule(schedule).build().unwrap();
            for (input, target) in &batches {
                pipeline.step(Batch::new(input.clone(), target.clone())).unwrap();
            }
            let trained = Mlp::join(pipeline.into_modules());
            assert!(trained.bits() == plain.bits(), "{name}, P={stages} {}", schedule.name());
        }
    }
}

/// A stage for tests of dropout: a layer followed by dropout.
#[derive(Module, Debug)]
pub struct Dropped {
    pub layer: Layer,
    pub dropout: Dropout,
}

impl Stage for Dropped {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.dropout.forward(self.layer.forward(input))
    }
}

/// Trains a model with dropout as a pipeline, and returns the bits of its parameters and the loss of every step.
fn train_with_dropout(
    stages: usize,
    micro_batches: usize,
    schedule: &'static (dyn Schedule + Sync),
) -> (Vec<u32>, Vec<f64>) {
    let Mlp { layers, error } = Mlp::new(3, 8, 4);
    let dropped = layers.into_iter().zip(0..).map(|(layer, at)| Dropped { layer, dropout: Dropout::new(0.4, 5, at) });
    let mut dropped = dropped.collect::<Vec<_>>();
    let builder = match stages {
        1 => Pipeline::builder().loss((dropped, error), config()),
        2 => {
            let rest = dropped.split_off(1);
            Pipeline::builder().stage(dropped, config()).loss((rest, error), config())
        }
        _ => {
            let (rest, middle) = (dropped.split_off(2), dropped.split_off(1));
            let chain = Pipeline::builder().stage(dropped, config()).stage(middle, config()).stage(rest, config());
            chain.loss((Vec::<Dropped>::new(), error), config())
        }
    };
    let mut pipeline = builder.schedule(schedule).micro_batches(micro_batches).build().unwrap();
    let step = |(input, target): (Tensor<2>, Target)| pipeline.step(Batch::new(input, target)).unwrap().loss;
    let losses = batches(11, 8, true, 2).into_iter().map(step).collect();
    let last = stages - 1;
    let mut modules = pipeline.into_modules();
    let mut found: Vec<_> = (0..last).flat_map(|stage| bits(&modules.take::<Vec<Dropped>>(stage).unwrap())).collect();
    found.extend(bits(&modules.take::<(Vec<Dropped>, Error)>(last).unwrap()));
    (found, losses)
}

/// Tests that dropout drops the same elements for every partition into stages and every number of micro-batches. The
/// partition changes no bit of the trained parameters; the number of micro-batches changes the losses by rounding only.
#[test]
fn dropout_depends_on_the_sample_only() {
    let (reference, losses) = train_with_dropout(1, 3, &OneFOneB);
    for (stages, schedule) in [2, 4].into_iter().flat_map(|stages| SCHEDULES.map(|schedule| (stages, schedule))) {
        assert!(train_with_dropout(stages, 3, schedule).0 == reference, "P={stages} {}", schedule.name());
    }
    for (stages, micro_batches) in [(1, 1), (2, 8), (4, 11)] {
        for (step, (loss, expected)) in
            train_with_dropout(stages, micro_batches, &GPipe).1.iter().zip(&losses).enumerate()
        {
            let relative = (loss - expected).abs() / expected;
            assert!(relative < 1e-5, "P={stages} M={micro_batches} step {step}: {loss} against {expected}");
        }
    }
}

/// Parses the CSV text of a plan that is written by hand, and returns the plan.
fn by_hand(csv: &str) -> &'static Plan {
    Box::leak(Box::new(Plan::from_csv(csv).unwrap()))
}

/// Tests that workers execute any valid plan. A plan written by hand, with two chunks (stages) on each of two workers,
/// trains with the same bits as a training loop without Stageline.
#[test]
fn a_hand_written_plan_with_two_chunks_a_worker_gives_the_same_bits() {
    let csv = "0F0,0F1,2F0,2F1,2B0,0B0,2B1,0B1\n1F0,1F1,3F0,3B0,3F1,1B0,3B1,1B1\n";
    let plan = by_hand(csv);
    let model = Mlp::new(3, 8, 3);
    let batches = batches(6, 8, false, 4);
    let plain = model.clone().train_plainly(2, &batches).bits();
    let cut = Cut { schedule: plan, ..Cut::new(4, 2) };
    same_bits(&model, &plain, &cut, &batches, "by hand");
}

/// Tests a plan whose backwards are not in the order of the micro-batches. Gradients are still summed in ascending
/// micro-batch order. So the trained parameters have the same bits as those of a training loop without Stageline.
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

/// A stage for tests that uses the weights of both its layers twice: those of `linear` in the layer, which computes
/// their gradient outside the autodiff graph, and in a plain matrix product, which does not; those of `twice` in two
/// calls of the layer.
#[derive(Module, Debug)]
struct Both {
    linear: Linear,
    twice: Linear,
}

impl Stage for Both {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let input = self.twice.forward(self.twice.forward(input).tanh());
        self.linear.forward(input).tanh().matmul(self.linear.weight.val().transpose())
    }
}

/// Trains three stages that use their weights twice and a loss. Returns the bits of the trained stages.
fn trained_with_weights_used_twice(schedule: impl Schedule + 'static, groups: usize) -> Vec<Vec<u32>> {
    let Mlp { layers, error } = Mlp::new(6, 8, 5);
    let mut linears = layers.into_iter().map(|layer| layer.linear);
    let [first, second, third] =
        [(); 3].map(|()| Both { linear: linears.next().unwrap(), twice: linears.next().unwrap() });
    let chain = Pipeline::builder().stage(first, config()).stage(second, config()).stage(third, config());
    let builder = chain.loss((Vec::<Layer>::new(), error), config()).schedule(schedule).gradient_groups(groups);
    let mut pipeline = builder.noise_every(2).micro_batches(4).build().unwrap();
    for (input, target) in batches(17, 8, true, 2) {
        pipeline.step(Batch::new(input, target)).unwrap();
    }
    let mut modules = pipeline.into_modules();
    (0..3).map(|stage| bits(&modules.take::<Both>(stage).unwrap())).collect()
}

#[test]
fn weights_used_twice_give_the_same_bits_with_whole_and_split_backwards() {
    let whole = trained_with_weights_used_twice(OneFOneB, 1);
    for schedule in [&ZbH1 as &'static (dyn Schedule + Sync), &ZbH2, &GPipe, &DualPipeV, &ZbV] {
        assert!(trained_with_weights_used_twice(schedule, 1) == whole, "{}", schedule.name());
    }
    // These plans split only some backwards, or run backwards out of micro-batch order.
    let plan = |backwards: &str| {
        let row = |stage: usize| {
            let forwards = (0..4).map(|micro_batch| format!("{stage}F{micro_batch},")).collect::<String>();
            forwards + &backwards.replace('s', &stage.to_string())
        };
        by_hand(&(0..4).map(row).collect::<Vec<_>>().join("\n"))
    };
    let in_groups = trained_with_weights_used_twice(OneFOneB, 2);
    for backwards in ["sI0,sW0,sB1,sI2,sW2,sB3", "sB0,sI1,sB2,sW1,sB3", "sB0,sB2,sB1,sB3", "sB2,sB3,sB0,sB1"] {
        assert!(trained_with_weights_used_twice(plan(backwards), 1) == whole, "{backwards}");
        assert!(trained_with_weights_used_twice(plan(backwards), 2) == in_groups, "{backwards} in groups");
    }
}

/// Tests a plan that computes weight gradients out of order, differently on each stage: the trained parameters have the
/// bits of a training loop without Stageline.
#[test]
fn weight_gradients_out_of_order_give_the_same_bits() {
    let csv = "0F0,0F1,0F2,0I0,0I1,0W1,0B2,0W0\n1F0,1F1,1F2,1B0,1I1,1I2,1W2,1W1\n";
    let plan = by_hand(csv);
    let model = Mlp::new(1, 8, 3);
    let batches = batches(7, 8, true, 9);
    let plain = model.clone().train_plainly(3, &batches).bits();
    let cut = Cut { schedule: plan, ..Cut::new(2, 3) };
    same_bits(&model, &plain, &cut, &batches, "halves out of order");
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
