//! Fuzzes the restoring of a pipeline from a checkpoint: the input describes changes to an undamaged checkpoint.
//! `restore` must reject the changed checkpoint with a short, printable message, or the pipeline must make a step or
//! return an error.

use std::sync::OnceLock;

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use stageline::checkpoint::{Checkpoint, Dtype, LossScale};
use stageline::nn::Linear;
use stageline::{Batch, DynamicLossScale, LossStage, Pipeline, PipelineBuilder, Stage, StageConfig, Weight};

const WIDTH: usize = 4;

/// The limit in bytes on the error message for a rejected checkpoint.
const LONGEST: usize = 4_096;

/// Names for tensors that no model has. Some have characters that must not reach a terminal.
const NAMES: [&str; 8] = ["\u{1b}[2J", "a\nb", "\u{202e}txt", "\u{9b}31m", "", "/", "a/b/c", "stateless"];

const NUMBERS: [u64; 8] = [0, 1, 2, 3, 1 << 31, 1 << 53, u64::MAX - 1, u64::MAX];

const SCALES: [f64; 8] = [65536.0, 0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e300, 0.5];

const DTYPES: [Dtype; 5] = [Dtype::F64, Dtype::I64, Dtype::BOOL, Dtype::F8_E4M3, Dtype::U64];

/// The first stage of the fuzz target's model: a linear layer and tanh. Input and output are `[rows, WIDTH]`.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input).tanh()
    }
}

/// The last stage of the fuzz target's model: a linear layer. The loss is the sum of its squared outputs.
#[derive(Module, Debug)]
struct Last {
    linear: Linear,
}

impl Stage for Last {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for Last {
    type Target = Tensor<1>;

    fn loss(&self, output: Tensor<2>, _: Tensor<1>) -> Tensor<1> {
        (output.clone() * output).sum()
    }

    fn weight(&self, target: &Tensor<1>) -> Weight {
        (target.dims()[0] as f64).into()
    }
}

fn builder() -> PipelineBuilder<Tensor<2>, Tensor<2>, Tensor<1>> {
    let device = Device::flex();
    let linear = || Linear::from(LinearConfig::new(WIDTH, WIDTH).init(&device.clone().autodiff()));
    let config = || StageConfig::new(device.clone(), AdamWConfig::new().init(), 0.01);
    let chain = Pipeline::builder().stage(Layer { linear: linear() }, config());
    let scale = stageline::LossScale::Dynamic(DynamicLossScale::default());
    chain.loss(Last { linear: linear() }, config()).micro_batches(2).cores_per_stage(1).loss_scale(scale)
}

fn batch() -> Batch<Tensor<2>, Tensor<1>> {
    let device = Device::flex();
    Batch::new(Tensor::ones([4, WIDTH], &device), Tensor::ones([4], &device))
}

/// Returns an undamaged checkpoint of the fuzz target's model after two training steps.
fn sound() -> &'static Checkpoint {
    static CHECKPOINT: OnceLock<Checkpoint> = OnceLock::new();
    CHECKPOINT.get_or_init(|| {
        let mut pipeline = builder().build().expect("it can be built");
        (0..2).for_each(|_| drop(pipeline.step(batch()).expect("it trains")));
        pipeline.checkpoint().expect("it can be kept")
    })
}

/// Changes one tensor of the checkpoint. The next bytes of a fuzz input select the tensor and the change. Returns
/// `None` without a change, if no bytes or no tensors are left.
fn change(checkpoint: &mut Checkpoint, bytes: &mut impl Iterator<Item = u8>) -> Option<()> {
    let mut next = |bound: usize| bytes.next().map(|byte| usize::from(byte) % bound.max(1));
    let tensors = if next(3)? == 0 { &mut checkpoint.parameters } else { &mut checkpoint.optimizer };
    let name = tensors.keys().nth(next(tensors.len())?)?.clone();
    let tensor = tensors.get_mut(&name)?;
    match next(10)? {
        0 => drop(tensors.remove(&name)),
        1 => tensor.dtype = DTYPES[next(DTYPES.len())?],
        2 => tensor.shape = [vec![], vec![0], vec![4, 4], vec![usize::MAX, 2], vec![1; 300]][next(5)?].clone(),
        3 => tensor.bytes = vec![next(256)? as u8; next(70)?].into(),
        4 => tensor.bytes = NUMBERS[next(NUMBERS.len())?].to_le_bytes().to_vec().into(),
        5 => {
            let long = "x".repeat(next(2)? << 20);
            let other = format!("{}{long}", NAMES[next(NAMES.len())?]);
            let tensor = tensors.remove(&name)?;
            tensors.insert(other, tensor);
        }
        6 => {
            let tensor = tensor.clone();
            tensors.insert(format!("{name}/{}", NAMES[next(NAMES.len())?]), tensor);
        }
        7 => checkpoint.progress.steps = NUMBERS[next(NUMBERS.len())?],
        8 => {
            let scale = SCALES[next(SCALES.len())?];
            checkpoint.progress.loss_scale = Some(LossScale { scale, good_steps: NUMBERS[next(NUMBERS.len())?] });
        }
        _ => checkpoint.progress.optimizer_steps = NUMBERS[next(NUMBERS.len())?],
    }
    Some(())
}

/// Restores a pipeline from a checkpoint with the changes that a fuzz input describes. Returns whether the pipeline
/// accepted the checkpoint.
pub fn restore(bytes: &[u8]) -> bool {
    let mut checkpoint = sound().clone();
    let mut bytes = bytes.iter().copied();
    while change(&mut checkpoint, &mut bytes).is_some() {}
    match builder().restore(checkpoint).build() {
        Ok(mut pipeline) => {
            // The step may succeed or return an error, but it must not panic.
            drop(pipeline.step(batch()));
            true
        }
        Err(error) => {
            for shown in [format!("{error}"), format!("{error:?}")] {
                let is_plain = |letter: char| letter == '\n' || !(letter.is_control() || letter == '\u{202e}');
                assert!(shown.chars().all(is_plain) && shown.len() < LONGEST, "{shown}");
            }
            false
        }
    }
}
