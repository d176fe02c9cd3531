//! Concatenates the outputs of an inference's micro-batches into the output of the whole batch.

use std::any::{Any, TypeId};
use std::collections::VecDeque;

use burn::tensor::{Bool, Int, Tensor};

use crate::model::batch_error::BatchError;
use crate::model::micro_batches::payload_shapes;
use crate::model::payload::{Payload, PayloadMapper, SharedInput};

/// Concatenates the outputs of several micro-batches along dimension 0, tensor by tensor and in micro-batch order. An
/// output is a payload: a value made of one or more tensors.
///
/// # Errors
/// Returns [`BatchError::Outputs`] if the outputs differ in their number of tensors, in a tensor's kind (float, int or
/// bool), or in a dimension other than 0. Returns [`BatchError::NoRows`] if there is no output.
pub(crate) fn concatenate<P: Payload>(pieces: Vec<P>) -> Result<P, BatchError> {
    let rows: Vec<Vec<Vec<usize>>> = pieces.iter().map(|piece| rows_of(piece)).collect();
    if let Some(other) = rows.iter().position(|rows_of_piece| *rows_of_piece != rows[0]) {
        return Err(BatchError::Outputs { micro_batch: other });
    }
    let mut pieces = pieces.into_iter();
    let first = pieces.next().ok_or(BatchError::NoRows)?;
    let (expected, rest) = (kinds(&tensors_of(first.clone())), pieces.map(tensors_of).collect::<Vec<_>>());
    if let Some(other) = rest.iter().position(|tensors| kinds(tensors) != expected) {
        return Err(BatchError::Outputs { micro_batch: other + 1 });
    }
    Ok(first.map(&mut Join(rest)))
}

fn tensors_of<P: Payload>(piece: P) -> VecDeque<Box<dyn Any>> {
    let mut tensors = Tensors::default();
    piece.map(&mut tensors);
    tensors.0
}

/// Returns the Rust type of each tensor, which encodes the tensor's rank and kind (float, int or bool). Outputs can be
/// concatenated only if these types are equal.
fn kinds(tensors: &VecDeque<Box<dyn Any>>) -> Vec<TypeId> {
    tensors.iter().map(|tensor| tensor.as_ref().type_id()).collect()
}

/// Returns the shape of one row of every tensor in a micro-batch's output: the tensor's dimensions without dimension 0.
fn rows_of<P: Payload>(piece: &P) -> Vec<Vec<usize>> {
    payload_shapes(piece).into_iter().map(|shape| shape.get(1..).unwrap_or_default().to_vec()).collect()
}

/// The tensors of a micro-batch's output. They are type-erased, because they may differ in rank and kind.
#[derive(Default)]
struct Tensors(VecDeque<Box<dyn Any>>);

impl PayloadMapper for Tensors {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push_back(Box::new(tensor.clone()));
        tensor
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.0.push_back(Box::new(tensor.clone()));
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.0.push_back(Box::new(tensor.clone()));
        tensor
    }
}

/// A tensor mapper that concatenates the outputs of several micro-batches along dimension 0. It is applied to the first
/// output, and contains the tensors of the other outputs. To each tensor of the first output, it appends the tensors at
/// the same position in the others.
struct Join(Vec<VecDeque<Box<dyn Any>>>);

impl Join {
    /// Returns the tensors to concatenate: `tensor`, which is from the first micro-batch's output, and the tensors at
    /// the same position in all other outputs.
    fn beside<T: 'static>(&mut self, tensor: T) -> Vec<T> {
        let next = |tensors: &mut VecDeque<Box<dyn Any>>| {
            let tensor = tensors.pop_front().and_then(|tensor| tensor.downcast::<T>().ok());
            *tensor.expect("payloads of one type with as many tensors have tensors of the same types")
        };
        [tensor].into_iter().chain(self.0.iter_mut().map(next)).collect()
    }
}

impl PayloadMapper for Join {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        Tensor::cat(self.beside(tensor), 0)
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        Tensor::cat(self.beside(tensor), 0)
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        Tensor::cat(self.beside(tensor), 0)
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        SharedInput::new(shared.get().map(self))
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn outputs_with_tensors_of_other_kinds_are_refused() {
        let floats = || Some(Tensor::<2>::ones([2, 3], &Device::flex()));
        let numbers = || Some(Tensor::<2, Int>::ones([2, 3], &Device::flex()));
        type Either = (Option<Tensor<2>>, Option<Tensor<2, Int>>);
        let pieces: Vec<Either> = vec![(floats(), None), (floats(), None), (None, numbers())];
        let (joined, _) = concatenate(pieces[..2].to_vec()).unwrap();
        assert_eq!(joined.unwrap().dims(), [4, 3]);
        let error = concatenate(pieces).err().unwrap();
        assert!(matches!(error, BatchError::Outputs { micro_batch: 2 }), "{error}");
    }
}
