//! Tests of a mixture of experts, whose routers have an auxiliary loss that travels with the activations and is the
//! second term of the loss.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use stageline::nn::Linear;
use stageline::schedule::{OneFOneB, Schedule, ZbH1};
use stageline::{Batch, Cut, LossStage, Row, Stage, StageConfig, Weight};

use crate::mlp::{Mlp, bits, device, pieces};

const WIDTH: usize = 4;
const BLOCKS: usize = 3;
const ROWS: usize = 11;
const MICRO_BATCHES: usize = 4;
/// The factor of the routers' auxiliary loss in the total loss of the mixture of experts.
const FACTOR: f64 = 0.1;

/// The payload between the stages of the mixture of experts: the activation `[rows, width]`, and the auxiliary loss of
/// the routers so far, summed over the rows, `[1]`.
type Hidden = (Tensor<2>, Tensor<1>);

#[derive(Module, Debug)]
struct First {
    linear: Linear,
}

/// A block of the mixture of experts with a residual connection: a router weights the outputs of the experts for every
/// row.
#[derive(Module, Debug)]
struct Experts {
    enter: Linear,
    router: Linear,
    experts: Vec<Linear>,
}

/// The last stage of the mixture of experts. Its output is the activation `[rows, width]` together with the routers'
/// auxiliary loss.
#[derive(Module, Debug)]
struct Last {
    linear: Linear,
}

fn linear(to: usize, device: &Device) -> Linear {
    LinearConfig::new(WIDTH, to).init(device).into()
}

impl Stage for First {
    type Input = Tensor<2>;
    type Output = Hidden;

    fn forward(&self, input: Tensor<2>) -> Hidden {
        let hidden = self.linear.forward(input);
        let none = hidden.clone().sum() * 0.0;
        (hidden, none)
    }
}

impl Stage for Experts {
    type Input = Hidden;
    type Output = Hidden;

    /// Computes the forward of a mixture-of-experts block, and adds the router's z-loss to the auxiliary loss: the
    /// squared log of the sum of exponentials of the router's logits (Zoph et al., 2022, arXiv:2202.08906, equation 5).
    fn forward(&self, (input, auxiliary): Hidden) -> Hidden {
        let inner = self.enter.forward(input.clone()).tanh();
        let logits = self.router.forward(inner.clone());
        let shares = softmax(logits.clone(), 1);
        let z = logits.exp().sum_dim(1).log();
        let experts = self.experts.iter().enumerate();
        let mixed =
            experts.map(|(at, expert)| expert.forward(inner.clone()).tanh() * shares.clone().slice_dim(1, at..at + 1));
        let mixed = mixed.reduce(|sum, next| sum + next).expect("there are experts");
        (input + mixed, auxiliary + (z.clone() * z).sum())
    }
}

impl Stage for Last {
    type Input = Hidden;
    type Output = Hidden;

    fn forward(&self, (input, auxiliary): Hidden) -> Hidden {
        (self.linear.forward(input), auxiliary)
    }
}

impl LossStage for Last {
    type Target = Tensor<2>;

    fn loss(&self, (output, auxiliary): Hidden, target: Tensor<2>) -> Tensor<1> {
        let difference = output - target;
        Tensor::cat(vec![(difference.clone() * difference).sum(), auxiliary * FACTOR], 0)
    }

    fn weight(&self, target: &Tensor<2>) -> Weight {
        let rows = target.dims()[0] as f64;
        [rows, rows].into()
    }
}

fn row() -> Row<First, Experts, Last> {
    let experts = |_, device: &Device| Experts {
        enter: linear(WIDTH, device),
        router: linear(3, device),
        experts: (0..3).map(|_| linear(WIDTH, device)).collect(),
    };
    Row::new(|d| First { linear: linear(WIDTH, d) }, BLOCKS, experts, |d| Last { linear: linear(WIDTH, d) }).seed(3)
}

fn batch(step: u64) -> (Tensor<2>, Tensor<2>) {
    let (input, (target, _)) = Mlp::batch(ROWS, WIDTH, false, step);
    (input, target)
}

/// Trains the mixture of experts in a training loop without Stageline, and returns the bits of its parameters and the
/// auxiliary loss of each step.
fn plainly() -> (Vec<u32>, Vec<f64>) {
    let (mut model, mut optimizer): (_, ModuleOptimizer) = (row().init(&device()), AdamWConfig::new().init());
    let mut auxiliary = Vec::new();
    for step in 0..3 {
        let (input, target) = batch(step);
        let (mut sum, mut second) = (GradientsAccumulator::new(), 0.0);
        for rows in pieces(ROWS, MICRO_BATCHES) {
            let part = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, rows.clone()).autodiff();
            let losses = model.loss_of(part(&input), part(&target));
            second += losses.clone().slice_dim(0, 1..2).into_scalar::<f64>();
            let gradients = (losses / ROWS as f64).sum().backward();
            sum.accumulate(&model, GradientsParams::from_grads(gradients, &model));
        }
        auxiliary.push(second / ROWS as f64);
        model = optimizer.step(0.01, model, sum.grads());
    }
    (bits(&model), auxiliary)
}

#[test]
fn experts_with_an_auxiliary_loss_have_the_bits_of_a_plain_loop() {
    let (expected, auxiliary) = plainly();
    for (cut, schedule) in
        [("0", &OneFOneB as &(dyn Schedule + Sync)), ("0,2", &OneFOneB), ("0,1,4", &OneFOneB), ("0,3", &ZbH1)]
    {
        let cut: Cut = cut.parse().unwrap();
        let config = || StageConfig::new(device(), AdamWConfig::new().init(), 0.01);
        let builder = row().pipeline(&cut, (0..cut.stages()).map(|_| config())).unwrap();
        let mut pipeline = builder.micro_batches(MICRO_BATCHES).schedule(schedule).build().unwrap();
        for (step, expected) in auxiliary.iter().enumerate() {
            let (input, target) = batch(step as u64);
            let report = pipeline.step(Batch::new(input, target)).unwrap();
            assert!((report.terms[1].loss - expected).abs() < 1e-6 * expected, "{cut}, step {step}");
            assert_eq!(report.loss, report.terms[0].loss + report.terms[1].loss);
        }
        let model = row().join(pipeline.into_modules()).unwrap();
        assert!(bits(&model) == expected, "{cut}, {}", schedule.name());
    }
}
