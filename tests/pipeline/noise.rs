//! Tests of the gradient noise (the variance of gradients between samples). Its estimate agrees with known and measured
//! distributions and does not depend on the partition into stages, the schedule or the loss scale. Measuring the noise
//! does not change the trained values.

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::schedule::{GPipe, OneFOneB, Schedule, ZbH1, ZbV};
use stageline::{
    Batch, Clip, GradientNoise, LossScale, LossStage, NoiseAverage, NoiseReport, Pipeline, PipelineBuilder, Precision,
    Recompute, Stage, StageConfig, Weight,
};

use crate::mlp::{Mlp, bits, device, noise};
use crate::model::{Bytes, Logits, Shape, costs, gpt};

/// Returns `count` pseudo-random numbers, uniform between -1 and 1, that depend on the seed only.
fn uniform(count: usize, seed: u64) -> Vec<f32> {
    (0..count as u64).map(|index| noise(seed, index)).collect()
}

/// A model for tests of the gradient noise whose only parameter is a point, and whose loss is half the squared distance
/// from the point to each target.
#[derive(Module, Debug)]
struct Point {
    at: Param<Tensor<1>>,
}

const DIMENSIONS: usize = 64;

impl Stage for Point {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, rows: Tensor<2>) -> Tensor<2> {
        self.at.val().unsqueeze::<2>().expand(rows.dims())
    }
}

impl LossStage for Point {
    type Target = Tensor<2>;

    fn loss(&self, at: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
        (at - targets).square().sum() / 2.0
    }

    fn weight(&self, targets: &Tensor<2>) -> Weight {
        targets.dims()[0].into()
    }
}

/// Tests the estimated noise scale of a quadratic loss against its closed form: the variance of the gradient over the
/// squared norm of the mean gradient. The gradient of a sample is the point (the model's parameter) minus the target.
/// Every element of a target has the mean 0 and the variance 1/3. So the mean gradient is the point itself, and the
/// variance, added up over all elements, is a third of the number of dimensions.
#[test]
fn the_noise_of_a_quadratic_loss_is_its_closed_form() {
    let place = uniform(DIMENSIONS, 99);
    let squared_norm: f64 = place.iter().map(|&at| f64::from(at).powi(2)).sum();
    let known = DIMENSIONS as f64 / 3.0 / squared_norm;
    for seed in 1..=5 {
        let at = Tensor::<1>::from_data(TensorData::new(place.clone(), [DIMENSIONS]), &device().autodiff());
        // The learning rate is too small to move the point.
        let stage = StageConfig::new(device(), SgdConfig::new().init(), 1e-30);
        let builder = Pipeline::builder().loss(Point { at: Param::from_tensor(at) }, stage);
        // 34 samples in 5 micro-batches: two sizes, so unequal shares.
        let mut pipeline = builder.micro_batches(5).noise_every(1).build().unwrap();
        let mut average = NoiseAverage::over(1000.0);
        let mut found = GradientNoise::default();
        for step in 0..60 {
            let targets = uniform(34 * DIMENSIONS, 1000 * seed + step);
            let targets = Tensor::<2>::from_data(TensorData::new(targets, [34, DIMENSIONS]), &device());
            let report = pipeline.step(Batch::new(targets.clone(), targets)).unwrap();
            found = average.add(report.noise.unwrap().total);
        }
        let scale = found.scale().unwrap();
        assert!((scale / known - 1.0).abs() < 0.1, "seed {seed}: {scale} instead of {known}");
    }
}

const SHAPE: Shape = Shape { layers: 2, width: 16, context: 16 };

/// Returns random text as inputs and next bytes, in which every byte depends on the byte before it and on chance.
fn text(rows: usize) -> (Bytes, Bytes) {
    let columns = SHAPE.context + 1;
    let chance = uniform(rows * columns, 7);
    let mut bytes = Vec::with_capacity(rows * columns);
    for at in 0..rows * columns {
        let before = if at % columns == 0 { 0 } else { bytes[at - 1] };
        bytes.push((before * 3 + 1 + (chance[at] > 0.2) as i32 * (chance[at] * 40.0) as i32) % 64);
    }
    let all = Tensor::<2, Int>::from_data(TensorData::new(bytes, [rows, columns]), &Device::flex());
    (all.clone().narrow(1, 0, columns - 1), all.narrow(1, 1, columns - 1))
}

fn gpt_builder(
    stages: usize,
    micro_batches: usize,
    schedule: &'static (dyn Schedule + Sync),
) -> PipelineBuilder<Bytes, Logits, Bytes> {
    let config = StageConfig::new(Device::flex(), SgdConfig::new().init(), 1e-30);
    let builder = gpt(SHAPE, 3).pipeline(&costs(SHAPE).cut(stages).unwrap(), vec![config; stages]).unwrap();
    builder.micro_batches(micro_batches).schedule(schedule)
}

/// Tests the estimated gradient noise of a GPT against the gradients of all single samples of a set: their mean and
/// their variance. The estimates come from steps whose batches are parts of the same set.
#[test]
fn the_noise_of_a_gpt_is_that_of_the_gradients_of_single_samples() {
    const ROWS: usize = 128;
    const BATCH: usize = 32;
    let (inputs, targets) = text(ROWS);
    let rows = |from: usize, count: usize| {
        Batch::new(inputs.clone().narrow(0, from, count), targets.clone().narrow(0, from, count))
    };
    let mut single = gpt_builder(1, 1, &OneFOneB).build().unwrap();
    let mut gradient = |row: usize| -> Vec<f64> {
        let gradients = single.gradients(rows(row, 1)).unwrap();
        gradients.into_iter().flat_map(|parameter| parameter.summed).map(f64::from).collect()
    };
    let each: Vec<_> = (0..ROWS).map(&mut gradient).collect();
    let elements = each[0].len();
    let mean: Vec<f64> =
        (0..elements).map(|at| each.iter().map(|gradient| gradient[at]).sum::<f64>() / ROWS as f64).collect();
    let scatter: f64 = each.iter().flat_map(|one| one.iter().zip(&mean)).map(|(one, mean)| (one - mean).powi(2)).sum();
    let variance = scatter / (ROWS - 1) as f64;
    let squared_norm = mean.iter().map(|mean| mean * mean).sum::<f64>() - variance / ROWS as f64;
    // In targets, of which a sample has as many as the context.
    let measured = SHAPE.context as f64 * variance / squared_norm;

    let mut pipeline = gpt_builder(2, 8, &OneFOneB).noise_every(1).build().unwrap();
    let mut average = NoiseAverage::over(1000.0);
    let mut found = GradientNoise::default();
    for from in (0..ROWS).step_by(BATCH) {
        found = average.add(pipeline.step(rows(from, BATCH)).unwrap().noise.unwrap().total);
    }
    let scale = found.scale().unwrap();
    assert!((scale / measured - 1.0).abs() < 0.2, "{scale} instead of {measured}");
}

fn close(one: GradientNoise, other: GradientNoise) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * a.abs().max(b.abs());
    near(one.squared_norm, other.squared_norm) && near(one.variance, other.variance)
}

/// Tests that the estimated gradient noise is the same with whole and with split backwards, recomputation,
/// data-parallel replicas and a loss scale, and that the noise of all stages adds up to that of the model.
#[test]
fn cuts_schedules_replicas_and_loss_scales_have_the_same_noise() {
    let (inputs, targets) = text(24);
    let measured = |builder: PipelineBuilder<Bytes, Logits, Bytes>| -> NoiseReport {
        let mut pipeline = builder.noise_every(2).build().unwrap();
        let mut step = || pipeline.step(Batch::new(inputs.clone(), targets.clone())).unwrap().noise;
        let [first, second, third] = [(); 3].map(|()| step());
        assert!(second.is_none() && third.is_some(), "every second step measures");
        first.unwrap()
    };
    let whole = measured(gpt_builder(1, 4, &OneFOneB));
    let clipped = gpt_builder(2, 4, &GPipe).clip(Clip::GlobalNorm(1e-3));
    let scaled = gpt_builder(2, 4, &OneFOneB).loss_scale(LossScale::Fixed(1024.0));
    let replicas = gpt_builder(2, 2, &OneFOneB).replica(vec![device(); 2]);
    for (name, builder) in [
        ("three stages", gpt_builder(3, 4, &OneFOneB)),
        ("zb-h1", gpt_builder(2, 4, &ZbH1)),
        ("zb-v", gpt_builder(4, 4, &ZbV)),
        ("clipped", clipped),
        ("loss scale", scaled),
        ("two replicas", replicas),
    ] {
        let found = measured(builder);
        assert!(close(found.total, whole.total), "{name}: {found:?} and {whole:?}");
        let add = |sum: GradientNoise, stage: &GradientNoise| GradientNoise {
            squared_norm: sum.squared_norm + stage.squared_norm,
            variance: sum.variance + stage.variance,
        };
        let summed = found.stages.iter().fold(GradientNoise::default(), add);
        assert!(close(summed, found.total), "{name}: {found:?}");
    }
    let mut alone = gpt_builder(2, 1, &OneFOneB).noise_every(1).build().unwrap();
    assert_eq!(alone.step(Batch::new(inputs.clone(), targets.clone())).unwrap().noise, None, "M = 1 has no noise");
}

#[test]
fn trained_values_have_the_same_bits_with_and_without_the_measurement() {
    for (schedule, precision, recompute) in [
        (&OneFOneB as &'static (dyn Schedule + Sync), Precision::Full, Recompute::Nothing),
        (&ZbH1, Precision::Full, Recompute::Full),
        (&ZbH1, Precision::Bf16, Recompute::Nothing),
    ] {
        let trained = |every: usize| {
            let stage = StageConfig::new(device(), AdamWConfig::new().init(), 0.01).recompute(recompute);
            let builder = Mlp::new(3, 8, 5).split(2, &stage).micro_batches(4).schedule(schedule);
            let mut pipeline = builder.precision(precision).noise_every(every).build().unwrap();
            for step in 0..3 {
                let (input, target) = Mlp::batch(19, 8, true, step);
                let measured = pipeline.step(Batch::new(input, target)).unwrap().noise.is_some();
                assert_eq!(measured, every == 1);
            }
            bits(&Mlp::join(pipeline.into_modules()))
        };
        assert!(trained(0) == trained(1), "{}, {precision}", schedule.name());
    }
}
