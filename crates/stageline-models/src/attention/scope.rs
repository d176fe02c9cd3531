//! The scope of attention in an input ([`Scope`]), which the first layer of a model passes on to all blocks.

use burn::tensor::{Int, Tensor};
use stageline::{Payload, PayloadMapper, SharedInput};

/// The starts of documents, for samples that consist of several documents. For each token, `[batch, length]`, this is
/// the position in its sample, counted from 0, where its document begins. Every stage gets the starts directly from the
/// batch.
///
/// With them, a token attends to the tokens of its own document only, and positions count from the start of the
/// document. Targets that are the first token of another document should be [`MASKED`](stageline::nn::MASKED). This is
/// the convention of the Transformers library for packed samples (`DataCollatorWithFlattening`: `position_ids` restart
/// at 0, and the first label of every sequence is -100).
pub type DocumentStarts = SharedInput<Tensor<2, Int>>;

/// The scope of attention in an input: the earlier tokens that a token attends to. The first layer of a model passes it
/// on to all blocks.
///
/// In training and evaluation, an input consists of samples, which may consist of several documents. In the generation
/// of a text, an input continues the text, and the blocks of the model store the keys and values of earlier inputs.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // a micro-batch has one of them
pub enum Scope {
    /// The scope of attention in an input of whole samples: a token attends to all earlier tokens of its sample.
    Sample,
    /// The scope of attention in samples that consist of several documents: a token attends to the earlier tokens of
    /// its own document. The value holds the positions where the documents start, `[batch, length]`.
    Documents(DocumentStarts),
    /// The scope of attention in an input that continues a generated text: a token attends to all earlier tokens of
    /// this text.
    Generated {
        /// The number of the generated text: 1 for the first text that the model generates, 2 for the second.
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
