//! Batches ([`Batch`]): the input and the targets of one step, and their split into micro-batches.
//!
//! A batch whose rows cannot be split is rejected here, before any worker sees it. The module `micro_batches` validates
//! the batch's loss weights.

use crate::model::batch_error::BatchError;
use crate::model::micro_batches::MicroBatches;
use crate::model::micro_batches::row_counts;
use std::ops::Range;

use burn::tensor::{Bool, Int, Tensor};

use crate::model::payload::{Payload, PayloadMapper, SharedInput, bytes_of};
use crate::model::scoring::WeightOf;

/// A batch: the input and the targets of one training step or evaluation, as whole tensors or as micro-batches.
#[derive(Clone, Debug)]
pub struct Batch<I, T>(Content<I, T>);

#[derive(Clone, Debug)]
pub(super) enum Content<I, T> {
    /// The input and the target of a batch as whole tensors. A step splits them into micro-batches along dimension 0.
    Whole(I, T),
    Cut(Vec<(I, T)>),
}

impl<I: Payload, T: Payload> Batch<I, T> {
    /// Creates a batch from whole tensors, each with one row per sample along dimension 0.
    ///
    /// A step splits the batch into micro-batches of consecutive rows, as evenly as possible. If some micro-batches get
    /// one row more, they come first.
    pub fn new(input: I, target: T) -> Self {
        Self(Content::Whole(input, target))
    }

    /// Creates a batch from micro-batches that the caller has already split, each a pair of input and target.
    ///
    /// Use this function if tensors do not have one row per sample, or if micro-batches differ in size, for example in
    /// their sequence length. The number of samples in a micro-batch is the size of dimension 0 of its first tensor.
    /// Layers that draw random numbers for each sample ([`Samples`](crate::Samples)) use this number.
    pub fn from_micro_batches(micro_batches: Vec<(I, T)>) -> Self {
        Self(Content::Cut(micro_batches))
    }

    /// Calls `visitor` on every tensor of the batch, for example to measure the tensors. The batch does not change,
    /// because the tensors that `visitor` returns are dropped. A tensor that several stages read ([`SharedInput`]) is
    /// visited once.
    pub fn visit(&self, visitor: &mut impl PayloadMapper) {
        let pieces = match self.0.clone() {
            Content::Whole(input, target) => vec![(input, target)],
            Content::Cut(pieces) => pieces,
        };
        for (input, target) in pieces {
            drop((input.map(visitor), target.map(visitor)));
        }
    }

    /// Returns the total size of the batch's tensors in bytes. A tensor that several stages read ([`SharedInput`])
    /// counts once.
    pub fn bytes(&self) -> u64 {
        let mut count = CountBytes(0);
        self.visit(&mut count);
        count.0
    }

    /// Splits the batch into exactly `micro_batches` pairs of input and target, as a pipeline's training step does.
    ///
    /// Use this function in training loops that run without a pipeline.
    ///
    /// # Errors
    /// Returns [`BatchError`] in any of these cases:
    ///
    /// - `micro_batches` is 0 or larger than the batch's number of rows.
    /// - The batch has no tensor, or its tensors differ in their numbers of rows.
    /// - The caller has already split the batch into a different number of micro-batches.
    pub fn into_micro_batches(self, micro_batches: usize) -> Result<Vec<(I, T)>, BatchError> {
        if micro_batches == 0 {
            return Err(BatchError::NoMicroBatches);
        }
        match self.0 {
            Content::Whole(input, target) => {
                let rows = rows(&input, &target)?;
                if rows == 0 {
                    return Err(BatchError::NoRows);
                }
                if rows < micro_batches {
                    return Err(BatchError::TooSmall { rows, micro_batches, replicas: 1 });
                }
                Ok(slice(&input, &target, rows, micro_batches))
            }
            Content::Cut(pieces) if pieces.len() == micro_batches => Ok(pieces),
            Content::Cut(pieces) => Err(BatchError::Count { given: pieces.len(), micro_batches, replicas: 1 }),
        }
    }

    /// Splits the batch into exactly `micro_batches` micro-batches for a training step, and computes each micro-batch's
    /// loss weight (its part of the loss divisor, usually its number of unmasked targets). Returns an error if the
    /// batch cannot be split into this many micro-batches, or if a loss weight or the total of all loss weights is not
    /// a valid divisor. A total of 0 is [`BatchError::NoWeight`].
    pub(crate) fn cut(self, micro_batches: usize, weight: &WeightOf<'_, T>) -> Result<MicroBatches<I, T>, BatchError> {
        MicroBatches::weigh(self.into_micro_batches(micro_batches)?, weight)
    }

    /// Splits the batch into at most `micro_batches` micro-batches for an evaluation or inference. If a batch of whole
    /// tensors has fewer rows than `micro_batches`, each row becomes one micro-batch. A batch that the caller has
    /// already split keeps its micro-batches.
    ///
    /// Returns an error in any of these cases:
    ///
    /// - The caller has split the batch into no micro-batch, or into more than `micro_batches`.
    /// - Whole tensors are missing, have no rows, or differ in their numbers of rows.
    /// - A loss weight or the total of all loss weights is not a valid divisor.
    pub(crate) fn cut_up_to(
        self,
        micro_batches: usize,
        weight: &WeightOf<'_, T>,
    ) -> Result<MicroBatches<I, T>, BatchError> {
        match self.0 {
            Content::Whole(input, target) => {
                let pieces = rows(&input, &target)?.clamp(1, micro_batches);
                Self::new(input, target).cut(pieces, weight)
            }
            Content::Cut(pieces) if (1..=micro_batches).contains(&pieces.len()) => MicroBatches::weigh(pieces, weight),
            Content::Cut(pieces) => Err(BatchError::CountOfPass { given: pieces.len(), most: micro_batches }),
        }
    }
}

/// Returns the number of rows (the size of dimension 0) of a batch's tensors. Returns an error if the tensors differ in
/// this number, or if there is no tensor.
pub(super) fn rows<I: Payload, T: Payload>(input: &I, target: &T) -> Result<usize, BatchError> {
    let counts = row_counts(input, target);
    let rows = *counts.first().ok_or(BatchError::NoTensors)?;
    match counts.iter().position(|&found| found != rows) {
        Some(tensor) => Err(BatchError::Uneven { rows, tensor, found: counts[tensor] }),
        None => Ok(rows),
    }
}

/// Splits a batch's input and target, which have `rows` rows along dimension 0, into `pieces` micro-batches of
/// consecutive rows.
pub(super) fn slice<I: Payload, T: Payload>(input: &I, target: &T, rows: usize, pieces: usize) -> Vec<(I, T)> {
    even_ranges(rows, pieces)
        .map(|range| {
            let mut cut = SliceRows(range);
            (input.clone().map(&mut cut), target.clone().map(&mut cut))
        })
        .collect()
}

/// Divides the row indices 0 to `rows` - 1 of a batch into `pieces` consecutive ranges, one for each micro-batch. The
/// lengths of the ranges differ by at most one; the longer ranges come first.
pub(super) fn even_ranges(rows: usize, pieces: usize) -> impl Iterator<Item = Range<usize>> {
    let (length, longer) = (rows.checked_div(pieces).unwrap_or(0), rows.checked_rem(pieces).unwrap_or(0));
    (0..pieces).map(move |piece| {
        let start = piece * length + piece.min(longer);
        start..start + length + usize::from(piece < longer)
    })
}

/// A tensor mapper that takes one micro-batch from a batch. It replaces each tensor by a slice of the tensor's rows
/// along dimension 0.
pub(super) struct SliceRows(Range<usize>);

impl PayloadMapper for SliceRows {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.slice_dim(0, self.0.clone())
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.slice_dim(0, self.0.clone())
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.slice_dim(0, self.0.clone())
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared.map_given(self)
    }
}

/// A tensor mapper that adds up the sizes of a batch's tensors in bytes and changes no tensor.
struct CountBytes(u64);

impl PayloadMapper for CountBytes {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0 += bytes_of(&tensor);
        tensor
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.0 += bytes_of(&tensor);
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.0 += bytes_of(&tensor);
        tensor
    }
}

#[cfg(test)]
mod tests {
    use stageline_nn::Samples;

    use super::*;
    use crate::model::loss_weight::Weight;
    use crate::model::micro_batches::Weights;

    #[test]
    fn messages_name_the_micro_batches_of_a_replica() {
        let small = |rows, micro_batches, replicas| BatchError::TooSmall { rows, micro_batches, replicas }.to_string();
        assert_eq!(
            small(3, 4, 1),
            "a batch of 3 rows cannot be cut into 4 micro-batches; give at least 4 rows, or lower the number of \
             micro-batches to 3 or fewer"
        );
        assert_eq!(
            small(15, 8, 2),
            "a batch of 15 rows cannot be cut into 16 micro-batches, 8 for each of 2 replicas; give at least 16 rows, or \
             lower the number of micro-batches to 7 or fewer"
        );
        assert!(small(3, 8, 4).ends_with("give at least 32 rows, or use at most 3 replicas"));
        let count = |given, micro_batches, replicas| BatchError::Count { given, micro_batches, replicas }.to_string();
        assert!(count(6, 4, 1).ends_with("cut it into 4, or build the pipeline with 6"));
        assert!(count(6, 4, 2).ends_with(
            "but the pipeline runs 8, 4 for each of 2 replicas; cut it into 8, or build the pipeline with 3"
        ));
        assert!(count(7, 4, 2).ends_with("; cut it into 8"));
        let for_two_replicas = BatchError::TooSmall { rows: 15, micro_batches: 16, replicas: 1 }.of_replicas(2);
        assert_eq!(for_two_replicas, BatchError::TooSmall { rows: 15, micro_batches: 8, replicas: 2 });
    }

    /// Tests the sample indices of a million micro-batches. The test ends in reasonable time only if a look-up takes
    /// constant time.
    #[test]
    fn sample_numbers_are_found_in_constant_time() {
        const MICRO_BATCHES: usize = 1_000_000;
        let weights = Weights::new(vec![Weight::from(1.0); MICRO_BATCHES], 5, (0..MICRO_BATCHES).map(|at| at % 3));
        let mut end = 5;
        for micro_batch in 0..MICRO_BATCHES {
            let samples = weights.samples(7, micro_batch);
            assert_eq!(samples, Samples { step: 7, first: end, count: micro_batch % 3 });
            end += micro_batch % 3;
        }
        assert_eq!(weights.all_samples(), end - 5);
        let parts = weights.divided(300_000);
        assert_eq!(parts.iter().map(|part| part.each.len()).collect::<Vec<_>>(), [300_000, 300_000, 300_000, 100_000]);
        assert_eq!(parts[2].samples(7, 1), weights.samples(7, 600_001));
    }

    #[cfg(feature = "flex")]
    #[test]
    fn the_largest_micro_batches_are_those_that_no_other_contains() {
        let zeros = |[rows, columns]: [usize; 2]| Tensor::<2>::zeros([rows, columns], &burn::tensor::Device::flex());
        let largest = |shapes: &[[usize; 2]]| {
            let pieces = shapes.iter().map(|&shape| (zeros(shape), zeros([1, 1]))).collect();
            let batch = MicroBatches::weigh(pieces, &|_| Weight::from(1.0)).unwrap();
            let found = batch.largest(2).into_iter();
            found.map(|batch| (batch.inputs[0].dims(), batch.inputs.len())).collect::<Vec<_>>()
        };
        assert_eq!(largest(&[[4, 3], [5, 3], [5, 3], [2, 3]]), [([5, 3], 2)]);
        // The first two shapes have equally many elements, but neither is as large as the other in every dimension. The
        // second is as large as the third, which is therefore left out.
        assert_eq!(largest(&[[64, 64], [1, 4096], [1, 64]]), [([64, 64], 2), ([1, 4096], 2)]);
    }

    #[cfg(feature = "flex")]
    #[test]
    fn the_bytes_of_a_batch_are_those_of_its_elements() {
        let zeros = |columns| Tensor::<2>::zeros([4, columns], &burn::tensor::Device::flex());
        let batch = Batch::new((zeros(3), SharedInput::new(zeros(2))), zeros(1));
        assert_eq!(batch.bytes(), 4 * 4 * (3 + 2 + 1));
        let cut = Batch::from_micro_batches(batch.clone().into_micro_batches(2).unwrap());
        assert_eq!(cut.bytes(), batch.bytes());
    }

    #[test]
    fn ranges_are_even_and_cover_the_rows() {
        let ranges = |rows, pieces| even_ranges(rows, pieces).collect::<Vec<_>>();
        assert_eq!(ranges(8, 2), [0..4, 4..8]);
        assert_eq!(ranges(7, 3), [0..3, 3..5, 5..7]);
        assert_eq!(ranges(3, 3), [0..1, 1..2, 2..3]);
        assert_eq!(ranges(2, 1).len(), 1);
    }
}
