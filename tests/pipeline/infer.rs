//! Tests of inference, metrics and snapshots: their values are those of one thread without a pipeline, and the training
//! continues with the same bits as without them.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor, TensorData};
use stageline::schedule::{GPipe, Interleaved, OneFOneB, Schedule, ZbH1, ZbV};
use stageline::{Batch, BatchError, LossStage, Metric, Pipeline, Stage, StepError, Weight, seeded};

use crate::mlp::{Layer, Mlp, Target, config, device, pieces};

const WIDTH: usize = 4;
const MICRO_BATCHES: usize = 4;

fn model() -> Mlp {
    Mlp::new(5, WIDTH, 91)
}

fn batch(rows: usize, seed: u64) -> (Tensor<2>, Target) {
    Mlp::batch(rows, WIDTH, true, seed)
}

fn bits_of(tensor: Tensor<2>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Computes the test model's outputs on one thread, one micro-batch after another, and returns the bits of the outputs.
fn plain(model: &Mlp, input: &Tensor<2>, micro_batches: usize) -> Vec<u32> {
    let Mlp { layers, error } = model.clone().valid();
    let outputs = pieces(input.dims()[0], micro_batches).into_iter().map(|rows| {
        let hidden = layers.forward(input.clone().slice_dim(0, rows));
        error.forward(hidden)
    });
    bits_of(Tensor::cat(outputs.collect(), 0))
}

#[test]
fn outputs_have_the_bits_of_one_thread() {
    let schedules: [(Box<dyn Schedule>, &[usize]); 5] = [
        (Box::new(OneFOneB), &[1, 2, 3, 6]),
        (Box::new(GPipe), &[3]),
        (Box::new(ZbH1), &[2]),
        (Box::new(Interleaved { chunks: 2 }), &[4]),
        (Box::new(ZbV), &[4]),
    ];
    for (schedule, stages) in &schedules {
        for &stages in *stages {
            let name = schedule.name();
            let builder = model().split(stages, &config()).micro_batches(MICRO_BATCHES);
            let mut pipeline = builder.schedule(schedule.plan(stages, MICRO_BATCHES).unwrap()).build().unwrap();
            for rows in [11, 4, 3, 1] {
                let (input, _) = batch(rows, 7);
                let micro_batches = MICRO_BATCHES.min(rows);
                let found = bits_of(pipeline.infer(input.clone()).unwrap());
                assert_eq!(found, plain(&model(), &input, micro_batches), "{name}, P = {stages}, {rows} rows");
            }
        }
    }
}

#[test]
fn replicas_share_an_inference() {
    let builder = model().split(2, &config()).micro_batches(2).replica([device(), device()]);
    let mut pipeline = builder.build().unwrap();
    for rows in [11, 3, 1] {
        let (input, _) = batch(rows, 8);
        assert_eq!(bits_of(pipeline.infer(input.clone()).unwrap()), plain(&model(), &input, 4.min(rows)));
    }
}

#[test]
fn inferences_and_snapshots_change_no_bit_of_the_training() {
    let train = |looks: bool| {
        let mut pipeline = model().split(3, &config()).micro_batches(MICRO_BATCHES).build().unwrap();
        for step in 0..3 {
            let (input, target) = batch(9, step);
            if looks {
                let Mlp { layers, error } = Mlp::join(pipeline.snapshot().unwrap());
                let expected = plain(&Mlp { layers, error }, &input, MICRO_BATCHES);
                assert_eq!(bits_of(pipeline.infer(input.clone()).unwrap()), expected, "step {step}");
            }
            pipeline.step(Batch::new(input, target)).unwrap();
        }
        let snapshot = Mlp::join(pipeline.snapshot().unwrap()).bits();
        let trained = Mlp::join(pipeline.into_modules()).bits();
        assert!(snapshot == trained, "a snapshot has other values than the trained modules");
        trained
    };
    assert!(train(true) == train(false), "an inference or a snapshot changed what was trained");
}

#[test]
fn micro_batches_of_different_lengths_are_inferred_in_their_order() {
    let mut pipeline = model().split(2, &config()).micro_batches(2).build().unwrap();
    let inputs: Vec<_> = (1..8).map(|rows| batch(rows, rows as u64).0).collect();
    let outputs = pipeline.infer_micro_batches(inputs.clone()).unwrap();
    assert_eq!(outputs.len(), inputs.len());
    for (input, output) in inputs.into_iter().zip(outputs) {
        assert_eq!(bits_of(output), plain(&model(), &input, 1));
    }
}

/// A last stage for tests of inference that classifies rows. A target `[rows]` may be the padding id, which does not
/// count in the loss.
#[derive(Module, Debug)]
struct Classes {
    layer: Layer,
    padding: usize,
}

/// The output of the test's classifier: the logits `[rows, width]`, and zeros `[1, rows]`. Zeros of micro-batches with
/// different numbers of rows cannot be concatenated, so an inference of such micro-batches is an error.
type Logits = (Tensor<2>, Tensor<2>);

impl Stage for Classes {
    type Input = Tensor<2>;
    type Output = Logits;

    fn forward(&self, input: Tensor<2>) -> Logits {
        let [rows, _] = input.dims();
        (self.layer.forward(input), Tensor::zeros([1, rows], &device()))
    }
}

impl Classes {
    /// Returns the mask of the targets `[rows]`: 0 for targets that are the padding id, and 1 for every other target.
    fn mask(&self, target: &Tensor<1, Int>) -> Tensor<1> {
        target.clone().not_equal_elem(self.padding as i64).float()
    }
}

impl LossStage for Classes {
    type Target = Tensor<1, Int>;

    const METRICS: &'static [&'static str] = &["accuracy", "size"];

    fn loss(&self, (logits, _): Logits, target: Tensor<1, Int>) -> Tensor<1> {
        let mask = self.mask(&target);
        let chosen = logits.gather(1, target.clamp(0, WIDTH as i64 - 1).unsqueeze_dim(1)).squeeze_dim::<1>(1);
        -(chosen * mask).sum()
    }

    fn weight(&self, target: &Tensor<1, Int>) -> Weight {
        self.mask(target).sum().into_scalar::<f64>().into()
    }

    fn metrics(&self, (logits, _): Logits, target: Tensor<1, Int>) -> Tensor<1> {
        let mask = self.mask(&target);
        let right = logits.clone().argmax(1).squeeze_dim::<1>(1).equal(target).float() * mask.clone();
        let size = logits.abs().sum_dim(1).squeeze_dim::<1>(1) * mask;
        Tensor::cat(vec![right.sum(), size.sum()], 0)
    }
}

fn classes() -> (Layer, Layer, Classes) {
    let Mlp { mut layers, .. } = model();
    let mut next = || layers.pop().unwrap();
    (next(), next(), Classes { layer: next(), padding: 9 })
}

fn labelled(rows: usize) -> (Tensor<2>, Tensor<1, Int>) {
    let labels: Vec<i64> = (0..rows as i64).map(|row| if row % 3 == 1 { 9 } else { row % WIDTH as i64 }).collect();
    (batch(rows, 3).0, Tensor::from_data(TensorData::new(labels, [rows]), &device()))
}

/// Tests that a reported metric is a mean: its sum over the unmasked targets, divided by the number of these targets.
/// This holds in steps and in evaluations. Metrics are not added to the loss. A target is masked if it is the padding
/// id, which is a constant of the stage.
#[test]
fn metrics_are_means_over_the_targets_that_count() {
    let (input, target) = labelled(11);
    let (first, second, last) = classes();
    let whole = (first.valid(), second.valid(), last.valid());
    let output = whole.forward(input.clone());
    let weight = whole.weight(&target).terms()[0];
    assert_eq!(weight, 7.0);
    let sums: Vec<f64> = whole.metrics(output.clone(), target.clone()).into_data().iter::<f64>().collect();
    let loss = whole.loss(output, target.clone()).into_scalar::<f64>() / weight;
    for (cut, replicas) in [(1, 1), (2, 1), (3, 1), (2, 2)] {
        let (first, second, last) = classes();
        let builder = match cut {
            1 => Pipeline::builder().loss((first, second, last), config()),
            2 => Pipeline::builder().stage((first, second), config()).loss(last, config()),
            _ => Pipeline::builder().stage(first, config()).stage(second, config()).loss(last, config()),
        };
        let builder = (1..replicas).fold(builder, |builder, _| builder.replica(vec![device(); cut]));
        let mut pipeline = builder.micro_batches(MICRO_BATCHES / replicas).build().unwrap();
        let evaluated = pipeline.eval(Batch::new(input.clone(), target.clone())).unwrap();
        let stepped = pipeline.step(Batch::new(input.clone(), target.clone())).unwrap();
        for (found, metrics) in [(evaluated.loss, evaluated.metrics), (stepped.loss, stepped.metrics)] {
            assert!((found - loss).abs() < 1e-6, "{found} against {loss}");
            let names: Vec<_> = metrics.iter().map(|metric| metric.name).collect();
            assert_eq!(names, ["accuracy", "size"]);
            for (Metric { value, .. }, sum) in metrics.iter().zip(&sums) {
                assert!((value - sum / weight).abs() < 1e-6, "{value} against {}", sum / weight);
            }
        }
    }
}

#[test]
fn outputs_that_cannot_be_concatenated_are_an_error_and_the_pipeline_goes_on() {
    let (first, second, last) = classes();
    let chain = Pipeline::builder().stage((first, second), config()).loss(last, config());
    let mut pipeline = chain.micro_batches(2).build().unwrap();
    let (input, target) = labelled(5);
    let error = pipeline.infer(input.clone()).unwrap_err();
    assert!(matches!(error, StepError::Batch(BatchError::Outputs { micro_batch: 1 })), "{error}");
    assert_eq!(pipeline.infer_micro_batches(vec![input.clone()]).unwrap()[0].0.dims(), [5, WIDTH]);
    pipeline.step(Batch::new(input, target)).unwrap();
}

/// A last stage for tests of errors. It declares one metric but returns one number per row for it, which is an error.
#[derive(Module, Debug)]
struct Misnamed {
    layer: Layer,
}

impl Stage for Misnamed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.layer.forward(input)
    }
}

impl LossStage for Misnamed {
    type Target = ();

    const METRICS: &'static [&'static str] = &["size"];

    fn loss(&self, output: Tensor<2>, (): ()) -> Tensor<1> {
        output.sum()
    }

    fn weight(&self, (): &()) -> Weight {
        1.0.into()
    }

    fn metrics(&self, output: Tensor<2>, (): ()) -> Tensor<1> {
        output.sum_dim(1).flatten(0, 1)
    }
}

#[test]
fn metrics_of_another_shape_are_named_at_their_forward() {
    let layer = seeded(&device(), 1, || model().layers.pop().unwrap());
    let mut pipeline = Pipeline::builder().loss(Misnamed { layer }, config()).build().unwrap();
    let error = pipeline.step(Batch::new(batch(3, 1).0, ())).unwrap_err().to_string();
    assert!(error.contains("`metrics` returned shape [3] for the metrics size"), "{error}");
}

/// A last stage for tests of errors. Its loss weight (the divisor of the loss) depends on a parameter, which is an
/// error.
#[derive(Module, Debug)]
struct Weighed {
    layer: Layer,
    factor: Param<Tensor<1>>,
}

impl Stage for Weighed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.layer.forward(input)
    }
}

impl LossStage for Weighed {
    type Target = ();

    fn loss(&self, output: Tensor<2>, (): ()) -> Tensor<1> {
        output.sum()
    }

    fn weight(&self, (): &()) -> Weight {
        self.factor.val().sum().into_scalar::<f64>().into()
    }
}

#[test]
fn a_weight_that_uses_a_parameter_is_an_error() {
    let factor = Param::from_tensor(Tensor::ones([3], &device()));
    let last = Weighed { layer: model().layers.pop().unwrap(), factor };
    let mut pipeline = Pipeline::builder().loss(last, config()).build().unwrap();
    let error = pipeline.step(Batch::new(batch(3, 1).0, ())).unwrap_err().to_string();
    assert!(error.contains("loss weight NaN") && error.contains("not its parameters"), "{error}");
}
