//! Tests of validation: pipelines that cannot run and batches that do not fit are rejected, with an error that names
//! the values and a remedy.

use burn::module::Module;
use burn::tensor::Tensor;
use stageline::schedule::{OneFOneB, Plan, Schedule, ScheduleError};
use stageline::{Batch, BatchError, BuildError, LossStage, ModuleError, Stage, StepError, Weight};

use crate::mlp::{Error, Layer, Mlp, Target, config};

fn model() -> Mlp {
    Mlp::new(3, 4, 71)
}

/// Builds a pipeline with invalid settings that `build` must reject, and returns the error and its message.
fn build_error(
    build: impl FnOnce(stageline::PipelineBuilder<Tensor<2>, Tensor<2>, Target>) -> BuildResult,
) -> (BuildError, String) {
    let Err(error) = build(model().split(2, &config())) else { panic!("it was built") };
    let message = error.to_string();
    (error, message)
}

type BuildResult = Result<stageline::Pipeline<Tensor<2>, Tensor<2>, Target>, BuildError>;

#[test]
fn zero_micro_batches_are_refused() {
    let (error, message) = build_error(|builder| builder.micro_batches(0).build());
    assert!(matches!(error, BuildError::Schedule { cause: ScheduleError::NoMicroBatches, .. }));
    assert!(message.contains("0 micro-batches: cut the batch into at least 1"), "{message}");
}

#[test]
fn zero_cores_are_refused() {
    let (_, message) = build_error(|builder| builder.cores_per_stage(0).build());
    assert!(message.contains("at least 1 core"), "{message}");
}

#[test]
fn a_plan_for_another_pipeline_is_refused() {
    let plan = OneFOneB.plan(4, 8).unwrap();
    let (_, message) = build_error(|builder| builder.micro_batches(8).schedule(plan).build());
    assert!(message.contains("for 4 stages and 8 micro-batches"), "{message}");
    assert!(message.contains("has 2 stages and 8 micro-batches"), "{message}");
}

/// A schedule for tests of errors. The number of stages and micro-batches in its plan is not that of the pipeline.
struct Deaf;

impl Schedule for Deaf {
    fn name(&self) -> &'static str {
        "deaf"
    }

    fn plan(&self, _: usize, _: usize) -> Result<Plan, ScheduleError> {
        OneFOneB.plan(3, 5)
    }
}

#[test]
fn a_schedule_that_writes_another_shape_is_refused() {
    let (error, message) = build_error(|builder| builder.schedule(Deaf).build());
    let cause = ScheduleError::Shape { written: (3, 5), asked: (2, 1) };
    assert!(matches!(error, BuildError::Schedule { schedule: "deaf", cause: found } if found == cause), "{message}");
}

#[test]
fn an_incomplete_plan_is_refused() {
    let plan = Plan::from_csv("0F0\n1F0,1B0\n").unwrap();
    let (error, message) = build_error(|builder| builder.schedule(plan).build());
    assert!(matches!(error, BuildError::Check(_)));
    assert!(message.contains("stage 0 does `F` to micro-batch 0"), "{message}");
}

#[test]
fn a_plan_that_deadlocks_at_its_capacity_is_refused() {
    let (_, message) = build_error(|builder| builder.micro_batches(4).channel_capacity(0).build());
    // 1F1B's first stage sends an activation while its second one sends a gradient.
    assert!(message.contains("raise the channel capacity to 1"), "{message}");
}

/// A last stage for tests of errors. Its function for the loss weight panics if a micro-batch does not have two rows.
#[derive(Module, Debug)]
struct Choosy {
    error: Error,
}

impl Stage for Choosy {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.error.forward(input)
    }
}

impl LossStage for Choosy {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, target: Target) -> Tensor<1> {
        self.error.loss(output, target)
    }

    fn weight(&self, (wanted, _): &Target) -> Weight {
        assert_eq!(wanted.dims()[0], 2, "two rows are wanted");
        2.0.into()
    }
}

#[test]
fn a_weight_that_panics_is_an_error_and_the_next_step_succeeds() {
    let chain = stageline::Pipeline::builder().loss(Choosy { error: model().error }, config());
    let mut pipeline = chain.micro_batches(2).build().unwrap();
    let (input, target) = Mlp::batch(3, 4, false, 1);
    let error = pipeline.step(Batch::new(input, target)).unwrap_err().to_string();
    assert!(error.contains("targets of micro-batch 1") && error.contains("two rows are wanted"), "{error}");
    let (input, target) = Mlp::batch(4, 4, false, 1);
    assert!(pipeline.step(Batch::new(input, target)).is_ok());
}

/// Makes a training step with a batch that the pipeline must reject, asserts that the pipeline still works, and returns
/// the error.
fn step(micro_batches: usize, batch: Batch<Tensor<2>, Target>) -> BatchError {
    let mut pipeline = model().split(2, &config()).micro_batches(micro_batches).build().unwrap();
    let error = pipeline.step(batch).unwrap_err();
    // The pipeline still makes its first step.
    let (input, target) = Mlp::batch(4, 4, false, 1);
    assert_eq!(pipeline.step(Batch::new(input, target)).unwrap().step, 0);
    let StepError::Batch(error) = error else { panic!("{error}") };
    error
}

#[test]
fn a_batch_with_fewer_rows_than_micro_batches_is_refused() {
    let (input, target) = Mlp::batch(3, 4, false, 1);
    let error = step(4, Batch::new(input, target));
    assert_eq!(error, BatchError::TooSmall { rows: 3, micro_batches: 4, replicas: 1 });
    assert!(error.to_string().contains("give at least 4 rows, or lower the number of micro-batches to 3"), "{error}");
}

#[test]
fn a_batch_without_rows_is_refused() {
    let (input, (wanted, mask)) = Mlp::batch(3, 4, false, 1);
    let none = |tensor: Tensor<2>| tensor.slice_dim(0, 0..0);
    let batch = Batch::new(none(input), (none(wanted), none(mask)));
    assert_eq!(step(4, batch.clone()), BatchError::NoRows);
    let mut pipeline = model().split(2, &config()).micro_batches(2).build().unwrap();
    assert!(matches!(pipeline.eval(batch), Err(StepError::Batch(BatchError::NoRows))));
}

#[test]
fn tensors_with_different_numbers_of_rows_are_refused() {
    let (input, _) = Mlp::batch(4, 4, false, 1);
    let (_, target) = Mlp::batch(5, 4, false, 1);
    assert_eq!(step(2, Batch::new(input, target)), BatchError::Uneven { rows: 4, tensor: 1, found: 5 });
}

#[test]
fn a_batch_cut_by_hand_into_another_number_of_micro_batches_is_refused() {
    let error = step(2, Batch::from_micro_batches(vec![Mlp::batch(4, 4, false, 1)]));
    assert_eq!(error, BatchError::Count { given: 1, micro_batches: 2, replicas: 1 });
}

#[test]
fn negative_and_nan_weights_are_refused() {
    let masked = |value: f64| {
        let (input, (wanted, mask)) = Mlp::batch(4, 4, false, 1);
        Batch::new(input, (wanted, mask.full_like(value)))
    };
    assert_eq!(step(2, masked(-1.0)), BatchError::Weight { micro_batch: 0, weight: -2.0 });
    assert!(matches!(step(2, masked(f64::NAN)), BatchError::Weight { micro_batch: 0, .. }));
}

#[test]
fn a_module_is_taken_once_and_by_its_type() {
    let mut modules = model().split(2, &config()).build().unwrap().into_modules();
    assert_eq!(modules.take::<Error>(2).unwrap_err(), ModuleError::NoSuchStage { stage: 2, stages: 2 });
    let message = modules.take::<Error>(0).unwrap_err().to_string();
    assert!(message.contains("Vec<") && message.contains("Error"), "{message}");
    assert_eq!(modules.take::<Vec<Layer>>(0).unwrap().len(), 2);
    assert_eq!(modules.take::<Vec<Layer>>(0).unwrap_err(), ModuleError::Taken { stage: 0 });
}
