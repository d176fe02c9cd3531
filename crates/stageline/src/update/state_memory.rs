//! The memory that stores a stage's optimizer state between steps ([`OptimizerState`]): device memory, or host memory
//! (optimizer state offloading).
//!
//! An optimizer steps one parameter after the other. A parameter's state in host memory is copied to the device when
//! this parameter is stepped. The new state is copied back, and freed on the device, before the next parameter is
//! stepped. The values have the same bits in both memories.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use burn::optim::{Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_pack::Scalar;

use crate::device::location::{host, is_host};
use crate::state::convert::read_now;

/// The memory that stores a stage's optimizer state (such as Adam's moments) between steps: its device's memory, or
/// this host's memory (optimizer state offloading).
///
/// [`of`](Self::of) makes an optimizer keep its state in the chosen memory:
///
/// ```
/// use burn::optim::AdamWConfig;
/// # use burn::tensor::Device;
/// use stageline::{OptimizerState, StageConfig};
///
/// let optimizer = OptimizerState::Host.of(AdamWConfig::new().build());
/// let config = StageConfig::new(Device::flex(), optimizer, 1e-3);
/// ```
///
/// The setting does not change the trained parameters by a single bit, and checkpoints do not depend on it: a run may
/// resume with the other value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptimizerState {
    /// Keeps optimizer states in their stage's device memory. This is the default.
    #[default]
    Device,
    /// Keeps optimizer states in this host's memory between steps. A parameter's state is on the stage's device only
    /// while that parameter is stepped. With AdamW in f32, this saves 8 bytes of device memory for each parameter
    /// element, and 16 bytes at the end of a step if [`rollback`](crate::PipelineBuilder::rollback) is on. Every step
    /// copies these 8 bytes to the device and back. On a CPU both memories are the same, so nothing changes.
    ///
    /// The parameters must have the default float dtype of their device, which is f32 unless the program sets another
    /// one. With parameters of another dtype, the first step ends with an error.
    Host,
}

impl OptimizerState {
    /// Returns `optimizer`, wrapped so that it stores its state between steps in the memory `self` (device or host).
    /// Use the result instead of `optimizer` in a [`StageConfig`](crate::StageConfig) or in burn's
    /// `ModuleOptimizer::with_group`.
    ///
    /// `optimizer` must implement burn's trait `Optimizer`, which steps single parameters; the method `build` of burn's
    /// optimizer configurations returns such an optimizer. A `ModuleOptimizer` is not accepted, because burn has no
    /// setting for the memory of its states.
    pub fn of<O: Optimizer>(self, optimizer: O) -> PlacedState<O> {
        PlacedState { optimizer, memory: self }
    }
}

impl fmt::Display for OptimizerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Host => "host",
        })
    }
}

impl FromStr for OptimizerState {
    type Err = OptimizerStateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = [Self::Device, Self::Host].into_iter().find(|memory| memory.to_string() == text);
        named.ok_or_else(|| OptimizerStateError(text.to_owned()))
    }
}

/// The error for a string that is not the name of an [`OptimizerState`]: `device` or `host`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no memory of optimizer states; write `device` or `host`")]
pub struct OptimizerStateError(String);

/// An optimizer that stores its state between steps in the memory of its device or of this host. [`OptimizerState::of`]
/// makes it from another optimizer.
#[derive(Clone)]
pub struct PlacedState<O> {
    optimizer: O,
    memory: OptimizerState,
}

impl<O: Optimizer> Optimizer for PlacedState<O> {
    type State<const D: usize> = KeptState<O::State<D>>;

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<KeptState<O::State<D>>>,
    ) -> (Tensor<D>, Option<KeptState<O::State<D>>>) {
        let device = tensor.device();
        let stays = self.memory == OptimizerState::Device || is_host(&device);
        let state = state.map(|state| state.on(&device));
        let (tensor, state) = self.optimizer.step(lr, tensor, grad, state);
        let kept = |state: O::State<D>| match stays {
            true => KeptState(Form::Tensors(state)),
            false => KeptState::on_host(&state, &device),
        };
        (tensor, state.map(kept))
    }

    fn to_device<const D: usize>(state: KeptState<O::State<D>>, device: &Device) -> KeptState<O::State<D>> {
        KeptState(match state.0 {
            Form::Tensors(state) => Form::Tensors(O::to_device::<D>(state, device)),
            // The bytes stay on the host until the parameter is stepped.
            Form::Bytes(bytes) => Form::Bytes(bytes),
        })
    }
}

/// The optimizer state of one parameter: tensors on a device, or bytes on the host. `S` is the optimizer's own state
/// type, which holds tensors.
#[derive(Clone)]
pub struct KeptState<S>(Form<S>);

#[derive(Clone)]
enum Form<S> {
    Tensors(S),
    Bytes(HostState),
}

/// The optimizer state of one parameter in host memory: its tensors and scalars, each with its field name.
#[derive(Clone)]
struct HostState {
    tensors: Vec<(String, TensorData)>,
    scalars: Vec<(String, Scalar)>,
}

impl<S: RecordState> KeptState<S> {
    /// Copies the optimizer state of one parameter from the device `from` to host memory. Panics if a float tensor of
    /// the state does not have the device's default float dtype, because burn would restore it in that dtype.
    fn on_host(state: &S, from: &Device) -> Self {
        let mut sink = StateSink::default();
        state.state_flatten("", &mut sink);
        let StateSink { tensors, scalars } = sink;
        let default = DType::from(from.settings().float_dtype);
        let copied = |(name, data): (String, TensorData)| {
            let dtype = data.dtype();
            assert!(
                !dtype.is_float() || dtype == default,
                "the optimizer's `{name}` is in {dtype:?}, and burn would restore it in {default:?}, the default of the device; \
                 keep the states of optimizers on their devices"
            );
            (name, read_now(&data))
        };
        let tensors: Vec<_> = tensors.into_iter().map(copied).collect();
        let bytes = tensors.iter().map(|(_, data)| data.as_bytes().len() as u64).sum::<u64>();
        MOVED.set(MOVED.get() + bytes);
        Self(Form::Bytes(HostState { tensors, scalars }))
    }

    /// Returns the optimizer state of one parameter as tensors. A state in host memory is copied to `device`.
    fn on(self, device: &Device) -> S {
        match self.0 {
            Form::Tensors(state) => state,
            Form::Bytes(HostState { tensors, scalars }) => {
                let mut source = StateSource::new(scalars.into_iter().collect());
                tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
                S::state_unflatten("", &mut source, device).expect("a state has the fields that were read from it")
            }
        }
    }
}

impl<S: RecordState> RecordState for KeptState<S> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        match &self.0 {
            Form::Tensors(state) => state.state_flatten(prefix, out),
            Form::Bytes(HostState { tensors, scalars }) => {
                tensors.iter().for_each(|(name, data)| out.push_tensor(prefix, name, data.clone()));
                scalars.iter().for_each(|(name, value)| out.push_scalar(prefix, name, *value));
            }
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        // burn passes its default device, which may differ from the stage's device. The first step moves the state to
        // the stage's device.
        match host() {
            Some(host) => Some(Self(Form::Tensors(S::state_unflatten(prefix, src, &host)?))),
            None => Some(Self::on_host(&S::state_unflatten(prefix, src, device)?, device)),
        }
    }
}

thread_local! {
    /// The number of bytes of optimizer states that this thread has moved from a device to the host.
    static MOVED: Cell<u64> = const { Cell::new(0) };
}

/// Runs the optimizer step `step`. Returns the step's result, and the number of bytes of optimizer states that the step
/// moved from the device to the host.
pub(super) fn counting_moved<R>(step: impl FnOnce() -> R) -> (R, u64) {
    let before = MOVED.get();
    let result = step();
    (result, MOVED.get() - before)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig, MuonConfig,
        RmsPropConfig, SgdConfig,
    };

    use super::*;

    const ROWS: usize = 3;
    const COLUMNS: usize = 4;

    /// Makes five optimizer steps on a matrix, each with a different gradient. If `moves` is true, the optimizer state
    /// is moved to the host after every step. Runs on a GPU do that if they keep the state on the host. Returns the
    /// bits of the matrix after each step, and the bits of the last state.
    fn trained<O: Optimizer>(optimizer: &O, moves: bool) -> Vec<u32> {
        let device = Device::flex();
        let matrix = |step: usize| {
            let values: Vec<f32> =
                (0..ROWS * COLUMNS).map(|at| ((at * 7 + step * 5) % 11) as f32 * 0.3 - 1.4).collect();
            Tensor::<2>::from_data(TensorData::new(values, [ROWS, COLUMNS]), &device)
        };
        let bits = |data: &TensorData| data.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
        let (mut tensor, mut state, mut all) = (matrix(0), None, Vec::new());
        for step in 1..6 {
            let before = state.map(|state: KeptState<O::State<2>>| state.on(&device));
            let (stepped, after) = optimizer.step(0.01, tensor, matrix(step), before);
            tensor = stepped;
            all.extend(bits(&tensor.to_data()));
            let kept = |state: O::State<2>| match moves {
                true => KeptState::on_host(&state, &device),
                false => KeptState(Form::Tensors(state)),
            };
            state = after.map(kept);
        }
        let mut sink = StateSink::default();
        state.expect("every optimizer of burn returns a state").state_flatten("7", &mut sink);
        for (name, data) in &sink.tensors {
            assert!(name.starts_with("7."), "{name}");
            all.extend(bits(data));
        }
        all.extend(sink.scalars.iter().flat_map(|(name, value)| {
            let bits = match *value {
                Scalar::Float(value) => value.to_bits(),
                Scalar::Int(value) => value as u64,
                Scalar::UInt(value) => value,
                Scalar::Bool(value) => value.into(),
            };
            assert!(name.starts_with("7."), "{name}");
            [bits as u32, (bits >> 32) as u32]
        }));
        all
    }

    fn assert_same(name: &str, optimizer: &impl Optimizer) {
        assert!(trained(optimizer, true) == trained(optimizer, false), "{name}");
    }

    #[test]
    fn states_that_go_to_the_host_and_back_change_no_bits_of_any_optimizer() {
        assert_same("AdamW", &AdamWConfig::new().build());
        assert_same("AMSGrad", &AdamWConfig::new().with_amsgrad(true).build());
        assert_same("Adam", &AdamConfig::new().build());
        assert_same("Adan", &AdanConfig::new().build());
        assert_same("Lamb", &LambConfig::new().build());
        assert_same("Lion", &LionConfig::new().build());
        assert_same("Muon", &MuonConfig::new().build());
        assert_same("Adafactor", &AdafactorConfig::new().build());
        assert_same("AdaGrad", &AdaGradConfig::new().build());
        assert_same("RMSProp", &RmsPropConfig::new().build());
        let centered = RmsPropConfig::new().with_centered(true).with_momentum(0.9);
        assert_same("centered RMSProp", &centered.build());
        assert_same("SGD", &SgdConfig::new().build());
        assert_same("SGD with momentum", &SgdConfig::new().with_momentum(Some(MomentumConfig::new())).build());
    }

    #[test]
    fn bytes_that_go_to_the_host_are_counted() {
        let device = Device::flex();
        let ones = || Tensor::<2>::ones([ROWS, COLUMNS], &device);
        let (_, state) = AdamWConfig::new().build().step(0.1, ones(), ones(), None);
        let (kept, moved) = counting_moved(|| KeptState::on_host(&state.unwrap(), &device));
        assert_eq!(moved, 2 * (ROWS * COLUMNS * size_of::<f32>()) as u64);
        let (_, moved) = counting_moved(|| kept.on(&device));
        assert_eq!(moved, 0);
    }

    #[test]
    fn a_state_that_burn_would_restore_in_another_type_is_an_error() {
        let double = || Tensor::<1>::ones([2], (&Device::flex(), DType::F64));
        let (_, state) = AdamWConfig::new().build().step(0.1, double(), double(), None);
        let moved = catch_unwind(AssertUnwindSafe(|| KeptState::on_host(&state.unwrap(), &Device::flex())));
        let message = moved.err().and_then(|panic| panic.downcast::<String>().ok()).expect("it cannot be moved");
        assert!(message.contains("is in F64, and burn would restore it in F32"), "{message}");
    }

    #[test]
    fn every_memory_parses_from_its_name() {
        for memory in [OptimizerState::Device, OptimizerState::Host] {
            assert_eq!(memory.to_string().parse(), Ok(memory));
        }
        let error = "gpu".parse::<OptimizerState>().unwrap_err().to_string();
        assert_eq!(error, "`gpu` is no memory of optimizer states; write `device` or `host`");
    }
}
