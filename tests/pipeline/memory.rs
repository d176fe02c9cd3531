//! Tests that compare a step's measured memory with the memory that schedules and optimizers need by theory.

use burn::optim::{AdafactorConfig, AdamWConfig, ModuleOptimizer, SgdConfig};
use stageline::checkpoint::Checkpoint;
use stageline::schedule::{GPipe, OneFOneB, Schedule};
use stageline::{Batch, StageConfig, StepReport, WorkerMemory};

use crate::mlp::{LEARNING_RATE, Mlp, device};

const WIDTH: usize = 256;
const ROWS: usize = 256;
/// The size in bytes of the activation of one micro-batch that a stage of the memory tests sends to the next stage.
const TENSOR: f64 = (4 * ROWS * WIDTH) as f64;
/// The size in bytes of the parameters of one layer of the memory tests' model.
const PARAMETERS: f64 = (4 * WIDTH * (WIDTH + 1)) as f64;

/// Trains a pipeline with one layer on each stage for three steps, and returns the report of the third step.
fn report(
    optimizer: ModuleOptimizer,
    schedule: &'static (dyn Schedule + Sync),
    stages: usize,
    micro_batches: usize,
) -> StepReport {
    trained(optimizer, schedule, stages, micro_batches).0
}

/// Trains a pipeline with one layer on each stage for three steps. Returns the report of the third step, and the
/// checkpoint after it.
fn trained(
    optimizer: ModuleOptimizer,
    schedule: &'static (dyn Schedule + Sync),
    stages: usize,
    micro_batches: usize,
) -> (StepReport, Checkpoint) {
    let config = StageConfig::new(device(), optimizer, LEARNING_RATE);
    let builder = Mlp::new(stages - 1, WIDTH, 1).split(stages, &config).schedule(schedule);
    let mut pipeline = builder.micro_batches(micro_batches).cores_per_stage(1).build().unwrap();
    let step = || {
        let (input, target) = Mlp::batch(ROWS * micro_batches, WIDTH, false, 2);
        Batch::new(input, target)
    };
    let report = (0..3).map(|_| pipeline.step(step()).unwrap()).last().unwrap();
    (report, pipeline.checkpoint().unwrap())
}

fn memory(report: &StepReport) -> Vec<WorkerMemory> {
    report.recording.memory().expect("the tests count what is allocated")
}

fn near(found: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((found - expected).abs() <= tolerance, "{what}: {found}, expected {expected}");
}

#[test]
fn both_moments_of_adam_are_as_large_as_the_parameters() {
    let with = memory(&report(AdamWConfig::new().init(), &OneFOneB, 3, 4));
    let without = memory(&report(SgdConfig::new().init(), &OneFOneB, 3, 4));
    for (with, without) in with.iter().zip(without) {
        near(with.resident as f64 - without.resident as f64, 2.0 * PARAMETERS, 0.05 * PARAMETERS, "bytes of moments");
        assert!(without.resident as f64 > PARAMETERS && without.resident < without.peak);
    }
}

/// Tests the optimizer state of Adafactor: a row and a column for each matrix, where Adam keeps two matrices (Shazeer
/// and Stern, 2018, arXiv:1804.04235).
#[test]
fn adafactor_keeps_a_row_and_a_column_per_matrix_on_every_stage() {
    let adafactor = AdafactorConfig::new().with_relative_step(false).with_scale_parameter(false).init();
    let (report, kept) = trained(adafactor, &OneFOneB, 3, 4);
    let sizes = kept.optimizer.values().map(|state| state.shape.iter().product::<usize>());
    // Each stage keeps a row and a column for its weight, and a vector for its bias.
    assert_eq!(sizes.filter(|size| *size > 1).collect::<Vec<_>>(), [WIDTH; 3 * 3]);
    let (with, without) = (memory(&report), memory(&trained(SgdConfig::new().init(), &OneFOneB, 3, 4).0));
    for (with, without) in with.iter().zip(without) {
        let remembered = with.resident as f64 - without.resident as f64;
        // The tolerance covers the buffers that kernels keep for each thread.
        near(remembered, 3.0 * 4.0 * WIDTH as f64, 0.03 * PARAMETERS, "bytes of rows and columns");
    }
}

#[test]
fn a_live_micro_batch_holds_the_tensors_of_its_backward() {
    let report = report(SgdConfig::new().init(), &OneFOneB, 3, 4);
    let activations = report.recording.activations().unwrap();
    // A live micro-batch holds the input of tanh and its output, which is also sent. Inputs are counted on the stage
    // that sent them.
    for stage in [0, 1] {
        near(activations[stage], 2.0 * TENSOR, 0.1 * TENSOR, "bytes of a live micro-batch");
    }
}

#[test]
fn bytes_sent_to_the_next_stage_are_counted() {
    let report = report(SgdConfig::new().init(), &OneFOneB, 3, 4);
    assert_eq!(report.recording.outputs(), [Some(TENSOR), Some(TENSOR), None]);
}

#[test]
fn the_peak_grows_with_m_under_gpipe_and_not_under_1f1b() {
    let peaks = |schedule: &'static (dyn Schedule + Sync), micro_batches| {
        let report = report(SgdConfig::new().init(), schedule, 2, micro_batches);
        (memory(&report)[0].peak as f64, report.recording.activations().unwrap()[0])
    };
    let ((few, _), (many, activation)) = (peaks(&GPipe, 4), peaks(&GPipe, 12));
    near((many - few) / 8.0, activation, 0.1 * activation, "growth of GPipe's peak");
    let ((few, _), (many, _)) = (peaks(&OneFOneB, 4), peaks(&OneFOneB, 12));
    near(many, few, 0.1 * activation, "peak of 1F1B");
}
