//! The scope of attention for an input ([`Scope`]), which a model's first layer passes on to all blocks.

use burn::tensor::{Int, Tensor};
use stageline::{Payload, PayloadMapper, SharedInput};

/// The document starts, for samples that consist of several documents: for each token, `[batch, length]`, the position
/// in its sample, counted from 0, at which its document begins. Every stage gets them directly from the batch.
///
/// With document starts, a token attends only to its own document, and positions count from the start of the document.
/// Targets that are the first token of another document should be [`MASKED`](stageline::nn::MASKED). This is the
/// convention of the Transformers library for packed samples (`DataCollatorWithFlattening`: `position_ids` restart at
/// 0, and the first label of every sequence is -100).
pub type DocumentStarts = SharedInput<Tensor<2, Int>>;

/// An input's attention scope: the earlier tokens that a token attends to. A model's first layer computes it and passes
/// it to all blocks.
///
/// Training and evaluation inputs consist of samples, perhaps of several documents. During text generation, an input
/// continues the text, and attention also covers the stored keys and values of earlier inputs.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // A micro-batch has only one scope, so the size is unimportant.
pub enum Scope {
    /// Causal attention within a sample: a token attends to itself and all earlier tokens of its sample.
    Sample,
    /// Causal attention within documents: a token attends only to earlier tokens of its own document, for samples with
    /// several documents. The value holds the document starts, `[batch, length]`.
    Documents(DocumentStarts),
    /// Attention during text generation: the input continues a generated text, and a token attends to all earlier
    /// tokens of this text.
    Generated {
        /// One-based index of the generated text, among all texts that the model generates.
        text: u64,
        /// The position of the input's first token in the generated text, counted from 0.
        position: usize,
    },
}

impl Scope {
    /// Returns the position of an input's first token in its sample or in the generated text, counted from 0.
    pub(crate) fn position(&self) -> usize {
        match self {
            Self::Sample | Self::Documents(_) => 0,
            Self::Generated { position, .. } => *position,
        }
    }
}

impl Payload for Scope {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        match self {
            Self::Documents(starts) => Self::Documents(starts.map(mapper)),
            Self::Sample | Self::Generated { .. } => self,
        }
    }
}
