//! Tests that compare the memory that workers have in use in training steps with the estimate that was made before the
//! first step.

use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{GPipe, Interleaved, OneFOneB, Schedule, ZbH1, ZbH2, ZbV};
use stageline::{Batch, Pipeline, Precision, Recompute, StageConfig, WorkerMemory};

use crate::mlp::{Error, Mlp};
use crate::model::{Bytes, Logits, Shape, costs, gpt};
use crate::ran_in_a_process_of_its_own;

const CONTEXT: usize = 64;

/// The settings of a small GPT pipeline in the tests of memory estimates.
struct Configuration {
    layers: usize,
    stages: usize,
    micro_batches: usize,
    rows: usize,
    schedule: &'static (dyn Schedule + Sync),
    optimizer: fn() -> ModuleOptimizer,
    precision: Precision,
    recompute: Recompute,
    replicas: usize,
    groups: usize,
    rollback: bool,
}

impl Configuration {
    fn pipeline(&self) -> Pipeline<Bytes, Logits, Bytes> {
        let shape = Shape { layers: self.layers, width: 64, context: CONTEXT };
        let cut = costs(shape).cut(self.stages).unwrap();
        let config = StageConfig::new(Device::flex(), (self.optimizer)(), 1e-3).recompute(self.recompute);
        let builder = gpt(shape, 3).pipeline(&cut, vec![config; self.stages]).unwrap().precision(self.precision);
        let builder = builder.gradient_groups(self.groups).rollback(self.rollback);
        let builder = (1..self.replicas).fold(builder, |builder, _| builder.replica(vec![Device::flex(); self.stages]));
        builder.micro_batches(self.micro_batches).schedule(self.schedule).cores_per_stage(1).build().unwrap()
    }

    /// Makes three training steps. Returns the memory that each worker had in the third step, in which all buffers
    /// exist.
    fn measure(&self, pipeline: &mut Pipeline<Bytes, Logits, Bytes>) -> Vec<WorkerMemory> {
        (0..2).for_each(|step| drop(pipeline.step(self.batch(step)).unwrap()));
        pipeline.step(self.batch(2)).unwrap().recording.memory().unwrap()
    }

    fn batch(&self, step: usize) -> Batch<Bytes, Bytes> {
        let rows = self.rows * self.micro_batches * self.replicas;
        let text = |step: usize| -> Tensor<2, Int> {
            let bytes = (0..rows * CONTEXT).map(|at| ((at * 7 + step * 31) * (at + 3) % 256) as i32);
            Tensor::from_data(TensorData::new(bytes.collect(), [rows, CONTEXT]), &Device::flex())
        };
        Batch::new(text(step), text(step + 1))
    }
}

fn adam() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

const ONE_STAGE: Configuration = Configuration {
    layers: 4,
    stages: 1,
    micro_batches: 4,
    rows: 4,
    schedule: &OneFOneB,
    optimizer: adam,
    precision: Precision::Full,
    recompute: Recompute::Nothing,
    replicas: 1,
    groups: 1,
    rollback: true,
};

#[test]
fn every_worker_holds_the_estimated_memory_within_a_tenth() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    for (what, configuration) in [
        ("one stage", ONE_STAGE),
        ("1f1b", Configuration { stages: 2, micro_batches: 8, ..ONE_STAGE }),
        ("gpipe", Configuration { stages: 2, micro_batches: 8, schedule: &GPipe, ..ONE_STAGE }),
        ("sgd", Configuration { stages: 3, micro_batches: 6, rows: 2, optimizer: sgd, ..ONE_STAGE }),
        ("a large optimizer", Configuration { stages: 2, micro_batches: 1, rows: 1, ..ONE_STAGE }),
        ("interleaved", Configuration { stages: 4, schedule: &Interleaved { chunks: 2 }, ..ONE_STAGE }),
        ("bf16", Configuration { stages: 2, precision: Precision::Bf16, ..ONE_STAGE }),
        ("zb-h1", Configuration { stages: 2, micro_batches: 8, schedule: &ZbH1, ..ONE_STAGE }),
        ("zb-v", Configuration { stages: 4, schedule: &ZbV, ..ONE_STAGE }),
        ("selective", Configuration { stages: 2, recompute: Recompute::Selective, ..ONE_STAGE }),
        ("full", Configuration { stages: 2, recompute: Recompute::Full, ..ONE_STAGE }),
        ("groups", Configuration { stages: 2, micro_batches: 8, groups: 2, ..ONE_STAGE }),
        ("replicas", Configuration { stages: 2, replicas: 2, groups: 2, ..ONE_STAGE }),
        ("replicas in bf16", Configuration { replicas: 3, groups: 3, precision: Precision::Bf16, ..ONE_STAGE }),
        ("without rollback", Configuration { stages: 2, micro_batches: 1, rows: 1, rollback: false, ..ONE_STAGE }),
        ("full zb-h2", Configuration { stages: 2, schedule: &ZbH2, recompute: Recompute::Full, ..ONE_STAGE }),
    ] {
        let mut pipeline = configuration.pipeline();
        let estimate = pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap();
        let measured = configuration.measure(&mut pipeline);
        assert_eq!(estimate.workers().len(), measured.len());
        for (estimated, measured) in estimate.workers().iter().zip(&measured) {
            let resident = estimated.other + estimated.parameters + estimated.optimizer;
            println!(
                "{what}: {} of {}, {resident} of {}; {estimated:?}",
                estimated.peak(),
                measured.peak,
                measured.resident
            );
            let ratio = estimated.peak() as f64 / measured.peak as f64;
            assert!((0.9..1.1).contains(&ratio), "{what}: {ratio}");
            let ratio = resident as f64 / measured.resident as f64;
            assert!((0.9..1.1).contains(&ratio), "{what}: {ratio} of what is resident");
        }
    }
}

/// Tests that the layers of a whole backward add their weight gradients to the sum one by one: the working memory of a
/// backward has no room for the gradients of all parameters.
#[test]
fn weight_gradients_do_not_exist_all_at_once() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let configuration = Configuration { layers: 8, rows: 1, ..ONE_STAGE };
    let estimate = configuration.pipeline().estimate_memory(configuration.batch(0)).unwrap().unwrap();
    let [stage] = estimate.stages() else { panic!("one stage") };
    println!("a backward needs {} bytes, and all gradients have {}", stage.backward, stage.gradients);
    assert!(stage.backward < stage.gradients / 4);
}

/// Tests that the optimizer step needs less memory without the setting `rollback`. There are then no copies of the
/// parameters and of both moments of Adam (12 bytes a parameter).
#[test]
fn without_rollback_the_flush_holds_less() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let peak = |rollback| {
        let configuration = Configuration { layers: 8, micro_batches: 1, rows: 1, rollback, ..ONE_STAGE };
        let mut pipeline = configuration.pipeline();
        let estimate = pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap();
        (configuration.measure(&mut pipeline)[0].peak, estimate.workers()[0].parameters)
    };
    let ((with, parameters), (without, _)) = (peak(true), peak(false));
    println!("{with} bytes with rollback, {without} without, {parameters} of parameters");
    assert!(without + 3 * parameters / 2 < with, "{without} without rollback, {with} with it");
}

/// Tests the memory estimate for overlapping steps, which begin before the previous step has ended. A worker then also
/// stores the state from before the previous step, until that step is committed or rolled back.
#[test]
fn overlapping_steps_hold_the_estimated_memory() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    for (what, configuration) in [
        ("1f1b", Configuration { stages: 2, micro_batches: 8, ..ONE_STAGE }),
        ("zb-h2", Configuration { stages: 2, micro_batches: 8, schedule: &ZbH2, ..ONE_STAGE }),
        ("zb-v", Configuration { stages: 4, micro_batches: 8, schedule: &ZbV, ..ONE_STAGE }),
        ("a large optimizer", Configuration { stages: 2, micro_batches: 2, rows: 1, schedule: &ZbH2, ..ONE_STAGE }),
    ] {
        let mut pipeline = configuration.pipeline();
        let estimate = pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap().of_overlapping_steps();
        let batches: Vec<_> = (0..8).map(|step| configuration.batch(step)).collect();
        let steps: Vec<_> = pipeline.steps(batches).map(|report| report.unwrap().recording.memory().unwrap()).collect();
        for (worker, estimated) in estimate.workers().iter().enumerate() {
            let measured = steps[2..].iter().map(|workers| workers[worker].peak);
            println!("{what}: {} of {:?}; {estimated:?}", estimated.peak(), measured.clone().collect::<Vec<_>>());
            // The estimate is for a verdict that arrives at the end of the step. It usually arrives earlier, so the
            // estimate may be too high by the state before the previous step, and not too low.
            let most = measured.max().unwrap() as f64;
            let ratios = [estimated.peak(), estimated.peak() - estimated.kept].map(|bytes| bytes as f64 / most);
            assert!(ratios[0] > 0.9 && ratios[1] < 1.1, "{what}: {ratios:?}");
        }
    }
}

/// Tests the memory estimate for a matrix that is tied across stages and takes most of their memory. The stages with
/// copies of the matrix send a gradient to its owner for every micro-batch. The number of gradients in flight depends
/// on timing, so the estimate may differ from the measured peak within bounds.
#[test]
fn stages_with_tied_parameters_hold_the_estimated_memory() {
    const WIDTH: usize = 256;
    const ROWS: usize = 16;
    if ran_in_a_process_of_its_own() {
        return;
    }
    let schedules: [(&'static (dyn Schedule + Sync), Precision); 3] =
        [(&OneFOneB, Precision::Full), (&ZbH1, Precision::Full), (&OneFOneB, Precision::Bf16)];
    for (schedule, precision) in schedules {
        let Mlp { layers, .. } = Mlp::new(4, WIDTH, 1);
        let [ends, second, third, fourth] = <[_; 4]>::try_from(layers).unwrap();
        let error = Error { linear: ends.linear.clone() };
        let config = || StageConfig::new(Device::flex(), adam(), 1e-3);
        let chain = Pipeline::builder().stage(vec![ends.clone(), second], config()).stage(vec![third, ends], config());
        let builder = chain.loss((vec![fourth], error), config()).precision(precision);
        let mut pipeline = builder.micro_batches(6).schedule(schedule).cores_per_stage(1).build().unwrap();
        let batch = |step| {
            let (input, target) = Mlp::batch(6 * ROWS, WIDTH, false, step);
            Batch::new(input, target)
        };
        let estimate = pipeline.estimate_memory(batch(0)).unwrap().unwrap();
        let steps: Vec<_> =
            (0..5).map(|step| pipeline.step(batch(step)).unwrap().recording.memory().unwrap()).collect();
        for (worker, estimated) in estimate.workers().iter().enumerate() {
            let measured = steps[2..].iter().map(|workers| workers[worker].peak);
            println!(
                "{} {precision:?}: {} of {:?}; {estimated:?}",
                schedule.name(),
                estimated.peak(),
                measured.clone().collect::<Vec<_>>()
            );
            let ratio = estimated.peak() as f64 / measured.max().unwrap() as f64;
            assert!((0.8..1.3).contains(&ratio), "{ratio}");
        }
    }
}

/// Tests that full recomputation more than halves the peak memory of a stage with eight blocks. Only the inputs of the
/// blocks are then stored for the backward.
#[test]
fn full_recomputation_holds_less_than_half() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let peaks = |recompute| {
        let eight = Configuration { layers: 16, stages: 2, rows: 16, recompute, ..ONE_STAGE };
        eight.measure(&mut eight.pipeline()).into_iter().map(|worker| worker.peak).collect::<Vec<_>>()
    };
    let (none, selective, full) = (peaks(Recompute::Nothing), peaks(Recompute::Selective), peaks(Recompute::Full));
    println!("peaks: {none:?} without recomputation, {selective:?} with selective, {full:?} with full recomputation");
    for ((none, selective), full) in none.into_iter().zip(selective).zip(full) {
        assert!(2 * full < none && full < selective && selective < none, "{full}, {selective}, {none}");
    }
}

#[test]
fn the_peak_under_1f1b_does_not_grow_with_m() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let peaks = |micro_batches| {
        let configuration = Configuration { stages: 2, micro_batches, ..ONE_STAGE };
        configuration.measure(&mut configuration.pipeline())
    };
    let (few, many) = (peaks(4), peaks(32));
    for (few, many) in few.iter().zip(&many) {
        println!("{} bytes at M = 4, {} at M = 32", few.peak, many.peak);
        assert!((many.peak as f64 / few.peak as f64 - 1.0).abs() < 0.02, "{few:?} {many:?}");
    }
}

#[test]
fn recompute_to_fit_chooses_the_least_recomputation_that_fits() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let configuration = Configuration { layers: 6, stages: 2, ..ONE_STAGE };
    let mut pipeline = configuration.pipeline();
    let total =
        |estimate: &stageline::MemoryEstimate| estimate.devices().into_iter().map(|(_, bytes)| bytes).sum::<u64>();
    let mut with = |recompute| {
        pipeline.set_recompute(recompute);
        total(&pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap())
    };
    let [none, selective, one, full] =
        [Recompute::Nothing, Recompute::Selective, Recompute::Blocks(1), Recompute::Full].map(&mut with);
    assert!(full < one && one < none && selective < none, "{none} {selective} {one} {full}");
    let near = |found: u64, expected: u64| (found as f64 / expected as f64 - 1.0).abs() < 0.02;
    for limit in [none * 2, none - none / 100, (none + full) / 2, full + full / 100, full / 2] {
        let found = pipeline.recompute_to_fit(&configuration.batch(0), |estimate| total(estimate) <= limit);
        let found = total(&found.unwrap().unwrap());
        println!("{found} within {limit}: {:?}", pipeline.recompute());
        // The returned estimate is that of the chosen recomputation of each stage.
        let held = total(&pipeline.estimate_memory(configuration.batch(0)).unwrap().unwrap());
        assert!(near(found, held), "{found}, and then {held}");
        match pipeline.recompute() {
            [Recompute::Nothing, Recompute::Nothing] => assert!(limit > none && near(found, none)),
            [Recompute::Full, Recompute::Full] => assert!(limit <= full + full / 100 && near(found, full)),
            _ => assert!(full < found && found <= limit && limit < none),
        }
    }
}
