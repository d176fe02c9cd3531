//! Counts or measures the costs of a row's layers.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};

use crate::build::cost::{Costs, LayerCost};
use crate::build::row::{Row, drawing_device};
use crate::model::payload::{Payload, PayloadMapper};
use crate::model::stage::{LossStage, Stage};
use crate::threads::failure::Failure;
use crate::transfer::hand_over::place;
use crate::transfer::leaves::{Leaves, track};
use crate::update::precision::widened;
use stageline_nn::counting_flops;
use stageline_nn::params::{unseeded, visit_floats};

impl<F, B, L> Row<F, B, L>
where
    F: Stage,
    B: Stage<Input = F::Output, Output = F::Output>,
    L: LossStage<Input = F::Output>,
{
    /// Returns each layer's name and number of parameter elements, with 0 FLOPs and no times. No layer is run, and the
    /// lazy parameters of burn's layers stay uninitialised.
    pub fn sizes(&self) -> Costs {
        let ([first, _, last], device) = (&self.names, drawing_device(None).autodiff());
        unseeded(|| {
            let mut sizes = vec![LayerCost::of_size(first.clone(), &(self.first)(&device))];
            for layer in 1..self.layers() - 1 {
                sizes.push(LayerCost::of_size(self.name_of(layer), &self.of_block(layer, &device)));
            }
            sizes.push(LayerCost::of_size(last.clone(), &(self.last)(&device)));
            Costs(sizes)
        })
    }

    /// Counts each layer's parameters, and the FLOPs that it reports for a forward pass on a sample input. Times are
    /// not measured.
    ///
    /// One layer after another is initialised and run on the CPU, so at most one layer is in memory.
    ///
    /// # Panics
    /// Panics if a layer's forward pass panics on its input; the message names the layer.
    pub fn count(&self, sample: F::Input) -> Costs {
        unseeded(|| self.costs(sample, Costing::new(CostMethod::Count, drawing_device(None))))
    }

    /// Counts each layer's parameters and FLOPs for a sample input, as [`count`](Self::count) does, and also times its
    /// forward and backward pass on `device`.
    ///
    /// # Panics
    /// Panics if a layer's forward or backward pass panics on its input; the message names the layer.
    pub fn measure(&self, sample: F::Input, device: &Device) -> Costs {
        unseeded(|| self.costs(sample, Costing::new(CostMethod::Measure, device.clone().inner())))
    }

    /// Runs the layers one after another on a sample input, and returns their costs. Frozen parameters that the row
    /// creates in a lower precision ([`Row::precision`]) are converted to f32 first.
    fn costs(&self, sample: F::Input, mut costing: Costing) -> Costs {
        let [first, _, last] = &self.names;
        let device = costing.device().clone().autodiff();
        costing.narrow = self.precision.rounded();
        let mut hidden = costing.add(first.clone(), (self.first)(&device), sample);
        for layer in 1..self.layers() - 1 {
            hidden = costing.add(self.name_of(layer), self.of_block(layer, &device), hidden);
        }
        costing.add(last.clone(), (self.last)(&device), hidden);
        costing.into_costs()
    }
}

/// The method that determines the costs of a model's layers: counting parameters and FLOPs only, or timing the layers
/// as well.
#[derive(Clone, Copy, PartialEq)]
enum CostMethod {
    /// Count each layer's parameters and the FLOPs that its forward pass reports, and time nothing.
    Count,
    /// Count each layer's parameters and FLOPs, and also time the layer's forward and backward passes.
    Measure,
}

/// The number of times that a layer's forward and backward passes are timed; the shortest time counts as the layer's
/// time.
const REPEATS: usize = 3;

/// Determines the costs of a model's layers, one layer after another: runs the first layer on a sample input, and every
/// later layer on the output of the layer before it. Collects the costs of the layers that have already run.
struct Costing {
    method: CostMethod,
    device: Device,
    /// The low-precision dtype of frozen parameters that are converted to f32 before a layer runs; `None` if parameters
    /// keep their dtypes.
    narrow: Option<FloatDType>,
    costs: Vec<LayerCost>,
}

impl Costing {
    fn new(method: CostMethod, device: Device) -> Self {
        Self { method, device, narrow: None, costs: Vec::new() }
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn into_costs(self) -> Costs {
        Costs(self.costs)
    }

    /// Runs a layer on `input` and records its cost under the name `name`. Returns the layer's output, which is the
    /// next layer's input. Panics with the layer's name if one of its passes panics.
    fn add<S: Stage>(&mut self, name: String, layer: S, input: S::Input) -> S::Output {
        let size = LayerCost::of_size(name.clone(), &layer);
        let layer = match self.narrow {
            Some(narrow) => widened(layer, narrow),
            None => layer,
        };
        let input = place(input, &self.device);
        let (is_first, is_timed) = (self.costs.is_empty(), self.method == CostMethod::Measure);
        let run = || {
            let (output, flops) = counting_flops(|| layer.valid().forward(input.clone()));
            (output, flops, is_timed.then(|| shortest(|| forward_and_backward(&layer, &input, is_first))))
        };
        let (output, flops, time) = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            panic!("the layer `{name}` failed on the sample input: {}", Failure::of_panic(panic))
        });
        self.costs.push(LayerCost { flops, time, ..size });
        output
    }
}

/// Calls `run` three times and returns the shortest duration.
fn shortest(run: impl Fn()) -> Duration {
    let time = |_| {
        let began = Instant::now();
        run();
        began.elapsed()
    };
    (0..REPEATS).map(time).min().unwrap_or_default()
}

/// Runs a layer's forward and backward passes, and waits until the device has finished. The backward pass starts from
/// the sum of all float outputs. It also computes the gradient of the input, except for the first layer of a model
/// (`is_first`).
fn forward_and_backward<S: Stage>(layer: &S, input: &S::Input, is_first: bool) {
    let mut sum = SumOfFloats::default();
    let input = if is_first { track(input.clone()) } else { Leaves::of_input(input.clone()).0 };
    layer.forward(input).map(&mut sum);
    let Some(sum) = sum.0 else { return };
    let gradients = sum.is_tracked().then(|| sum.clone().backward());
    // Reading the sum waits for everything that was enqueued before it. `into_data` would not wait: on some devices,
    // the bytes are read only when they are used.
    black_box(sum.into_scalar::<f64>());
    drop(gradients);
}

/// Sums all float elements of a layer's output into a scalar from which a backward pass can start. The value is `None`
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

impl LayerCost {
    /// Returns a layer's name and its numbers of parameter elements, with 0 FLOPs and no time. Parameters that burn has
    /// not initialised yet are counted too, and stay uninitialised.
    fn of_size<M: Module>(name: String, layer: &M) -> Self {
        let mut trained = 0;
        visit_floats(layer, |param| {
            if param.is_trained() {
                trained += param.shape().iter().product::<usize>() as u64;
            }
        });
        Self { name, parameters: layer.num_params() as u64, trained, flops: 0.0, time: None }
    }
}
