//! Seeded initialisation: parameters depend only on their layer's seed, not on how the model is partitioned into
//! stages.
//!
//! burn draws lazy parameters at their first use, which may be on any thread. So a seeded initialisation draws these
//! parameters before it returns.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};
use parking_lot::ReentrantMutex;

use crate::params::sending::Sending;
use crate::params::to_device::{fork, is_quantized};
use crate::params::visit::describe;

/// Lock that serialises seeded initialisations, because burn's CPU backends share one random number generator per
/// process. The lock is reentrant, so that a seeded model may contain seeded layers.
static DRAWING: ReentrantMutex<()> = ReentrantMutex::new(());

/// Creates a module whose parameters depend only on `seed`: seeds the device, calls `init`, and initialises every lazy
/// parameter before other code can draw random numbers.
///
/// Give every *layer* its own seed, so that its parameters do not depend on the layers that are created before it.
/// Three things change the result:
///
/// - another thread that draws random numbers outside this function at the same time
/// - a nested call within `init`, which seeds the device again for everything that `init` draws after it
/// - if the device is on another host, another program that draws random numbers on the same server at the same time;
///   [`seeded_on`] draws them on this host
///
/// Building a pipeline also draws random numbers, for parameters that are not initialised yet. It waits until this
/// function has returned, so it does not change the result.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
///
/// let device = Device::flex();
/// let make = || stageline_nn::seeded(&device, 7, || LinearConfig::new(4, 4).init(&device));
/// assert_eq!(make().weight.val().to_data(), make().weight.val().to_data());
/// ```
pub fn seeded<M: Module>(device: &Device, seed: u64, init: impl FnOnce() -> M) -> M {
    let _drawing = DRAWING.lock();
    device.seed(seed);
    let module = init();
    materialize(&module);
    module
}

/// Creates a module on the device `home`, and moves it to `device`. The module's parameters depend only on `seed` (see
/// [`seeded`]). Each parameter is moved before the next one is drawn, so that `home` never stores the whole module.
pub fn seeded_on<M: Module>(home: &Device, device: &Device, seed: u64, init: impl FnOnce() -> M) -> M {
    let _drawing = DRAWING.lock();
    home.seed(seed);
    let device = device.clone().autodiff();
    let mut moving = Moving(Sending::to(device.clone()));
    // The mapper has moved the float parameters. `fork` moves the rest: quantized parameters and tensors that are no
    // parameters.
    let module = fork(init().map(&mut moving), &device);
    moving.0.arrive();
    module
}

/// Calls `run`, which may draw random numbers without a seed. First waits until no other thread runs a seeded
/// initialisation, because concurrent draws would change that initialisation's result.
pub fn unseeded<R>(run: impl FnOnce() -> R) -> R {
    let _drawing = DRAWING.lock();
    run()
}

/// Initialises the lazy parameters of a module immediately; burn would otherwise draw their random values at their
/// first use.
pub fn materialize<M: Module>(module: &M) {
    // `describe` reads the value of each tensor, which initialises a lazy parameter.
    describe(module);
}

/// A mapper that initialises the float parameters of a module and moves each of them to a device. A parameter is moved
/// before the next one is initialised, so that the initialising device never stores the whole module.
struct Moving(Sending);

impl ModuleMapper for Moving {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if is_quantized(&param.val()) { param } else { param.map(|value| self.0.send(value)) }
    }
}
