//! Parameters from a seed, the same ones wherever the model is cut.

use burn::module::Module;
use burn::tensor::Device;
use parking_lot::Mutex;

use crate::builder::Touch;

/// burn's CPU backends draw from one random number generator for the whole process.
static DRAWING: Mutex<()> = Mutex::new(());

/// Makes a module whose parameters depend on `seed` only: seeds the device, calls `init`, and makes every parameter
/// exist before anything else can draw.
///
/// Give every *layer* a seed of its own, so that its parameters do not depend on which layers are made before it.
/// Random numbers that another thread draws outside this function meanwhile do disturb it.
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
    module.visit(&mut Touch);
    module
}
