//! Divides a model by hand into three stages of different types, and trains each stage on its own thread.
//!
//! The model learns to add two digits modulo ten. The input is an integer tensor, which has no gradient. The first
//! stage also sends its embedding to the last stage (a skip connection), through the second stage, as the second
//! element of a tuple.
//!
//! ```text
//! cargo run --release --example custom_split
//! ```

use anyhow::Result;
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::{Batch, LossStage, Pipeline, Stage, StageConfig, Weight, seeded};

/// The number of digits (0 to 9), which is also the number of possible sums modulo ten.
const DIGITS: usize = 10;
/// The model's width: the number of elements in a digit's embedding.
const WIDTH: usize = 32;

/// A stage's output: an activation, and the digits' embedding for the skip connection to the last stage.
type Hidden = (Tensor<2>, Tensor<2>);

/// The first stage: maps two digits `[batch, 2]` to an activation and a skip connection, both `[batch, 2 x width]`.
#[derive(Module, Debug)]
struct Encoder {
    digits: Embedding,
    mix: Linear,
}

impl Stage for Encoder {
    type Input = Tensor<2, Int>;
    type Output = Hidden;

    fn forward(&self, input: Tensor<2, Int>) -> Hidden {
        let embedded = self.digits.forward(input).flatten::<2>(1, 2);
        (relu(self.mix.forward(embedded.clone())), embedded)
    }
}

/// The second stage: transforms the activation, and passes on the skip connection unchanged.
#[derive(Module, Debug)]
struct Middle {
    layer: Linear,
}

impl Stage for Middle {
    type Input = Hidden;
    type Output = Hidden;

    fn forward(&self, (hidden, skip): Hidden) -> Hidden {
        (relu(self.layer.forward(hidden)), skip)
    }
}

/// The last stage: adds the activation and the skip connection, computes logits, and compares them with the targets
/// `[batch]`.
#[derive(Module, Debug)]
struct Classifier {
    logits: Linear,
}

impl Stage for Classifier {
    type Input = Hidden;
    type Output = Tensor<2>;

    fn forward(&self, (hidden, skip): Hidden) -> Tensor<2> {
        self.logits.forward(hidden + skip)
    }
}

impl LossStage for Classifier {
    type Target = Tensor<1, Int>;

    /// Returns a micro-batch's loss as a sum over its samples, not as a mean. The pipeline divides the sum over all
    /// micro-batches by the weight of the whole step.
    fn loss(&self, logits: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1> {
        -log_softmax(logits, 1).gather(1, target.unsqueeze_dim(1)).sum()
    }

    fn weight(&self, target: &Tensor<1, Int>) -> Weight {
        target.dims()[0].into()
    }
}

fn main() -> Result<()> {
    let device = Device::flex();
    let training = device.clone().autodiff();
    let linear = |seed, to| seeded(&device, seed, || LinearConfig::new(2 * WIDTH, to).init(&training));
    let digits = seeded(&device, 0, || EmbeddingConfig::new(DIGITS, WIDTH).init(&training));
    let config = || StageConfig::new(device.clone(), AdamWConfig::new().init(), 3e-3);

    // If the types of two neighbouring stages did not match, this would not compile.
    let mut pipeline = Pipeline::builder()
        .stage(Encoder { digits, mix: linear(1, 2 * WIDTH) }, config())
        .stage(Middle { layer: linear(2, 2 * WIDTH) }, config())
        .loss(Classifier { logits: linear(3, DIGITS) }, config())
        .micro_batches(4)
        .build()?;
    print!("the plan:\n{}", pipeline.plan());

    let (inputs, sums) = all_sums(&device);
    for _ in 0..150 {
        let report = pipeline.step(Batch::new(inputs.clone(), sums.clone()))?;
        if report.step % 30 == 0 {
            let bubble = 100.0 * report.bubble();
            let clock = report.recording.clock();
            println!(
                "step {:>3}: loss {:.4}, bubble {bubble:.0}% of the total by the {clock}",
                report.step, report.loss
            );
        }
    }
    println!("after training: loss {:.4}", pipeline.eval(Batch::new(inputs.clone(), sums.clone()))?.loss);

    // The trained modules are returned with their own types, and can be used like any other module.
    let mut modules = pipeline.into_modules();
    let encoder = modules.take::<Encoder>(0)?.valid();
    let middle = modules.take::<Middle>(1)?.valid();
    let classifier = modules.take::<Classifier>(2)?.valid();
    let logits = classifier.forward(middle.forward(encoder.forward(inputs)));
    let right = logits.argmax(1).flatten::<1>(0, 1).equal(sums).int().sum().into_scalar::<i64>();
    println!("{right} of {} sums are right", DIGITS * DIGITS);
    Ok(())
}

/// Returns the training data: every pair of digits, `[100, 2]`, and their sums modulo ten, `[100]`.
fn all_sums(device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let digits = 0..DIGITS as i32;
    let pairs = || digits.clone().flat_map(|a| (0..DIGITS as i32).map(move |b| (a, b)));
    let inputs: Vec<_> = pairs().flat_map(|(a, b)| [a, b]).collect();
    let sums: Vec<_> = pairs().map(|(a, b)| (a + b) % DIGITS as i32).collect();
    (
        Tensor::from_data(TensorData::new(inputs, [DIGITS * DIGITS, 2]), device),
        Tensor::from_data(TensorData::new(sums, [DIGITS * DIGITS]), device),
    )
}
