//! Parameters from a seed, the same ones wherever the model is cut.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Int, Tensor};
use parking_lot::ReentrantMutex;

/// burn's CPU backends draw from one random number generator for the whole process.
static DRAWING: ReentrantMutex<()> = ReentrantMutex::new(());

/// Makes a module whose parameters depend on `seed` only: seeds the device, calls `init`, and makes every parameter
/// exist before anything else can draw.
///
/// Give every *layer* a seed of its own, so that its parameters do not depend on which layers are made before it.
/// Random numbers that another thread draws outside this function meanwhile do disturb it, and so does a call within
/// `init`, which seeds the device anew.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
///
/// let device = Device::flex();
/// let make = || stageline::seeded(&device, 7, || LinearConfig::new(4, 4).init(&device));
/// assert_eq!(make().weight.val().to_data(), make().weight.val().to_data());
/// ```
pub fn seeded<M: Module>(device: &Device, seed: u64, init: impl FnOnce() -> M) -> M {
    let _drawing = DRAWING.lock();
    device.seed(seed);
    let module = init();
    materialize(&module);
    module
}

/// Makes lazy parameters exist: burn draws them at their first use.
pub(crate) fn materialize<M: Module>(module: &M) {
    module.visit(&mut Touch);
}

struct Touch;

impl ModuleVisitor for Touch {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        param.val();
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        param.val();
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        param.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::LinearConfig;

    #[test]
    fn layers_may_be_seeded_within_a_seeded_model() {
        let device = Device::flex();
        let layer = |seed| seeded(&device, seed, || LinearConfig::new(3, 3).init(&device));
        let model = seeded(&device, 1, || vec![layer(2), layer(3)]);
        assert_eq!(model[1].weight.val().to_data(), layer(3).weight.val().to_data());
    }
}
