//! The costs of the layers of a row ([`Costs`]), by which it is cut into stages of equal cost.

use std::time::{Duration, Instant};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Int, Tensor};
use stageline_schedule::balance;

use crate::build::cut::{Cut, CutError};
use crate::model::payload::{Payload, PayloadMapper};
use crate::model::stage::Stage;
use crate::transfer::hand_over::place;
use crate::transfer::leaves::track;
use stageline_nn::counting_flops;

/// The costs of all layers of a row, for one sample input.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs(pub(super) Vec<LayerCost>);

/// The cost of one layer of a row.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerCost {
    /// The name of the layer, such as `blocks.3`.
    pub name: String,
    /// The number of elements in the layer's parameters.
    pub parameters: u64,
    /// The FLOPs of the layer's forward of the sample input, as far as its layers report them
    /// ([`report_flops`](crate::nn::report_flops)).
    pub flops: f64,
    /// The time of the layer's forward and backward of the sample input; `None` if it was not measured.
    pub time: Option<Duration>,
}

impl Costs {
    /// Returns the cost of each layer, in the order of the row.
    pub fn layers(&self) -> &[LayerCost] {
        &self.0
    }

    /// Returns the number of elements in the parameters of all layers.
    pub fn parameters(&self) -> u64 {
        self.0.iter().map(|layer| layer.parameters).sum()
    }

    /// Returns the FLOPs of the forward of all layers for the sample input.
    pub fn flops(&self) -> f64 {
        self.0.iter().map(|layer| layer.flops).sum()
    }

    /// Cuts the row into stages such that the largest cost of a stage is the least possible.
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
        Ok(Cut::from(balance(&self.0.iter().map(weight).collect::<Vec<_>>(), stages)?))
    }
}

/// The way in which the costs of layers are found.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Way {
    /// The FLOPs that the layers report are counted.
    Count,
    /// The FLOPs are counted, and forwards and backwards are timed.
    Measure,
}

/// The number of times that a forward and backward is measured; the shortest time counts.
const REPEATS: usize = 3;

/// Finds the costs of one layer after another. Layers with the same parameter shapes count as equal and run once.
pub(super) struct Costing {
    way: Way,
    device: Device,
    costs: Vec<LayerCost>,
    /// The shapes of the parameters of each layer that has run.
    ran: Vec<(Shapes, usize)>,
}

/// The shapes of all tensors of a module, in its order.
#[derive(Default, PartialEq)]
struct Shapes(Vec<Vec<usize>>);

impl Costing {
    pub(super) fn new(way: Way, device: Device) -> Self {
        Self { way, device, costs: Vec::new(), ran: Vec::new() }
    }

    /// Returns the device on which the layers run.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the costs of all layers so far.
    pub(super) fn into_costs(self) -> Costs {
        Costs(self.costs)
    }

    /// Adds the cost of a layer, and returns its output for the sample input. A block equal to an earlier one returns
    /// its input, which has the shape of its output.
    pub(super) fn add_block<S: Stage<Input = H, Output = H>, H: Payload>(
        &mut self,
        name: String,
        block: S,
        input: H,
    ) -> H {
        let shapes = Shapes::of(&block);
        match self.ran.iter().find(|(ran, _)| *ran == shapes) {
            Some(&(_, same)) => {
                self.costs.push(LayerCost { name, ..self.costs[same].clone() });
                input
            }
            None => {
                self.ran.push((shapes, self.costs.len()));
                self.add(name, block, input)
            }
        }
    }

    /// Adds the cost of a layer, and returns its output for the sample input.
    pub(super) fn add<S: Stage>(&mut self, name: String, layer: S, input: S::Input) -> S::Output {
        let parameters = Shapes::of(&layer).elements();
        let input = place(input, &self.device);
        let (output, flops) = counting_flops(|| layer.valid().forward(input.clone()));
        let time = (self.way == Way::Measure).then(|| shortest(|| forward_and_backward(&layer, &input)));
        self.costs.push(LayerCost { name, parameters, flops, time });
        output
    }
}

/// Returns the shortest time of several calls of `run`.
fn shortest(run: impl Fn()) -> Duration {
    let time = |_| {
        let began = Instant::now();
        run();
        began.elapsed()
    };
    (0..REPEATS).map(time).min().unwrap_or_default()
}

/// Runs a layer's forward and its backward from the sum of its float outputs, and waits for the device.
fn forward_and_backward<S: Stage>(layer: &S, input: &S::Input) {
    let mut sum = SumOfFloats::default();
    layer.forward(track(input.clone())).map(&mut sum);
    if let Some(sum) = sum.0.filter(Tensor::is_tracked) {
        let gradients = sum.clone().backward();
        // Reading the sum waits for everything that was enqueued before it.
        drop((gradients, sum.into_data()));
    }
}

/// The sum of all float tensors of a payload.
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
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
}

impl Shapes {
    /// Returns the shapes of a module's tensors, without initialising lazy ones.
    fn of<M: Module>(module: &M) -> Self {
        let mut shapes = Self::default();
        module.visit(&mut shapes);
        shapes
    }

    fn elements(&self) -> u64 {
        self.0.iter().map(|shape| shape.iter().product::<usize>() as u64).sum()
    }
}

impl ModuleVisitor for Shapes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.lazy_shape().as_slice().to_vec());
    }
}
