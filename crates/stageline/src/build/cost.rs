//! The costs of a model's layers ([`Costs`]), and the partition of the layers into stages of about equal cost.

use std::hint::black_box;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use stageline_schedule::{Checked, balance, balance_for, balance_with_speeds};

use crate::build::cut::{Cut, CutError};
use crate::model::payload::{Payload, PayloadMapper};
use crate::model::stage::Stage;
use crate::transfer::hand_over::place;
use crate::transfer::leaves::{Leaves, track};
use stageline_nn::counting_flops;

/// The costs of all layers of a model. [`cut`](Self::cut) uses them to partition the layers into balanced stages. The
/// cost of a layer consists of its parameters, its FLOPs on a sample input and, if measured, its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs(pub(super) Vec<LayerCost>);

/// The cost of one layer of a model: its parameters, its FLOPs, and its time if the time was measured.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerCost {
    /// The name of the layer in the model and its checkpoints, such as `blocks.3`.
    pub name: String,
    /// The number of elements (not bytes) in the layer's float parameters.
    pub parameters: u64,
    /// The number of floating-point operations (FLOPs) of the layer's forward pass on the sample input, as far as the
    /// layers inside it report them ([`report_flops`](crate::nn::report_flops)); 0 if they were not counted.
    pub flops: f64,
    /// The time of one forward and one backward pass of the layer together on the sample input: the shortest of three
    /// measurements; `None` if the time was not measured.
    pub time: Option<Duration>,
}

impl Costs {
    /// Returns the cost of each layer of the model, from the first layer to the last.
    pub fn layers(&self) -> &[LayerCost] {
        &self.0
    }

    /// Returns the total number of elements (not bytes) in the float parameters of all layers of the model.
    pub fn parameters(&self) -> u64 {
        self.0.iter().map(|layer| layer.parameters).sum()
    }

    /// Returns the total number of floating-point operations (FLOPs) of one forward pass of all layers on the sample
    /// input.
    pub fn flops(&self) -> f64 {
        self.0.iter().map(|layer| layer.flops).sum()
    }

    /// Partitions the model's layers into `stages` stages of consecutive layers such that the cost of the costliest
    /// stage is as low as possible, and returns the partition.
    ///
    /// The cost of a layer is its time if it was measured. Otherwise it is the layer's fraction of the model's FLOPs
    /// plus its fraction of the parameters, each from 0 to 1, so that both work and memory are balanced.
    ///
    /// # Errors
    /// Returns [`CutError::Balance`] if there are more stages than layers, or no stages.
    pub fn cut(&self, stages: usize) -> Result<Cut, CutError> {
        Ok(Cut::of(balance(&self.weights(), stages)?))
    }

    /// Partitions the model's layers into stages of consecutive layers, one stage for each entry of `speeds`. The time
    /// of the slowest stage is as low as possible. The time of a stage is its cost divided by the speed of its device.
    ///
    /// `speeds` lists the speed of each stage's device, in stage order. Only their ratios count.
    /// [`device_speeds`](crate::device_speeds) measures them. If several stages share a device, divide its speed among
    /// them. The cost of a layer is as in [`cut`](Self::cut).
    ///
    /// # Errors
    /// Returns [`CutError::Speeds`] if there are more stages than layers, or no stages, or if a speed is not a finite
    /// number above 0.
    pub fn cut_for(&self, speeds: &[f64]) -> Result<Cut, CutError> {
        Ok(Cut::of(balance_with_speeds(&self.weights(), speeds)?))
    }

    /// Partitions the model's layers into the stages of a plan with several stages on a worker, such that its simulated
    /// step is short (see [`balance_for`]). `speeds` lists the speed of the device of each stage, in stage order. The
    /// cost of a layer is as in [`cut`](Self::cut).
    ///
    /// # Errors
    /// Returns [`CutError::Speeds`] in the same cases as [`cut_for`](Self::cut_for).
    pub fn cut_of(&self, plan: &Checked, speeds: &[f64]) -> Result<Cut, CutError> {
        Ok(Cut::of(balance_for(plan, &self.weights(), speeds)?))
    }

    /// Returns the cost of each layer as one number: the time in seconds if it was measured. Otherwise it is the
    /// layer's share of the model's FLOPs plus its share of the parameters.
    fn weights(&self) -> Vec<f64> {
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        let (parameters, flops) = (self.parameters() as f64, self.flops());
        let weight = |layer: &LayerCost| match layer.time {
            Some(time) => time.as_secs_f64(),
            None => share(layer.parameters as f64, parameters) + share(layer.flops, flops),
        };
        self.0.iter().map(weight).collect()
    }
}

/// The method by which the costs of a model's layers are found: by counting parameters and FLOPs, or by timing as well.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum CostMethod {
    /// The costs of a model's layers are found by counting: each layer's parameters, and the FLOPs that its forward
    /// reports. Nothing is timed.
    Count,
    /// The costs of a model's layers are found by measuring: parameters and FLOPs are counted, and each layer's forward
    /// and backward are timed.
    Measure,
}

/// The number of times that a layer's forward and backward are timed; the shortest time counts as the layer's time.
const REPEATS: usize = 3;

/// A calculation of the costs of a model's layers, with the costs of the layers that have already run. The layers run
/// one after another: the first on a sample input, and every later layer on the output of the layer before it.
pub(super) struct Costing {
    method: CostMethod,
    device: Device,
    costs: Vec<LayerCost>,
}

impl Costing {
    pub(super) fn new(method: CostMethod, device: Device) -> Self {
        Self { method, device, costs: Vec::new() }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

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
        let time =
            (self.method == CostMethod::Measure).then(|| shortest(|| forward_and_backward(&layer, &input, is_first)));
        self.costs.push(LayerCost { name, parameters, flops, time });
        output
    }
}

/// Returns the duration of the shortest of three calls of `run`.
fn shortest(run: impl Fn()) -> Duration {
    let time = |_| {
        let began = Instant::now();
        run();
        began.elapsed()
    };
    (0..REPEATS).map(time).min().unwrap_or_default()
}

/// Runs a layer's forward and backward, and waits until the device has finished. The backward starts from the sum of
/// all float outputs. It also computes the gradient of the input, except for the first layer of a model (`is_first`).
fn forward_and_backward<S: Stage>(layer: &S, input: &S::Input, is_first: bool) {
    let mut sum = SumOfFloats::default();
    let input = if is_first { track(input.clone()) } else { Leaves::of_input(input.clone()).0 };
    layer.forward(input).map(&mut sum);
    let Some(sum) = sum.0 else { return };
    let gradients = sum.is_tracked().then(|| sum.clone().backward());
    // Reading the sum waits for everything that was enqueued before it. `into_data` would not wait: on some devices its
    // bytes are read when they are used.
    black_box(sum.into_scalar::<f64>());
    drop(gradients);
}

/// A mapper that adds up all float elements of a layer's output. A backward can start from the sum. The value is `None`
/// until the first float tensor is added.
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
    module.num_params() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(times: &[u64]) -> Costs {
        let layer = |(index, milliseconds): (usize, &u64)| LayerCost {
            name: format!("blocks.{index}"),
            parameters: 10,
            flops: 100.0,
            time: Some(Duration::from_millis(*milliseconds)),
        };
        Costs(times.iter().enumerate().map(layer).collect())
    }

    #[test]
    fn a_faster_device_gets_more_of_the_measured_time() {
        let costs = costs(&[2, 2, 2, 2, 2, 2]);
        assert_eq!(costs.cut(2).unwrap().to_string(), "0,3");
        assert_eq!(costs.cut_for(&[1.0, 1.0]).unwrap(), costs.cut(2).unwrap());
        assert_eq!(costs.cut_for(&[1.0, 2.0]).unwrap().to_string(), "0,2");
        assert_eq!(costs.cut_for(&[5.0, 1.0]).unwrap().to_string(), "0,5");
    }

    #[test]
    fn a_speed_that_is_not_positive_is_named_with_its_stage() {
        let error = costs(&[1, 1]).cut_for(&[1.0, 0.0]).unwrap_err().to_string();
        assert!(error.contains("stage 1 is 0"), "{error}");
    }
}
