//! The layers of GPT-2 (Radford et al., 2019, *Language Models are Unsupervised Multitask Learners*): learned
//! positions, and pre-LN blocks with biases everywhere.
//!
//! Dropout, which the configuration may name, is not applied.

use burn::module::{Module, Param};
use burn::nn::LayerNormConfig;
use burn::tensor::{Device, Int, IntDType, Tensor};
use stageline::nn::{Embedding, LayerNorm, Linear, Operation, gelu, gelu_tanh};

use super::config::{Activation, Config};
use crate::attention::{BlockCache, DocumentStarts, KeyValueCache, Scope};
use crate::families::block::{self, Residual};
use crate::families::initial::{linear, normal, rows};

/// The type of GPT-2's final normalisation, before the projection to the vocabulary: a layer norm.
pub type Norm = LayerNorm;

/// The first layer of GPT-2, which maps token ids `[batch, length]` to activations `[batch, length, width]`: the sums
/// of token and position embeddings.
#[derive(Module, Debug)]
pub struct Embeddings {
    pub(crate) tokens: Embedding,
    positions: Param<Tensor<2>>,
    #[module(skip)]
    cache: KeyValueCache,
}

/// A transformer block of GPT-2, with layer norms.
pub type Block = block::Block<Attention, Mlp>;

/// The attention of a GPT-2 block: a layer norm, and causal self-attention with one linear layer for queries, keys and
/// values.
#[derive(Module, Debug)]
pub struct Attention {
    norm: LayerNorm,
    query_key_value: Linear,
    output: Linear,
    heads: usize,
    /// The factor that multiplies the queries of a GPT-2 block before attention, to scale the attention scores; 1 for
    /// most models.
    query_scale: f64,
    #[module(skip)]
    cache: BlockCache,
}

/// The feed-forward part of a GPT-2 block: a layer norm, and two linear layers with an activation function between
/// them.
#[derive(Module, Debug)]
pub struct Mlp {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    #[module(skip)]
    activation: Activation,
}

impl Embeddings {
    pub(crate) fn new(config: &Config, tokens: Embedding, cache: &KeyValueCache, device: &Device) -> Self {
        let positions = normal(config.deviation).init([config.positions, config.width], device);
        Self { tokens, positions, cache: cache.clone() }
    }

    /// Returns activations, and the scope of attention. An activation is the sum of a token's embedding and its
    /// position's embedding.
    ///
    /// `starts` holds the starts of documents, or the mark of an input that continues a generated text (see
    /// [`KeyValueCache`]). Positions count from the start of the document, of the sample or of the generated text, as
    /// the scope says.
    pub(crate) fn forward(&self, tokens: Tensor<2, Int>, starts: Option<DocumentStarts>) -> (Tensor<3>, Scope) {
        let [_, length] = tokens.dims();
        let scope = self.cache.scope(length, starts);
        let first = scope.position();
        let [most, _] = self.positions.shape().dims();
        assert!(first + length <= most, "{} positions: this model has {most}; give shorter samples", first + length);
        let positions = match &scope {
            Scope::Documents(starts) => Embedding { weight: self.positions.clone() }.forward(from_starts(starts.get())),
            Scope::Sample | Scope::Generated { .. } => {
                self.positions.val().slice_dim(0, first..first + length).unsqueeze::<3>()
            }
        };
        (self.tokens.forward(tokens) + positions, scope)
    }
}

/// Returns the position of every token in its document, `[batch, length]`. `starts` holds, for every token, the
/// position in the sample where its document begins.
fn from_starts(starts: Tensor<2, Int>) -> Tensor<2, Int> {
    let shape = starts.dims();
    let positions = Tensor::<1, Int>::arange(0..shape[1] as i64, &starts.device()).unsqueeze::<2>();
    let starts = starts.cast(IntDType::from(positions.dtype()));
    positions.expand(shape) - starts
}

/// Creates a transformer block with the index `index`, counted from 0.
pub fn block(config: &Config, index: usize, device: &Device) -> Block {
    let (width, deviation) = (config.width, config.deviation);
    // As in GPT-2, the initial weights of residual projections are smaller in a deeper model: divided by sqrt(2 x
    // blocks).
    let residual = deviation / (2.0 * config.layers as f64).sqrt();
    let attention = Attention {
        norm: norm(config, device),
        query_key_value: linear([width, 3 * width], deviation, true, device),
        output: linear([width, width], residual, true, device),
        heads: config.heads,
        query_scale: config.query_scale(index),
        cache: BlockCache::default(),
    };
    let mlp = Mlp {
        norm: norm(config, device),
        up: linear([width, config.hidden], deviation, true, device),
        down: linear([config.hidden, width], residual, true, device),
        activation: config.activation,
    };
    Block::new(attention, mlp)
}

impl Residual for Attention {
    fn normalise(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(input)
    }

    fn forward(&self, input: Tensor<2>, [batch, length, width]: [usize; 3], scope: Scope) -> Tensor<2> {
        let mut split = self.query_key_value.forward(input).reshape([batch, length, 3 * width]);
        if self.query_scale != 1.0 {
            let queries = split.clone().slice_dim(2, 0..width) * self.query_scale;
            split = Tensor::cat(vec![queries, split.slice_dim(2, width..3 * width)], 2);
        }
        self.output.forward(rows(self.cache.attend(split, self.heads.into(), scope)))
    }

    fn operations(&self) -> Vec<Operation> {
        let head = self.output.weight.shape()[0] / self.heads;
        vec![Operation::layer_norm(), Operation::causal_attention(head)]
    }
}

impl Residual for Mlp {
    fn normalise(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(input)
    }

    fn forward(&self, input: Tensor<2>, _: [usize; 3], _: Scope) -> Tensor<2> {
        let hidden = self.up.forward(input);
        self.down.forward(match self.activation {
            Activation::Gelu => gelu(hidden),
            Activation::GeluTanh => gelu_tanh(hidden),
        })
    }

    fn operations(&self) -> Vec<Operation> {
        vec![Operation::layer_norm(), Operation::gelu()]
    }
}

/// Creates a layer norm over the width of the model, with the epsilon that the model's configuration gives.
pub fn norm(config: &Config, device: &Device) -> LayerNorm {
    LayerNorm::init(&LayerNormConfig::new(config.width).with_epsilon(config.epsilon), device)
}
