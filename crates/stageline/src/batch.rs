//! A batch, and its cut into micro-batches with their loss weights.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Bool, Int, Tensor};

use crate::failure::Failure;
use crate::payload::{Payload, PayloadMapper};
use crate::samples::Samples;
use crate::weight::Weight;

/// The input and the targets of one step.
#[derive(Clone, Debug)]
pub struct Batch<I, T>(Content<I, T>);

#[derive(Clone, Debug)]
enum Content<I, T> {
    Whole(I, T),
    Cut(Vec<(I, T)>),
}

impl<I: Payload, T: Payload> Batch<I, T> {
    /// A whole batch: every tensor in it has one row a sample, along dimension 0.
    ///
    /// It is cut into M micro-batches of rows in order, as evenly as possible, the larger ones first.
    pub fn new(input: I, target: T) -> Self {
        Self(Content::Whole(input, target))
    }

    /// A batch that was cut by hand, for tensors of other layouts or of other lengths a micro-batch.
    ///
    /// The first dimension of the first tensor counts a micro-batch's samples, for layers that ask
    /// ([`Samples`]).
    pub fn from_micro_batches(micro_batches: Vec<(I, T)>) -> Self {
        Self(Content::Cut(micro_batches))
    }

    /// Cuts it as a step of a pipeline does, into exactly `micro_batches` pieces: for loops of one's own.
    ///
    /// # Errors
    /// [`BatchError`] where there are fewer rows, or other pieces were cut by hand.
    pub fn into_micro_batches(self, micro_batches: usize) -> Result<Vec<(I, T)>, BatchError> {
        match self.0 {
            Content::Whole(input, target) => {
                let rows = rows(&input, &target)?;
                if rows == 0 {
                    return Err(BatchError::NoRows);
                }
                if rows < micro_batches {
                    return Err(BatchError::TooSmall { rows, micro_batches });
                }
                Ok(slice(&input, &target, rows, micro_batches))
            }
            Content::Cut(pieces) if pieces.len() == micro_batches => Ok(pieces),
            Content::Cut(pieces) => Err(BatchError::Count { given: pieces.len(), micro_batches }),
        }
    }

    /// Cuts and weighs for training.
    pub(crate) fn cut(self, micro_batches: usize, weight: fn(&T) -> Weight) -> Result<MicroBatches<I, T>, BatchError> {
        MicroBatches::weigh(self.into_micro_batches(micro_batches)?, weight)
    }

    /// Cuts for evaluation: at most `micro_batches` pieces of a whole batch, and as many as there are of a cut one.
    pub(crate) fn cut_up_to(
        self,
        micro_batches: usize,
        weight: fn(&T) -> Weight,
    ) -> Result<MicroBatches<I, T>, BatchError> {
        match self.0 {
            Content::Whole(input, target) => {
                let pieces = rows(&input, &target)?.clamp(1, micro_batches);
                Self::new(input, target).cut(pieces, weight)
            }
            Content::Cut(pieces) if (1..=micro_batches).contains(&pieces.len()) => MicroBatches::weigh(pieces, weight),
            Content::Cut(pieces) => Err(BatchError::Count { given: pieces.len(), micro_batches }),
        }
    }
}

/// A batch, cut, with what each piece weighs.
#[derive(Clone)]
pub(crate) struct MicroBatches<I, T> {
    pub(crate) inputs: Vec<I>,
    pub(crate) targets: Vec<T>,
    pub(crate) weights: Weights,
}

/// The loss weight of every micro-batch, and their total, which is positive; and how many samples each has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weights {
    pub(crate) each: Vec<Weight>,
    pub(crate) total: Weight,
    samples: Vec<usize>,
    /// Samples of the step that are before these.
    before: usize,
}

impl Weights {
    /// The samples of all micro-batches together.
    pub(crate) fn all_samples(&self) -> usize {
        self.samples.iter().sum()
    }

    /// In parts of so many micro-batches; the last one may have fewer.
    pub(crate) fn divided(&self, micro_batches: usize) -> Vec<Self> {
        let mut before = self.before;
        let part = |(each, samples): (&[Weight], &[usize])| {
            let part = Self { each: each.to_vec(), total: total(each), samples: samples.to_vec(), before };
            before += part.all_samples();
            part
        };
        self.each.chunks(micro_batches).zip(self.samples.chunks(micro_batches)).map(part).collect()
    }

    /// The samples of a micro-batch of a step.
    pub(crate) fn samples(&self, step: usize, micro_batch: usize) -> Samples {
        let first = self.before + self.samples[..micro_batch].iter().sum::<usize>();
        Samples { step, first, count: self.samples[micro_batch] }
    }
}

impl<I: Payload, T: Payload> MicroBatches<I, T> {
    fn weigh(pieces: Vec<(I, T)>, weight: fn(&T) -> Weight) -> Result<Self, BatchError> {
        let of_target = |(micro_batch, (_, target)): (usize, &(I, T))| {
            let panicked =
                |panic| BatchError::WeightPanic { micro_batch, failure: Failure::of_panic(panic).to_string() };
            catch_unwind(AssertUnwindSafe(|| weight(target))).map_err(panicked)
        };
        let each = pieces.iter().enumerate().map(of_target).collect::<Result<Vec<_>, _>>()?;
        let terms = each.first().map_or(0, |weight| weight.terms().len());
        for (micro_batch, weight) in each.iter().enumerate() {
            if weight.terms().is_empty() || weight.terms().len() != terms {
                return Err(BatchError::Terms { micro_batch, found: weight.terms().len(), terms });
            }
            if let Some(&weight) = weight.terms().iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
                return Err(BatchError::Weight { micro_batch, weight });
            }
        }
        let total = total(&each);
        if total.is_zero() {
            return Err(BatchError::NoWeight);
        }
        if total.terms().iter().any(|weight| !weight.is_finite()) {
            return Err(BatchError::TotalWeight);
        }
        let samples = pieces.iter().map(|(input, target)| samples(input, target)).collect();
        let (inputs, targets) = pieces.into_iter().unzip();
        Ok(Self { inputs, targets, weights: Weights { each, total, samples, before: 0 } })
    }

    /// The piece with the most samples, so many times.
    pub(crate) fn largest(self, times: usize) -> Self {
        let samples = &self.weights.samples;
        let largest = (0..samples.len()).max_by_key(|&piece| samples[piece]).unwrap_or(0);
        let Self { inputs, targets, weights } = self.only(largest);
        let each = vec![weights.total; times];
        Self {
            inputs: inputs.into_iter().cycle().take(times).collect(),
            targets: targets.into_iter().cycle().take(times).collect(),
            weights: Weights { total: total(&each), each, samples: weights.samples.repeat(times), before: 0 },
        }
    }

    /// One piece as a batch of its own, whose samples know their place.
    pub(crate) fn only(mut self, micro_batch: usize) -> Self {
        let Weights { each, samples, .. } = self.weights;
        let before = samples[..micro_batch].iter().sum();
        let (total, samples) = (each[micro_batch].clone(), vec![samples[micro_batch]]);
        Self {
            inputs: vec![self.inputs.swap_remove(micro_batch)],
            targets: vec![self.targets.swap_remove(micro_batch)],
            weights: Weights { each: vec![total.clone()], total, samples, before },
        }
    }
}

/// Added up in order.
fn total(each: &[Weight]) -> Weight {
    let mut total = Weight::default();
    each.iter().for_each(|weight| total.add(weight));
    total
}

/// How many samples a micro-batch has: the rows of its first tensor.
fn samples<I: Payload, T: Payload>(input: &I, target: &T) -> usize {
    row_counts(input, target).first().copied().unwrap_or(1)
}

/// The number of rows that every tensor of the batch agrees on.
fn rows<I: Payload, T: Payload>(input: &I, target: &T) -> Result<usize, BatchError> {
    let counts = row_counts(input, target);
    let rows = *counts.first().ok_or(BatchError::NoTensors)?;
    match counts.iter().position(|&found| found != rows) {
        Some(tensor) => Err(BatchError::Uneven { rows, tensor, found: counts[tensor] }),
        None => Ok(rows),
    }
}

/// The rows of every tensor of a pair, in order.
fn row_counts<I: Payload, T: Payload>(input: &I, target: &T) -> Vec<usize> {
    let mut count = CountRows::default();
    input.clone().map(&mut count);
    target.clone().map(&mut count);
    count.0
}

fn slice<I: Payload, T: Payload>(input: &I, target: &T, rows: usize, pieces: usize) -> Vec<(I, T)> {
    even_ranges(rows, pieces)
        .map(|range| {
            let mut cut = SliceRows(range);
            (input.clone().map(&mut cut), target.clone().map(&mut cut))
        })
        .collect()
}

/// `rows` in `pieces` ranges whose lengths differ by at most one, the longer ones first.
fn even_ranges(rows: usize, pieces: usize) -> impl Iterator<Item = Range<usize>> {
    let (length, longer) = (rows.checked_div(pieces).unwrap_or(0), rows.checked_rem(pieces).unwrap_or(0));
    (0..pieces).map(move |piece| {
        let start = piece * length + piece.min(longer);
        start..start + length + usize::from(piece < longer)
    })
}

#[derive(Default)]
struct CountRows(Vec<usize>);

impl CountRows {
    fn note(&mut self, dims: &[usize]) {
        self.0.push(dims.first().copied().unwrap_or(0));
    }
}

impl PayloadMapper for CountRows {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.note(&tensor.dims());
        tensor
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.note(&tensor.dims());
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.note(&tensor.dims());
        tensor
    }
}

struct SliceRows(Range<usize>);

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
}

/// Why a batch cannot be cut. The pipeline is as it was, and takes the next batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Fewer rows than micro-batches.
    #[error(
        "a batch of {rows} rows cannot be cut into {micro_batches} micro-batches; \
         give at least {micro_batches} rows, or lower the number of micro-batches to {rows} or fewer"
    )]
    TooSmall {
        /// Rows in the batch.
        rows: usize,
        /// Micro-batches asked for.
        micro_batches: usize,
    },
    /// No rows.
    #[error("the batch has 0 rows; give at least one a micro-batch")]
    NoRows,
    /// The weights add up to more than a number holds.
    #[error("the loss weights of the batch add up to infinity; measure them in a larger unit")]
    TotalWeight,
    /// A batch cut by hand has another number of pieces than the pipeline has micro-batches.
    #[error(
        "the batch was cut into {given} micro-batches, but the pipeline runs {micro_batches}; \
         cut it into {micro_batches}, or build the pipeline with {given}"
    )]
    Count {
        /// Pieces given.
        given: usize,
        /// Micro-batches of the pipeline.
        micro_batches: usize,
    },
    /// The tensors of the batch do not have the same number of rows.
    #[error(
        "tensor {tensor} of the batch has {found} rows, but tensor 0 has {rows}; \
         give every tensor one row a sample along dimension 0, or cut by hand with `Batch::from_micro_batches`"
    )]
    Uneven {
        /// Rows of the first tensor.
        rows: usize,
        /// The tensor that differs, counted through input and target.
        tensor: usize,
        /// Its rows.
        found: usize,
    },
    /// The batch has no tensors.
    #[error("the batch holds no tensor, so it has no rows to cut; cut it by hand with `Batch::from_micro_batches`")]
    NoTensors,
    /// A weight is negative or not finite.
    #[error("micro-batch {micro_batch} has loss weight {weight}; `LossStage::weight` must be finite and not negative")]
    Weight {
        /// The micro-batch.
        micro_batch: usize,
        /// What `weight` returned.
        weight: f64,
    },
    /// Micro-batches have weights of other numbers of terms, or of none.
    #[error(
        "micro-batch {micro_batch} has a loss weight of {found} terms, the first one of {terms}; \
         `LossStage::weight` must give a number for each term of the loss, at least one, for all targets"
    )]
    Terms {
        /// The micro-batch.
        micro_batch: usize,
        /// How many terms its weight has.
        found: usize,
        /// How many that of the first one has.
        terms: usize,
    },
    /// `LossStage::weight` panicked.
    #[error("`LossStage::weight` failed on the targets of micro-batch {micro_batch}: {failure}")]
    WeightPanic {
        /// The micro-batch.
        micro_batch: usize,
        /// What happened.
        failure: String,
    },
    /// No target counts.
    #[error(
        "the total loss weight of the batch is 0: every target is masked; leave such a batch out, or unmask a target"
    )]
    NoWeight,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_even_and_cover_the_rows() {
        let ranges = |rows, pieces| even_ranges(rows, pieces).collect::<Vec<_>>();
        assert_eq!(ranges(8, 2), [0..4, 4..8]);
        assert_eq!(ranges(7, 3), [0..3, 3..5, 5..7]);
        assert_eq!(ranges(3, 3), [0..1, 1..2, 2..3]);
        assert_eq!(ranges(2, 1).len(), 1);
    }
}
