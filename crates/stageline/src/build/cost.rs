//! The costs of the layers of a row ([`Costs`]), by which it is cut into stages of equal cost.

use std::time::{Duration, Instant};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use stageline_schedule::balance;

use crate::build::cut::{Cut, CutError};
use crate::model::payload::{Payload, PayloadMapper};
use crate::model::stage::Stage;
use crate::transfer::hand_over::place;
use crate::transfer::leaves::{Leaves, track};
use stageline_nn::counting_flops;

/// The cost of every layer of a model: the layer's parameters, its FLOPs on a sample input and, if measured, its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs(pub(super) Vec<LayerCost>);

/// The cost of one layer of a model: its parameters, its FLOPs, and its time if the time was measured.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerCost {
    /// The name of the layer, such as `blocks.3`.
    pub name: String,
    /// The number of elements in the layer's parameters.
    pub parameters: u64,
    /// The FLOPs of the layer's forward on the sample input, as far as the layers inside it report them
    /// ([`report_flops`](crate::nn::report_flops)).
    pub flops: f64,
    /// The time of the layer's forward and backward on the sample input, the shortest of three measurements; `None` if
    /// the time was not measured.
    pub time: Option<Duration>,
}

impl Costs {
    /// Returns the cost of each layer of the model, from the first layer to the last.
    pub fn layers(&self) -> &[LayerCost] {
        &self.0
    }

    /// Returns the number of elements in the parameters of all layers.
    pub fn parameters(&self) -> u64 {
        self.0.iter().map(|layer| layer.parameters).sum()
    }

    /// Returns the FLOPs of the forwards of all layers on the sample input.
    pub fn flops(&self) -> f64 {
        self.0.iter().map(|layer| layer.flops).sum()
    }

    /// Partitions the model's layers into `stages` stages of consecutive layers such that the cost of the costliest
    /// stage is as low as possible, and returns the partition.
    ///
    /// The cost of a layer is its time if it was measured. Otherwise it is the layer's share of the model's FLOPs plus
    /// its share of the parameters, so that both work and memory are balanced.
    ///
    /// # Errors
    /// Returns [`CutError::Balance`] if there are more stages than layers, or no stages.
    pub fn cut(&self, stages: usize) -> Result<Cut, CutError> {
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        let (parameters, flops) = (self.parameters() as f64, self.flops());
        let weight = |layer: &LayerCost| match layer.time {
            Some(time) => time.as_secs_f64(),
            None => share(layer.parameters as f64, parameters) + share(layer.flops, flops),
        };
        Ok(Cut::of(balance(&self.0.iter().map(weight).collect::<Vec<_>>(), stages)?))
    }
}

/// The method that finds the costs of a model's layers: counting parameters and FLOPs only, or also timing the layers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Way {
    /// Counts each layer's parameters and the FLOPs that its forward reports, and times nothing.
    Count,
    /// Counts each layer's parameters and FLOPs, and also times its forward and backward.
    Measure,
}

/// The number of times that a layer's forward and backward are timed; the shortest time is the layer's cost.
const REPEATS: usize = 3;

/// The state while the costs of a model's layers are found. One layer runs after another, the first on a sample input
/// and each other on the output of the layer before it.
pub(super) struct Costing {
    way: Way,
    device: Device,
    costs: Vec<LayerCost>,
}

impl Costing {
    pub(super) fn new(way: Way, device: Device) -> Self {
        Self { way, device, costs: Vec::new() }
    }

    /// Returns the device on which the layers run while their costs are found.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the costs of all layers that were run so far.
    pub(super) fn into_costs(self) -> Costs {
        Costs(self.costs)
    }

    /// Runs a layer on `input` and records its cost under the name `name`. Returns the layer's output, which is the
    /// next layer's input.
    pub(super) fn add<S: Stage>(&mut self, name: String, layer: S, input: S::Input) -> S::Output {
        let parameters = parameters(&layer);
        let input = place(input, &self.device);
        let (output, flops) = counting_flops(|| layer.valid().forward(input.clone()));
        let is_first = self.costs.is_empty();
        let time = (self.way == Way::Measure).then(|| shortest(|| forward_and_backward(&layer, &input, is_first)));
        self.costs.push(LayerCost { name, parameters, flops, time });
        output
    }
}

/// Calls `run` three times (`REPEATS`), and returns the duration of the shortest call.
fn shortest(run: impl Fn()) -> Duration {
    let time = |_| {
        let began = Instant::now();
        run();
        began.elapsed()
    };
    (0..REPEATS).map(time).min().unwrap_or_default()
}

/// Runs a layer's forward, then its backward from the sum of its float outputs, and waits until the device has
/// finished. The gradient of the input is computed too, except for the first layer of a model (`is_first`).
fn forward_and_backward<S: Stage>(layer: &S, input: &S::Input, is_first: bool) {
    let mut sum = SumOfFloats::default();
    let input = if is_first { track(input.clone()) } else { Leaves::of_input(input.clone()).0 };
    layer.forward(input).map(&mut sum);
    let Some(sum) = sum.0 else { return };
    let gradients = sum.is_tracked().then(|| sum.clone().backward());
    // Reading the sum waits for everything that was enqueued before it.
    drop((gradients, sum.into_data()));
}

/// The sum of all elements of a layer's float outputs, as a scalar from which a backward can start; `None` if there are
/// no float outputs.
#[derive(Default)]
struct SumOfFloats(Option<Tensor<1>>);

impl PayloadMapper for SumOfFloats {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let sum = tensor.clone().sum();
        self.0 = Some(match self.0.take() {
            Some(other) => other + sum,
            None => sum,
        });
        tensor
    }
}

/// Returns the number of elements in a module's float parameters. Parameters that burn has not initialised yet are
/// counted too, and stay uninitialised.
pub(super) fn parameters<M: Module>(module: &M) -> u64 {
    let mut elements = Elements(0);
    module.visit(&mut elements);
    elements.0
}

struct Elements(u64);

impl ModuleVisitor for Elements {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0 += param.lazy_shape().num_elements() as u64;
    }
}
