//! The operations that a layer declares ([`Operation`]), so that a caller can find out before a forward pass which of
//! them a device's kernels cannot compute.

use burn::tensor::{DType, Device};

use crate::forward::fallback::Fallback;
#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::kernels::interface::obstacle;

/// The names of layers' operations, such as `causal attention`, in messages to the user.
pub mod name {
    pub const CAUSAL_ATTENTION: &str = "causal attention";
    pub const CROSS_ENTROPY: &str = "cross-entropy";
    pub const GELU: &str = "GELU";
    pub const LAYER_NORM: &str = "layer normalisation";
    pub const RMS_NORM: &str = "RMS normalisation";
    pub const ROTARY: &str = "rotary embedding";
    pub const SWIGLU: &str = "SwiGLU";
}

/// An operation of a layer, such as causal attention, that this crate's kernels can compute. A layer lists its
/// operations, so that a caller can check a device for them before training.
///
/// [`fallback`](Self::fallback) then tells, without a forward pass, whether the device falls back to burn's own
/// operations, or to an attention that stores its score matrix.
///
/// ```
/// use burn::tensor::{DType, Device};
/// use stageline_nn::Operation;
///
/// let attention = Operation::causal_attention(64);
/// assert!(attention.fallback(&Device::flex(), DType::F32).is_none());
/// assert!(attention.fallback(&Device::flex(), DType::BF16).is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    name: &'static str,
    /// Number of elements of an attention head (the head dimension); `None` for operations other than attention.
    head_size: Option<usize>,
    /// Path of the operation's layer in its stage, such as `1.3`; empty for a layer that is not in a sequence.
    layer: String,
}

impl Operation {
    fn named(name: &'static str) -> Self {
        Self { name, head_size: None, layer: String::new() }
    }

    /// Returns the operation that a layer declares if it calls [`gelu`](crate::gelu()) or
    /// [`gelu_tanh`](crate::gelu_tanh).
    pub fn gelu() -> Self {
        Self::named(name::GELU)
    }

    /// Returns the operation that a layer declares if it calls [`swiglu`](crate::swiglu()).
    pub fn swiglu() -> Self {
        Self::named(name::SWIGLU)
    }

    /// Returns the operation that a layer declares if it contains a [`LayerNorm`](crate::LayerNorm).
    pub fn layer_norm() -> Self {
        Self::named(name::LAYER_NORM)
    }

    /// Returns the operation that a layer declares if it contains an [`RmsNorm`](crate::RmsNorm).
    pub fn rms_norm() -> Self {
        Self::named(name::RMS_NORM)
    }

    /// Returns the operation that a layer declares if it calls [`join_rotated`](crate::join_rotated) (rotary position
    /// embedding).
    pub fn rotary_embedding() -> Self {
        Self::named(name::ROTARY)
    }

    /// Returns the operation that a layer declares if it calls [`causal_attention`](crate::causal_attention()) with
    /// heads of `head_size` elements.
    pub fn causal_attention(head_size: usize) -> Self {
        Self { head_size: Some(head_size), ..Self::named(name::CAUSAL_ATTENTION) }
    }

    /// Returns the operation that a layer declares if it calls [`cross_entropy`](crate::cross_entropy()).
    pub fn cross_entropy() -> Self {
        Self::named(name::CROSS_ENTROPY)
    }

    /// Prepends `index`, the zero-based index of a layer in its sequence, to the operation's layer path, and returns
    /// the operation. For example, the path `3` becomes `1.3`. A sequence of layers calls this function for the
    /// operations of each of its layers.
    #[must_use]
    pub fn in_layer(self, index: usize) -> Self {
        let layer = if self.layer.is_empty() { index.to_string() } else { format!("{index}.{}", self.layer) };
        Self { layer, ..self }
    }

    /// Checks whether a device's kernels can compute this operation in the dtype `dtype`. If not, returns a
    /// [`Fallback`] with the operation, its layer and the reason. Returns `None` if they can, or if this crate was
    /// built without the device's backend.
    ///
    /// The tensors of a forward pass can give further reasons, such as tensors of several dtypes.
    pub fn fallback(&self, device: &Device, dtype: DType) -> Option<Fallback> {
        let dtype = match dtype {
            // The loss casts logits in half precision to f32.
            DType::BF16 | DType::F16 if self.name == name::CROSS_ENTROPY => DType::F32,
            _ => dtype,
        };
        let reason = obstacle(device, dtype, self.head_size)?;
        Some(Fallback { operation: self.name, layer: self.layer.clone(), reason })
    }
}

#[cfg(not(any(feature = "flex", feature = "gpu", feature = "remote")))]
fn obstacle(_: &Device, _: DType, _: Option<usize>) -> Option<crate::forward::fallback::Reason> {
    None
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::Param;
    use burn::nn::{LayerNormConfig, RmsNormConfig};
    use burn::tensor::{FloatDType, Int, Tensor};

    use super::*;
    use crate::{
        LayerNorm, RmsNorm, RotaryAngles, causal_attention, cross_entropy, finding_fallbacks, gelu, join_rotated,
        swiglu,
    };

    fn all() -> [Operation; 7] {
        [
            Operation::gelu(),
            Operation::swiglu(),
            Operation::layer_norm(),
            Operation::rms_norm(),
            Operation::rotary_embedding(),
            Operation::causal_attention(4),
            Operation::cross_entropy(),
        ]
    }

    #[test]
    fn declared_operations_fall_back_as_in_a_forward() {
        let device = Device::flex();
        let ones = || Tensor::<3>::ones([1, 4, 12], &device).cast(FloatDType::F64);
        let scale = || Param::from_tensor(Tensor::<1>::ones([12], &device).cast(FloatDType::F64));
        let mut layer_norm = LayerNorm::init(&LayerNormConfig::new(12).with_bias(false), &device);
        let mut rms_norm = RmsNorm::init(&RmsNormConfig::new(12), &device);
        (layer_norm.gamma, rms_norm.gamma) = (scale(), scale());
        let (_, noted) = finding_fallbacks(|| {
            let hidden = rms_norm.forward(layer_norm.forward(swiglu(gelu(ones()), ones())));
            let part = |first: usize| hidden.clone().slice_dim(2, first..first + 4);
            let joined = join_rotated(part(0), part(4), part(8), &RotaryAngles::with_base(100.0, 4), 0);
            let attended = causal_attention(joined, 1);
            cross_entropy(attended.reshape([4, 4]), Tensor::<1, Int>::zeros([4], &device))
        });
        let declared = all().map(|operation| operation.fallback(&device, DType::F64).unwrap());
        assert_eq!(noted, declared);
        assert!(all().iter().all(|operation| operation.fallback(&device.clone().autodiff(), DType::F32).is_none()));
        let in_bf16: Vec<_> = all().iter().filter_map(|operation| operation.fallback(&device, DType::BF16)).collect();
        assert_eq!(in_bf16.len(), 6, "the loss casts its logits to f32: {in_bf16:?}");
    }

    #[test]
    fn an_operation_has_the_path_of_its_layer() {
        let operation = Operation::gelu().in_layer(3).in_layer(1);
        assert_eq!(operation.fallback(&Device::flex(), DType::F64).unwrap().layer, "1.3");
    }
}
