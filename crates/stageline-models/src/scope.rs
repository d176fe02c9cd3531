//! The scope of attention in an input ([`Scope`]), which the first layer of a model passes on to all blocks.

use burn::tensor::{Int, Tensor};
use stageline::{Payload, PayloadMapper, SharedInput};

/// The starts of documents, for samples that consist of several documents: for each token, `[batch, length]`, the
/// position in its sample, counted from 0, at which its document begins. Every stage gets them directly from the batch.
///
/// With them, a token attends to the tokens of its own document only, and positions count from the start of the
/// document. Targets that are the first token of another document should be [`MASKED`](stageline::nn::MASKED). This is
/// the convention of the Transformers library for packed samples (`DataCollatorWithFlattening`: `position_ids` restart
/// at 0, and the first label of every sequence is -100).
pub type DocumentStarts = SharedInput<Tensor<2, Int>>;

/// The scope of attention in an input: the earlier tokens to which a token attends.
///
/// Training and evaluation have samples, which may consist of several documents. The generation of a text has inputs
/// that continue it, for which the blocks of the model keep the keys and values of earlier inputs.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // a micro-batch has one of them
pub enum Scope {
    /// A token attends to all earlier tokens of its sample.
    Sample,
    /// A token attends to the earlier tokens of its own document. The value says where the documents of the samples
    /// begin.
    Documents(DocumentStarts),
    /// A token attends to all earlier tokens of the text that the model generates. The input continues this text.
    Generated {
        /// The number of the generated text, counted from 1 over all texts that the model has begun to generate.
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
