//! Finds the fallbacks of a forward pass: operations that run without this crate's kernels, and so more slowly, and
//! attention that stores its score matrix, and so needs more memory than FlashAttention.

use std::cell::RefCell;
use std::fmt;

use burn::tensor::DType;

use crate::forward::layer_path::layer_path;
use crate::forward::thread_scope::collecting;

/// An operation that runs slower, or needs more memory, than with this crate's kernels, and the reason. Either burn's
/// own operations compute it, or attention stores its score matrix because its heads are too large for the
/// FlashAttention kernels.
///
/// ```
/// use stageline_nn::{Fallback, Reason};
///
/// fn is_cured_by_a_cast(fallback: &Fallback) -> bool {
///     matches!(fallback.reason, Reason::Type(_) | Reason::Types(_))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Name of the operation that falls back to a slower or more memory-hungry implementation, such as `causal
    /// attention`.
    pub operation: &'static str,
    /// Path of the operation's layer in its stage, in the form of burn's parameter paths: `1.3` is layer 3 inside layer
    /// 1, both counted from 0. Empty for a stage that is not a sequence of layers.
    pub layer: String,
    /// Why the operation falls back to a slower or more memory-hungry implementation.
    pub reason: Reason,
}

/// Why an operation falls back to a slower or more memory-hungry implementation. `Display` says which implementation
/// that is, and how to avoid the fallback or lower its cost. If it cannot be avoided on the device, the alternate form
/// (`{:#}`) advises using another device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The device's kernels do not support the dtype of the operation's tensors, such as bf16 on a CPU. Use f32
    /// instead.
    Type(DType),
    /// The operation's tensors have different dtypes (listed here), but a kernel needs a single one. Cast the tensors
    /// to one dtype.
    Types(Vec<DType>),
    /// burn's own gradient checkpointing is on, which the kernels do not support. Turn it off, and use
    /// [`Recompute`](crate::Recompute) instead.
    GradientCheckpointing,
    /// The operation's tensors are of different backends, or only some of them are on autodiff devices. Move all of
    /// them to one device.
    MixedDevices,
    /// The device is on another host and was opened by burn, so it is unknown which kernels the remote server has. Open
    /// it with `DeviceName::open_all` instead, which queries the server.
    UnknownServer,
    /// Attention stores its score matrix, because its heads are larger than this device's FlashAttention kernels
    /// support. Use smaller heads, unless `largest` is 0.
    LargeHead {
        /// Head dimension of the attention that falls back: the number of elements of one head.
        size: usize,
        /// Largest head dimension that the device's FlashAttention kernels support; 0 if they support none, for example
        /// because the GPU has too little shared memory.
        largest: usize,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BURNS: &str = "is computed by burn's own operations, which are slower";
        match self {
            Self::Type(dtype) => {
                write!(f, "{BURNS}: the kernels of this device take no elements of the type {dtype:?}; use f32")
            }
            Self::Types(types) => write!(f, "{BURNS}: its tensors have the types {types:?}; cast them to one type"),
            Self::GradientCheckpointing => write!(
                f,
                "{BURNS}: burn's own gradient checkpointing is on; turn it off, and recompute by `Recompute` instead"
            ),
            Self::MixedDevices => write!(
                f,
                "{BURNS}: its tensors are of different backends, or only some are on autodiff devices; move all to one \
                 device"
            ),
            Self::UnknownServer => write!(
                f,
                "{BURNS}: the kernels of the device's server are not known; open the device by `DeviceName::open_all`"
            ),
            Self::LargeHead { largest: 0, .. } => {
                let remedy = match f.alternate() {
                    true => "use another device",
                    false => {
                        "recompute attention by `Recompute::Selective` to keep its scores only in its own backward"
                    }
                };
                write!(
                    f,
                    "stores its scores, whose memory grows with the square of the length: this device has too few \
                     threads or too little shared memory for the kernels that store none, for heads of any size; {remedy}"
                )
            }
            Self::LargeHead { size, largest } => write!(
                f,
                "stores its scores, whose memory grows with the square of the length: heads of {size} elements are larger \
                 than {largest}, the most for which this device stores none; use smaller heads to save this memory"
            ),
        }
    }
}

thread_local! {
    /// Fallbacks of this thread's forward pass so far: operations that run slower, or need more memory, than with this
    /// crate's kernels. `None` outside [`finding_fallbacks`].
    static FOUND: RefCell<Option<Vec<Fallback>>> = const { RefCell::new(None) };
}

/// Records a fallback of the running forward pass: an operation that runs slower, or needs more memory, than with this
/// crate's kernels (see [`Fallback`]). Does nothing outside [`finding_fallbacks`]. An operation that falls back several
/// times in one layer for one reason is recorded once.
pub fn report_fallback(operation: &'static str, reason: impl FnOnce() -> Reason) {
    FOUND.with_borrow_mut(|found| {
        let Some(found) = found else { return };
        let fallback = Fallback { operation, layer: layer_path(), reason: reason() };
        if !found.contains(&fallback) {
            found.push(fallback);
        }
    });
}

/// Calls `forward` on this thread. Returns the result of `forward`, and the fallbacks of this forward pass: operations
/// that run slower, or need more memory, than with this crate's kernels.
pub fn finding_fallbacks<R>(forward: impl FnOnce() -> R) -> (R, Vec<Fallback>) {
    collecting(&FOUND, Vec::new(), forward)
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "flex")]
    use burn::nn::LayerNormConfig;
    #[cfg(feature = "flex")]
    use burn::tensor::{Device, Int, Tensor};

    use super::*;
    #[cfg(feature = "flex")]
    use crate::{LayerNorm, RotaryAngles, causal_attention, cross_entropy, gelu, join_rotated, swiglu};

    /// Tests the message about attention heads that are too large for the FlashAttention kernels. The message must
    /// propose smaller heads only on a device that has kernels for smaller heads.
    #[test]
    fn attention_that_stores_its_scores_is_reported_with_a_remedy_that_exists() {
        let text = |largest| Reason::LargeHead { size: 264, largest }.to_string();
        assert!(text(256).contains("larger than 256") && text(256).contains("use smaller heads"), "{}", text(256));
        assert!(text(0).contains("`Recompute::Selective`") && !text(0).contains("smaller heads"), "{}", text(0));
        let avoided = format!("{:#}", Reason::LargeHead { size: 264, largest: 0 });
        assert!(avoided.ends_with("for heads of any size; use another device"), "{avoided}");
    }

    #[test]
    fn an_operation_is_noted_once_and_only_while_somebody_looks() {
        let fall_back = || report_fallback("gelu", || Reason::Type(DType::F64));
        fall_back();
        let ((), found) = finding_fallbacks(|| {
            fall_back();
            fall_back();
        });
        let expected = Fallback { operation: "gelu", layer: String::new(), reason: Reason::Type(DType::F64) };
        assert_eq!(found, [expected]);
    }

    /// Runs a small model on a device and returns its cross-entropy loss. The model uses six operations that this crate
    /// has kernels for, such as GELU and causal attention.
    #[cfg(feature = "flex")]
    fn forward(device: &Device) -> Vec<f32> {
        let values: Vec<_> = (0..48).map(|at| (at as f32 * 0.7).sin()).collect();
        let input: Tensor<3> = Tensor::<1>::from_floats(values.as_slice(), device).reshape([1, 4, 12]);
        let norm = LayerNorm::init(&LayerNormConfig::new(12), device);
        let hidden = norm.forward(gelu(swiglu(input.clone(), input)));
        let part = |first: usize| hidden.clone().slice_dim(2, first..first + 4);
        let joined = join_rotated(part(0), part(4), part(8), &RotaryAngles::with_base(100.0, 4), 0);
        let attended = causal_attention(joined, 1);
        let targets = Tensor::<1, Int>::from_ints([0, 3, 2, 1], device);
        cross_entropy(attended.reshape([4, 4]), targets).into_data().iter::<f32>().collect()
    }

    /// Tests that burn's own gradient checkpointing is reported as the reason if no kernel of this crate computes a
    /// model's operations. Without this checkpointing, kernels must compute all operations, in training and in
    /// evaluation.
    #[test]
    #[cfg(feature = "flex")]
    fn burns_gradient_checkpointing_is_noted_for_every_operation() {
        let device = Device::flex();
        let (expected, none) = finding_fallbacks(|| forward(&device.clone().autodiff()));
        assert!(none.is_empty(), "{none:?}");
        let (evaluated, none) = finding_fallbacks(|| forward(&device));
        assert_eq!((evaluated, none), (expected.clone(), Vec::new()));
        let (found, noted) = finding_fallbacks(|| forward(&device.clone().autodiff().gradient_checkpointing()));
        assert!((found[0] - expected[0]).abs() < 1e-4, "{found:?}, by the kernels {expected:?}");
        let operations: Vec<_> = noted.iter().map(|fallback| fallback.operation).collect();
        let all = ["SwiGLU", "GELU", "layer normalisation", "rotary embedding", "causal attention", "cross-entropy"];
        assert_eq!(operations, all);
        assert!(noted.iter().all(|fallback| fallback.reason == Reason::GradientCheckpointing), "{noted:?}");
    }

    #[test]
    #[cfg(feature = "flex")]
    fn inputs_with_and_without_autodiff_in_one_operation_are_noted() {
        let plain = Tensor::<2>::ones([2, 3], &Device::flex());
        let (_, noted) = finding_fallbacks(|| swiglu(plain.clone(), plain.clone().autodiff()));
        assert_eq!(noted, [Fallback { operation: "SwiGLU", layer: String::new(), reason: Reason::MixedDevices }]);
    }

    #[test]
    fn a_search_inside_a_search_ends_neither() {
        let fall_back = |operation| report_fallback(operation, || Reason::Type(DType::F64));
        let ((), found) = finding_fallbacks(|| {
            fall_back("before");
            let ((), inside) = finding_fallbacks(|| fall_back("inside"));
            assert_eq!(inside.len(), 1);
            fall_back("after");
        });
        assert_eq!(found.iter().map(|found| found.operation).collect::<Vec<_>>(), ["before", "after"]);
    }
}
