//! Payloads ([`Payload`]): the values made of tensors that may cross a boundary between two stages.

use burn::tensor::kind::Basic;
use burn::tensor::quantization::quantized_data_len;
use burn::tensor::{Bool, DType, Int, Shape, Tensor};

/// A value made of tensors that may cross a boundary between stages, or enter the pipeline as part of a batch.
///
/// Tensors of any rank and kind are payloads; so are tuples, arrays, `Vec`s and `Option`s of payloads, and structs for
/// which [`payload!`](crate::payload!) was called. Gradients flow back through float tensors, and not through
/// int and bool tensors.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot cross a stage boundary",
    note = "tensors, tuples, arrays, `Vec` and `Option` of payloads can; for a struct of payloads call \
            `stageline::payload!(Name {{ field, field }})`"
)]
pub trait Payload: Clone + Send + 'static {
    /// Returns the payload (a value made of tensors) with every tensor replaced by the one that `mapper` returns for
    /// it. The tensors are always replaced in the same order.
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self;
}

/// A function that replaces the tensors of a [`Payload`] (a value made of tensors), with one method for each kind of
/// tensor.
pub trait PayloadMapper {
    /// Returns the float tensor that replaces `tensor`, a float tensor of the payload. Both have `D` dimensions; their
    /// sizes may differ.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
    /// Returns the int tensor that replaces `tensor`, an int tensor of the payload. Both have `D` dimensions; their
    /// sizes may differ.
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int>;
    /// Returns the bool tensor that replaces `tensor`, a bool tensor of the payload. Both have `D` dimensions; their
    /// sizes may differ.
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool>;
}

/// Returns the size of a tensor's elements in bytes of memory on its device.
pub(crate) fn bytes_of<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> u64 {
    bytes_of_kind(tensor.dtype(), &tensor.shape()) as u64
}

/// Returns the size in bytes of a tensor of the given element type and shape. The size of a quantized tensor includes
/// its scales.
pub(crate) fn bytes_of_kind(dtype: DType, shape: &Shape) -> usize {
    match dtype {
        DType::QFloat(scheme) => quantized_data_len(&scheme, shape),
        dtype => shape.num_elements() * dtype.size(),
    }
}

impl<const D: usize> Payload for Tensor<D> {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        mapper.float(self)
    }
}

impl<const D: usize> Payload for Tensor<D, Int> {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        mapper.int(self)
    }
}

impl<const D: usize> Payload for Tensor<D, Bool> {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        mapper.bool(self)
    }
}

impl<T: Payload> Payload for Vec<T> {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        self.into_iter().map(|item| item.map(mapper)).collect()
    }
}

impl<T: Payload> Payload for Option<T> {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        self.map(|item| item.map(mapper))
    }
}

impl<T: Payload, const N: usize> Payload for [T; N] {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        self.map(|item| item.map(mapper))
    }
}

macro_rules! tuple_payload {
    ($($name:ident),*) => {
        impl<$($name: Payload),*> Payload for ($($name,)*) {
            #[allow(non_snake_case, unused_variables, clippy::unused_unit)]
            fn map<Mapper: PayloadMapper>(self, mapper: &mut Mapper) -> Self {
                let ($($name,)*) = self;
                ($($name.map(mapper),)*)
            }
        }
    };
}

tuple_payload!();
tuple_payload!(A);
tuple_payload!(A, B);
tuple_payload!(A, B, C);
tuple_payload!(A, B, C, D);
tuple_payload!(A, B, C, D, E);
tuple_payload!(A, B, C, D, E, F);

/// Implements [`Payload`] for a struct whose fields are payloads. A field that is not listed is a compile error.
///
/// ```
/// use burn::tensor::{Bool, Tensor};
///
/// #[derive(Clone)]
/// struct Encoded {
///     states: Tensor<3>,
///     padding: Tensor<2, Bool>,
/// }
///
/// stageline::payload!(Encoded { states, padding });
/// ```
#[macro_export]
macro_rules! payload {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::Payload for $name {
            fn map<M: $crate::PayloadMapper>(self, mapper: &mut M) -> Self {
                let Self { $($field),* } = self;
                Self { $($field: $crate::Payload::map($field, mapper)),* }
            }
        }
    };
}
