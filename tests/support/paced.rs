//! A stage whose forwards and backwards sleep for a given time instead of computing, and so use no core: threads,
//! channels and transfers are real.

use std::hint::spin_loop;
use std::thread::sleep;
use std::time::{Duration, Instant};

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Backend, Flex};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor};
use stageline::nn::{Deferred, put_off};
use stageline::{LossStage, Stage, Weight};

/// A stage that adds a parameter to its input, and whose forwards and backwards sleep until given durations have
/// passed.
#[derive(Module, Debug)]
pub struct Paced {
    bias: Param<Tensor<2>>,
    #[module(skip)]
    pace: Pace,
}

/// The durations of a stage's actions on one micro-batch. In each action the stage sleeps that long instead of
/// computing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The time that a stage sleeps, instead of computing, in the forward of one micro-batch.
    pub forward: Duration,
    /// The time that a stage sleeps, instead of computing, for the input gradient of one micro-batch. This is the half
    /// of the stage's backward for which the previous stage waits.
    pub input_gradient: Duration,
    /// The time that a stage sleeps, instead of computing, for the weight gradient of one micro-batch. This is the half
    /// of the stage's backward for which no other stage waits.
    pub weight_gradient: Duration,
}

impl Paced {
    pub fn new(pace: Pace) -> Self {
        Self { bias: Param::from_tensor(Tensor::zeros([1, 1], &Device::flex().autodiff())), pace }
    }
}

impl Stage for Paced {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let until = Instant::now() + self.pace.forward;
        let output = input + self.bias.val();
        // An evaluation runs no backward.
        let output =
            if output.device().is_autodiff() { slow_backward(output, self.pace, self.bias.id) } else { output };
        wait(until);
        output
    }
}

impl LossStage for Paced {
    type Target = ();

    fn loss(&self, output: Tensor<2>, (): ()) -> Tensor<1> {
        output.sum()
    }

    fn weight(&self, (): &()) -> Weight {
        1.0.into()
    }
}

/// The assumed largest time by which a sleeping thread wakes up too late. It is rarely exceeded.
const LATE: Duration = Duration::from_micros(200);

/// Waits until the moment `until`: sleeps for most of the time, and polls the clock at the end, so that the wait ends
/// exactly at that moment.
fn wait(until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    if left > LATE {
        sleep(left - LATE);
    }
    while Instant::now() < until {
        spin_loop();
    }
}

/// Returns the given tensor with a slow backward: its gradient arrives after the time that `pace` sets for the stage's
/// input gradient. If backwards are split, the time of the weight gradient is spent later, in the weight backward of
/// the parameter `id`; otherwise it is added to the time of the input gradient.
fn slow_backward(tensor: Tensor<2>, pace: Pace, id: ParamId) -> Tensor<2> {
    let tensor = tensor.try_into_primitive::<Autodiff<Flex>>().expect("a tensor in a graph on the CPU");
    let (value, node) = tensor.into_parts();
    let slow = match Slow.prepare::<NoCheckpointing>([node]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((pace, id), value),
        OpsKind::UnTracked(prepared) => prepared.finish(value),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(slow)
}

/// An operation of the autodiff graph that makes the backward of a sleeping stage slow: it waits for a given time
/// before it passes its gradient on.
#[derive(Debug)]
struct Slow;

impl<B: Backend> Backward<B, 1> for Slow {
    type State = (Pace, ParamId);

    fn backward(self, ops: Ops<(Pace, ParamId), 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (Pace { input_gradient, weight_gradient, .. }, id) = ops.state;
        let start = Instant::now();
        let later = Deferred::new(vec![id], move |_| wait(Instant::now() + weight_gradient));
        let whole = put_off(later).is_err();
        wait(start + input_gradient + if whole { weight_gradient } else { Duration::ZERO });
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, gradient);
        }
    }
}
