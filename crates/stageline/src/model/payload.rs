//! Payloads ([`Payload`]): the values made of tensors that may cross a boundary between two stages. Also shared inputs
//! ([`SharedInput`]): parts of a batch that several stages read.

use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor};

use crate::state::parameter_count::bytes_of_kind;

/// A value made of tensors that may cross a boundary between stages, or enter the pipeline as part of a batch.
///
/// Tensors of any rank and kind (float, int or bool) are payloads. So are tuples, arrays, `Vec`s and `Option`s of
/// payloads, and structs that the macro [`payload!`](crate::payload!) was called for. Gradients flow back through float
/// tensors only.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot cross a stage boundary",
    note = "tensors, tuples, arrays, `Vec` and `Option` of payloads can; for a struct of payloads call \
            `stageline::payload!(Name {{ field, field }})`"
)]
pub trait Payload: Clone + Send + 'static {
    /// Applies `mapper` to every tensor of the payload, and returns the payload with the new tensors. Every call visits
    /// the tensors in the same order.
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self;
}

/// A set of functions that replace the tensors of a [`Payload`], for example to move them to a device. There is one
/// function for each kind of tensor, and one for shared inputs (parts of a batch that several stages read). By default,
/// int and bool tensors are not replaced.
pub trait PayloadMapper {
    /// Returns the float tensor that replaces `tensor` in the payload. Both tensors have `D` dimensions; their sizes
    /// may differ.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
    /// Returns the int tensor that replaces `tensor` in the payload. Both tensors have `D` dimensions; their sizes may
    /// differ.
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    /// Returns the bool tensor that replaces `tensor` in the payload. Both tensors have `D` dimensions; their sizes may
    /// differ.
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
    /// Applies this mapper to a shared input: a part of a batch that several stages read, such as an attention mask. By
    /// default, only the current stage's copy is replaced, and the tensors that the caller gave stay as they are.
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T>
    where
        Self: Sized,
    {
        shared.map_here(self)
    }
}

/// A part of a batch that several stages read, such as an attention mask or the positions of tokens.
///
/// Each stage passes the shared input on as a part of its output. But the shared tensors do not travel with the
/// activations: a stage on another device gets them directly from the batch. Shared tensors have no gradients.
///
/// ```
/// use burn::tensor::{Bool, Int, Tensor};
/// use stageline::{Batch, SharedInput};
///
/// # fn batch(tokens: Tensor<2, Int>, padding: Tensor<2, Bool>, targets: Tensor<2, Int>) {
/// // The first stage has the input `(Tensor<2, Int>, SharedInput<Tensor<2, Bool>>)`, and later stages
/// // `(Tensor<3>, SharedInput<Tensor<2, Bool>>)`; each calls `get` on the second part.
/// let batch = Batch::new((tokens, SharedInput::new(padding)), targets);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SharedInput<T> {
    /// The tensors of the shared input (such as an attention mask) as the caller gave them, on the caller's device.
    given: T,
    /// The tensors of the shared input (such as an attention mask) for the current stage, on that stage's device.
    here: T,
}

impl<T: Payload> SharedInput<T> {
    /// Creates a shared input: a part of a batch that several stages read, such as an attention mask.
    pub fn new(value: T) -> Self {
        Self { here: value.clone(), given: value }
    }

    /// Returns the current micro-batch's part of the shared input (such as an attention mask), on the current stage's
    /// device.
    pub fn get(&self) -> T {
        self.here.clone()
    }

    /// Applies `mapper` to the current stage's copy of a shared input (such as an attention mask). The caller's tensors
    /// stay as they are.
    pub(crate) fn map_here(self, mapper: &mut impl PayloadMapper) -> Self {
        Self { here: self.here.map(mapper), ..self }
    }

    /// Applies `mapper` to the caller's tensors of a shared input (such as an attention mask). The results replace both
    /// the caller's tensors and the current stage's copy.
    pub(crate) fn map_given(self, mapper: &mut impl PayloadMapper) -> Self {
        Self::new(self.given.map(mapper))
    }

    /// Applies `mapper` both to the caller's tensors of a shared input (such as an attention mask) and to the current
    /// stage's copy.
    pub(crate) fn map_both(self, mapper: &mut impl PayloadMapper) -> Self {
        Self { given: self.given.map(mapper), here: self.here.map(mapper) }
    }

    /// Applies `mapper` to the caller's tensors of a shared input (such as an attention mask). The results become the
    /// current stage's copy, and the caller's tensors stay as they are.
    pub(crate) fn map_given_to_here(self, mapper: &mut impl PayloadMapper) -> Self {
        Self { here: self.given.clone().map(mapper), ..self }
    }

    /// Drops the current stage's copy of a shared input (such as an attention mask), and keeps only the caller's
    /// tensors. The sending stage does this, because the next stage makes a copy of its own.
    pub(crate) fn leave(self) -> Self {
        Self::new(self.given)
    }
}

impl<T: Payload> Payload for SharedInput<T> {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        mapper.shared(self)
    }
}

pub(crate) fn bytes_of<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> u64 {
    bytes_of_kind(tensor.dtype(), &tensor.shape()) as u64
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

/// Implements [`Payload`] for a struct whose fields are payloads, so that the struct may cross a stage boundary. The
/// macro must list all fields of the struct; a missing field is a compile error.
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
