//! Tests of gradient accumulation: a training step has the gradient of the whole batch, and makes one optimizer step
//! per batch.

use std::io::{self, Write};
use std::sync::Arc;

use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use parking_lot::Mutex;
use stageline::{Batch, Pipeline, StageConfig, seeded};

use crate::mlp::{Cut, Error, Layer, Mlp, config, device};

/// Tests one step of plain gradient descent on a linear model against its closed form, W - rate/weight * X^T (XW + b -
/// Y).
#[test]
fn a_step_of_gradient_descent_matches_the_closed_form() {
    const RATE: f64 = 0.1;
    let (rows, width) = (7, 3);
    let init = || LinearConfig::new(width, width).init(&device().autodiff()).into();
    let error = Error { linear: seeded(&device(), 5, init) };
    let (input, (wanted, mask)) = Mlp::batch(rows, width, true, 11);

    let values = |tensor: &Tensor<2>| tensor.to_data().iter::<f64>().collect::<Vec<_>>();
    let (x, y, kept) = (values(&input), values(&wanted), values(&mask));
    let (w, b) = (
        error.linear.weight.val().into_data().iter::<f64>().collect::<Vec<_>>(),
        error.linear.bias.as_ref().unwrap().val().into_data().iter::<f64>().collect::<Vec<_>>(),
    );
    let weight: f64 = kept.iter().sum();
    let residual = |row: usize, to: usize| {
        let output: f64 = (0..width).map(|from| x[row * width + from] * w[from * width + to]).sum::<f64>() + b[to];
        (output - y[row * width + to]) * kept[row]
    };
    let descend = |from: usize, to: usize| {
        let gradient: f64 = (0..rows).map(|row| x[row * width + from] * residual(row, to)).sum();
        w[from * width + to] - RATE / weight * gradient
    };

    let stage = StageConfig::new(device(), SgdConfig::new().init(), RATE);
    let mut pipeline = Pipeline::builder().loss(error.clone(), stage).micro_batches(3).build().unwrap();
    let report = pipeline.step(Batch::new(input, (wanted, mask))).unwrap();
    let loss: f64 = (0..rows)
        .flat_map(|row| (0..width).map(move |to| (row, to)))
        .map(|(row, to)| residual(row, to).powi(2) / 2.0)
        .sum();
    assert_eq!(report.weight(), weight);
    assert!((report.loss - loss / weight).abs() < 1e-5, "{} against {}", report.loss, loss / weight);

    let stepped = pipeline.into_modules().take::<Error>(0).unwrap().linear.weight.val().into_data();
    for (index, stepped) in stepped.iter::<f64>().enumerate() {
        let expected = descend(index / width, index % width);
        assert!((stepped - expected).abs() < 1e-5, "weight {index}: {stepped} against {expected}");
    }
}

/// Tests that the gradient summed over uneven micro-batches with masked rows is the gradient of the whole batch, up to
/// f32 rounding.
#[test]
fn gradients_of_micro_batches_add_up_to_that_of_the_whole_batch() {
    for (seed, rows) in [(21, 29), (22, 16), (23, 11)] {
        let model = Mlp::new(3, 16, seed);
        let batch = Mlp::batch(rows, 16, true, seed);
        // With plain gradient descent and the learning rate 1, a step subtracts exactly the gradient.
        let gradient = |stages: usize, micro_batches: usize| {
            let stage = StageConfig::new(device(), SgdConfig::new().init(), 1.0);
            let builder = model.clone().split(stages, &stage).micro_batches(micro_batches);
            let mut pipeline = builder.build().unwrap();
            pipeline.step(Batch::new(batch.0.clone(), batch.1.clone())).unwrap();
            let after = values(&Mlp::join(pipeline.into_modules()));
            values(&model).iter().zip(after).map(|(before, after)| before - after).collect::<Vec<_>>()
        };
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let big = gradient(1, 1);
        for (stages, micro_batches) in [(1, 2), (2, 3), (4, 8), (4, rows)] {
            let cut = gradient(stages, micro_batches);
            let distance = norm(&mut big.iter().zip(&cut).map(|(a, b)| a - b));
            let relative = distance / norm(&mut big.iter().copied());
            assert!(relative <= 1e-5, "seed {seed}, P={stages}, M={micro_batches}: relative error {relative}");
        }
    }
}

/// Returns the values of all parameters of the test model, in layer order.
fn values(model: &Mlp) -> Vec<f64> {
    model.bits().into_iter().map(|bits| f64::from(f32::from_bits(bits))).collect()
}

#[test]
fn learning_rate_schedules_advance_once_per_optimizer_step() {
    let model = Mlp::new(1, 4, 31);
    let schedule = LinearLrSchedulerConfig::new(0.4, 0.1, 3).init().unwrap();
    let stage = StageConfig::new(device(), SgdConfig::new().init(), schedule);
    let mut pipeline = model.split(2, &stage).micro_batches(4).build().unwrap();
    for (step, expected) in [0.4, 0.3, 0.2, 0.1, 0.1].into_iter().enumerate() {
        let (input, target) = Mlp::batch(8, 4, false, 1);
        let report = pipeline.step(Batch::new(input, target)).unwrap();
        assert_eq!(report.step, step);
        for stage in &report.stages {
            let learning_rate = stage.learning_rate.unwrap();
            assert!((learning_rate - expected).abs() < 1e-12, "step {step}: {learning_rate}");
        }
    }
}

#[test]
fn a_step_report_is_consistent() {
    let mut pipeline = Mlp::new(3, 8, 41).split(4, &config()).micro_batches(2).build().unwrap();
    let (input, target) = Mlp::batch(8, 8, false, 1);
    let report = pipeline.step(Batch::new(input, target)).unwrap();
    assert_eq!((report.stages.len(), report.workers(), report.micro_batches), (4, 4, 2));
    assert!((report.ideal_bubble() - 3.0 / 5.0).abs() < 1e-12);
    assert!((0.0..1.0).contains(&report.bubble()), "{}", report.bubble());
    assert!(report.stages.iter().all(|stage| stage.busy <= report.step_time));
}

/// Runs a closure and returns everything that this thread logs meanwhile, as text.
fn warnings(run: impl FnOnce()) -> String {
    let said = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&said);
    let writer = move || Said(Arc::clone(&writer));
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, run);
    String::from_utf8(said.lock().clone()).unwrap()
}

/// A writer that collects the log lines of a test in memory.
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_batch_size_other_than_tuned_for_is_warned_of_once() {
    let steps = |rows| {
        warnings(|| {
            let builder = Mlp::new(1, 4, 1).split(2, &config()).micro_batches(2).tuned_for(6);
            let mut pipeline = builder.build().unwrap();
            for _ in 0..3 {
                let (input, target) = Mlp::batch(rows, 4, false, 1);
                pipeline.step(Batch::new(input, target)).unwrap();
            }
        })
    };
    assert_eq!(steps(6), "");
    let said = steps(12);
    assert_eq!(said.matches("WARN").count(), 1, "{said}");
    assert!(said.contains("a step sees 12 samples, but its schedule was chosen for 6"), "{said}");
}

/// Tests batches that the caller has divided into micro-batches of different sizes. Training on them gives the
/// parameters of training on the whole batch.
#[test]
fn uneven_micro_batches_cut_by_hand_train_like_the_whole_batch() {
    let model = Mlp::new(2, 8, 51);
    let (input, (wanted, mask)) = Mlp::batch(9, 8, true, 3);
    let mut sizes = [0..1, 1..7, 7..9].into_iter();
    let pieces: Vec<_> = sizes
        .by_ref()
        .map(|rows| {
            let part = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, rows.clone());
            (part(&input), (part(&wanted), part(&mask)))
        })
        .collect();
    let whole = model.clone().train_cut(&Cut::new(1, 1), &[(input, (wanted, mask))]).unwrap();
    let mut pipeline = model.split(3, &config()).micro_batches(3).build().unwrap();
    pipeline.step(Batch::from_micro_batches(pieces)).unwrap();
    let (_, error) = pipeline.into_modules().take::<(Vec<Layer>, Error)>(2).unwrap();
    let close = error.linear.weight.val().all_close(whole.error.linear.weight.val(), Some(1e-4), Some(1e-5));
    assert!(close, "a hand-cut batch trains like the whole one");
}
