//! A small model for tests (tanh layers with a masked squared error), and plain training loops to compare pipelines
//! with.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{panic, thread};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{BatchNormConfig, LinearConfig};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, FloatDType, Tensor};
use stageline::nn::Linear;
use stageline::schedule::{OneFOneB, Schedule};
use stageline::{
    AccumulatedBatchNorm, Batch, BuildError, Clip, Dropout, LossStage, Modules, Pipeline, PipelineBuilder, Stage,
    StageConfig, Update, Weight, seeded,
};

pub const LEARNING_RATE: f64 = 0.01;

/// A layer of the test model: a linear layer followed by tanh, from `[rows, width]` to the same shape.
#[derive(Module, Debug)]
pub struct Layer {
    pub linear: Linear,
}

/// The last layer of the test model: a linear layer, whose loss is half the squared error of the unmasked rows.
#[derive(Module, Debug)]
pub struct Error {
    pub linear: Linear,
}

/// The targets of the test model: the wanted output `[rows, width]`, and a mask `[rows, 1]`, where rows with a 0 do not
/// count in the loss.
pub type Target = (Tensor<2>, Tensor<2>);

impl Stage for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input).tanh()
    }
}

/// A layer of the test model followed by a batch norm with statistics over whole batches, and by dropout.
#[derive(Module, Debug)]
pub struct Noisy {
    layer: Layer,
    norm: AccumulatedBatchNorm,
    dropout: Dropout,
}

impl Noisy {
    /// Creates a layer of the test model with batch norm and dropout. Layers with different values of `salt` drop
    /// different elements.
    pub fn new(layer: Layer, salt: u64) -> Self {
        let [width, _] = layer.linear.weight.dims();
        let norm = BatchNormConfig::new(width).init(&device().autodiff()).into();
        Self { layer, norm, dropout: Dropout::new(0.5, 7, salt) }
    }
}

impl Stage for Noisy {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.dropout.forward(self.norm.forward(self.layer.forward(input)))
    }
}

impl Stage for Error {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for Error {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, (wanted, mask): Target) -> Tensor<1> {
        let difference = (output.cast(FloatDType::F32) - wanted) * mask;
        (difference.clone() * difference).sum() / 2.0
    }

    fn weight(&self, (_, mask): &Target) -> Weight {
        mask.clone().sum().into_scalar::<f64>().into()
    }
}

/// The whole test model: tanh layers, and a last layer with the loss.
#[derive(Module, Debug)]
pub struct Mlp {
    pub layers: Vec<Layer>,
    pub error: Error,
}

/// Returns the CPU device on which the tests run.
pub fn device() -> Device {
    Device::flex()
}

impl Mlp {
    /// Creates a test model of `layers` tanh layers and a last layer with the loss, whose parameters depend on the seed
    /// only.
    pub fn new(layers: usize, width: usize, seed: u64) -> Self {
        let device = device().autodiff();
        let linear = |layer: usize| {
            let init = || LinearConfig::new(width, width).init(&device).into();
            seeded(&device, seed.wrapping_mul(1000).wrapping_add(layer as u64), init)
        };
        Self {
            layers: (0..layers).map(|layer| Layer { linear: linear(layer) }).collect(),
            error: Error { linear: linear(layers) },
        }
    }

    /// Returns the bits of every parameter of the test model, in layer order.
    pub fn bits(&self) -> Vec<u32> {
        bits(self)
    }

    /// Returns a batch for the test model that depends on the seed only. All rows count in the loss, or about two of
    /// three if `masked` is set.
    pub fn batch(rows: usize, width: usize, masked: bool, seed: u64) -> (Tensor<2>, Target) {
        let draw = |salt: u64, columns: usize| {
            let values = (0..rows * columns).map(|index| noise(seed ^ salt, index as u64)).collect::<Vec<_>>();
            Tensor::<1>::from_floats(values.as_slice(), &device()).reshape([rows, columns])
        };
        let mask = if masked { draw(3, 1).greater_elem(-0.3).float() } else { Tensor::ones([rows, 1], &device()) };
        // At least the first row counts.
        let mask = mask.slice_fill([0..1, 0..1], 1.0);
        (draw(1, width), (draw(2, width), mask))
    }

    /// Trains the test model with gradient accumulation on one thread, in burn without Stageline, and returns the
    /// trained model.
    pub fn train_plainly(self, micro_batches: usize, batches: &[(Tensor<2>, Target)]) -> Self {
        self.train_plainly_clipped(micro_batches, batches, None).0
    }

    /// Trains the test model without Stageline, with gradients clipped as PyTorch's `clip_grad_norm_` and
    /// `clip_grad_value_` do. Returns the model and the global gradient norm of every step.
    pub fn train_plainly_clipped(
        self,
        micro_batches: usize,
        batches: &[(Tensor<2>, Target)],
        clip: Option<Clip>,
    ) -> (Self, Vec<f64>) {
        self.train_plainly_in_groups(1, micro_batches, batches, clip)
    }

    /// Trains the test model without Stageline, with gradients summed first within groups of micro-batches and then
    /// over the groups. Returns the model and the global gradient norm of every step.
    pub fn train_plainly_in_groups(
        self,
        groups: usize,
        micro_batches: usize,
        batches: &[(Tensor<2>, Target)],
        clip: Option<Clip>,
    ) -> (Self, Vec<f64>) {
        self.train_plainly_by(AdamWConfig::new().init(), groups, micro_batches, batches, clip)
    }

    /// Trains the test model without Stageline by any optimizer of burn, with gradients summed first within groups of
    /// micro-batches and then over the groups. Returns the model and the global gradient norm of every step.
    pub fn train_plainly_by(
        mut self,
        mut optimizer: ModuleOptimizer,
        groups: usize,
        micro_batches: usize,
        batches: &[(Tensor<2>, Target)],
        clip: Option<Clip>,
    ) -> (Self, Vec<f64>) {
        let mut norms = Vec::new();
        for (input, (wanted, mask)) in batches {
            let total = mask.clone().sum().into_scalar::<f32>();
            let mut sums: Vec<_> = (0..groups).map(|_| GradientsAccumulator::new()).collect();
            for (at, rows) in pieces(input.dims()[0], micro_batches).into_iter().enumerate() {
                let part = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, rows.clone()).autodiff();
                let hidden = self.layers.iter().fold(part(input), |hidden, layer| layer.linear.forward(hidden).tanh());
                let difference = (self.error.linear.forward(hidden) - part(wanted)) * part(mask);
                let loss = (difference.clone() * difference).sum() / 2.0;
                let gradients = (loss / total).backward();
                let sum = &mut sums[at * groups / micro_batches];
                sum.accumulate(&self, GradientsParams::from_grads(gradients, &self));
            }
            let mut sums: Vec<_> = sums.into_iter().map(|mut sum| sum.grads()).collect();
            let squares =
                |gradient: &Tensor<2>| gradient.to_data().iter::<f64>().map(|value| value * value).sum::<f64>();
            let mut clipped = GradientsParams::new();
            let (mut each, mut linears) =
                (Vec::new(), self.layers.iter().map(|layer| &layer.linear).collect::<Vec<_>>());
            linears.push(&self.error.linear);
            for linear in linears {
                let take = |sum: &mut GradientsParams| sum.remove::<2>(linear.weight.id).unwrap();
                let weight = sums.iter_mut().map(take).reduce(Tensor::add).unwrap();
                let take = |sum: &mut GradientsParams| sum.remove::<1>(linear.bias.as_ref().unwrap().id).unwrap();
                let bias = sums.iter_mut().map(take).reduce(Tensor::add).unwrap();
                each.push((linear.weight.id, weight.clone(), squares(&weight)));
                let bias = bias.unsqueeze::<2>();
                each.push((linear.bias.as_ref().unwrap().id, bias.clone(), squares(&bias)));
            }
            let norm = each.iter().map(|(_, _, squares)| squares).sum::<f64>().sqrt();
            norms.push(norm);
            for (index, (id, gradient, _)) in each.into_iter().enumerate() {
                let gradient = match clip {
                    Some(Clip::GlobalNorm(max)) if max / (norm + 1e-6) < 1.0 => gradient * (max / (norm + 1e-6)),
                    Some(Clip::Value(max)) => gradient.clamp(-max, max),
                    _ => gradient,
                };
                // The list alternates between weights and biases.
                if index % 2 == 0 {
                    clipped.register(id, gradient);
                } else {
                    clipped.register(id, gradient.flatten::<1>(0, 1));
                }
            }
            self = optimizer.step(LEARNING_RATE, self, clipped);
        }
        (self, norms)
    }

    /// Returns the builder of a pipeline of the test model with `stages` stages, over which the layers are spread as
    /// evenly as possible.
    pub fn split(self, stages: usize, config: &StageConfig) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
        let cuts = pieces(self.layers.len() + 1, stages);
        let mut layers = self.layers.into_iter();
        let mut chain = Pipeline::builder();
        for cut in &cuts[..stages - 1] {
            chain = chain.stage(layers.by_ref().take(cut.len()).collect::<Vec<_>>(), config.clone());
        }
        chain.loss((layers.collect::<Vec<_>>(), self.error), config.clone())
    }

    /// Trains the test model as a pipeline with the stages and settings of `cut`, and returns the trained model.
    ///
    /// # Errors
    /// Returns an error if the pipeline cannot be built.
    pub fn train_cut(self, cut: &Cut, batches: &[(Tensor<2>, Target)]) -> Result<Self, BuildError> {
        Ok(self.train_cut_clipped(cut, batches)?.0)
    }

    /// Trains the test model as a pipeline with the stages and settings of `cut`. Returns the model and the outcome of
    /// every step: updated, with the gradient norm, or skipped.
    ///
    /// # Errors
    /// Returns an error if the pipeline cannot be built.
    pub fn train_cut_clipped(
        self,
        cut: &Cut,
        batches: &[(Tensor<2>, Target)],
    ) -> Result<(Self, Vec<Update>), BuildError> {
        let mut builder = self.split(cut.stages, &config()).micro_batches(cut.micro_batches);
        builder = builder.schedule(cut.schedule);
        if let Some(capacity) = cut.capacity {
            builder = builder.channel_capacity(capacity);
        }
        if let Some(clip) = cut.clip {
            builder = builder.clip(clip);
        }
        let mut pipeline = builder.build()?;
        let step = |(input, target): &(Tensor<2>, Target)| pipeline.step(Batch::new(input.clone(), target.clone()));
        let updates = batches.iter().map(step).map(|report| report.unwrap().update).collect();
        Ok((Self::join(pipeline.into_modules()), updates))
    }

    /// Joins the stage modules of a pipeline of the test model, which [`split`](Self::split) made, to the whole model.
    pub fn join(mut modules: Modules) -> Self {
        let last = modules.stages() - 1;
        let mut layers = Vec::new();
        for stage in 0..last {
            layers.extend(modules.take::<Vec<Layer>>(stage).unwrap());
        }
        let (rest, error) = modules.take::<(Vec<Layer>, Error)>(last).unwrap();
        layers.extend(rest);
        Self { layers, error }
    }
}

/// The number of stages, the schedule and the settings of a pipeline of the test model.
pub struct Cut {
    pub stages: usize,
    pub micro_batches: usize,
    pub schedule: &'static (dyn Schedule + Sync),
    pub capacity: Option<usize>,
    pub clip: Option<Clip>,
}

impl Cut {
    /// Returns the settings of a 1F1B pipeline of the test model, with the default channel capacity and without
    /// clipping.
    pub fn new(stages: usize, micro_batches: usize) -> Self {
        Self { stages, micro_batches, schedule: &OneFOneB, capacity: None, clip: None }
    }
}

/// Returns the configuration of a test pipeline's stage on the CPU with AdamW.
pub fn config() -> StageConfig {
    StageConfig::new(device(), AdamWConfig::new().init(), LEARNING_RATE)
}

/// Returns the bits of every float parameter of a module, in the order in which burn visits the parameters.
pub fn bits<M: Module>(module: &M) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
        }
    }
    let mut bits = Bits(Vec::new());
    module.visit(&mut bits);
    bits.0
}

/// Divides the row numbers from 0 to `rows` into `count` ranges whose lengths differ by at most one, the longer ranges
/// first.
pub fn pieces(rows: usize, count: usize) -> Vec<std::ops::Range<usize>> {
    let mut start = 0;
    let piece = |index| {
        let length = (rows + count - 1 - index) / count;
        start += length;
        start - length..start
    };
    (0..count).map(piece).collect()
}

/// Returns a pseudo-random number in [-1, 1): a hash (SplitMix64) of a seed and an index, so that concurrent tests do
/// not share a random generator.
pub fn noise(seed: u64, index: u64) -> f32 {
    let mut value = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((value ^ (value >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Runs a test in a thread and returns its result. Panics if the test takes longer than a minute, so that a hang is a
/// failure. The limit does not test speed.
pub fn within_a_minute<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(run()));
    match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(RecvTimeoutError::Disconnected) => panic::resume_unwind(thread.join().unwrap_err()),
    }
}
