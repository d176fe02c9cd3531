//! GPT-2's layers (Radford et al., 2019, *Language Models are Unsupervised Multitask Learners*): learned position
//! embeddings, and pre-norm blocks with biases everywhere.
//!
//! Dropout is not applied, even if the configuration sets it.

use burn::module::{Module, Param};
use burn::nn::LayerNormConfig;
use burn::tensor::{Device, Int, IntDType, Tensor};
use stageline::nn::{Embedding, LayerNorm, Linear, Operation, gelu, gelu_tanh};

use super::config::{Activation, Config};
use crate::attention::{BlockCache, DocumentStarts, KeyValueCache, Scope};
use crate::families::block::{self, Residual};
use crate::families::initial::{linear, normal, rows};

/// The type of GPT-2's final norm, before the projection to the vocabulary: a layer norm.
pub type Norm = LayerNorm;

/// GPT-2's first layer, which maps token ids `[batch, length]` to activations `[batch, length, width]`: the sums of
/// token and position embeddings.
#[derive(Module, Debug)]
pub struct Embeddings {
    pub(crate) tokens: Embedding,
    positions: Param<Tensor<2>>,
    #[module(skip)]
    cache: KeyValueCache,
}

/// A GPT-2 transformer block, with layer norms.
pub type Block = block::Block<Attention, Mlp>;

/// The attention of a GPT-2 block: a layer norm, and causal self-attention with one linear layer for queries, keys and
/// values.
#[derive(Module, Debug)]
pub struct Attention {
    norm: LayerNorm,
    query_key_value: Linear,
    output: Linear,
    heads: usize,
    /// Scale applied to queries before attention, to get the configured scale of the attention scores; 1 for most
    /// models.
    query_scale: f64,
    #[module(skip)]
    cache: BlockCache,
}

/// The MLP (feed-forward half) of a GPT-2 block: a layer norm, and two linear layers with an activation function
/// between them.
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

    /// Returns the first layer's output: the activations, and the scope of attention. An activation is the sum of a
    /// token embedding and a position embedding.
    ///
    /// `starts` holds the document starts, or the mark of an input that continues a generated text (see
    /// [`KeyValueCache`]). The scope decides whether positions count from the start of the document, the sample or the
    /// generated text.
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

/// Returns every token's position in its document, `[batch, length]`, from the document starts (each token's document
/// start, as a position in the sample).
fn from_starts(starts: Tensor<2, Int>) -> Tensor<2, Int> {
    let shape = starts.dims();
    let positions = Tensor::<1, Int>::arange(0..shape[1] as i64, &starts.device()).unsqueeze::<2>();
    let starts = starts.cast(IntDType::from(positions.dtype()));
    positions.expand(shape) - starts
}

/// Creates a GPT-2 transformer block with newly initialised parameters. `index` is its zero-based index in the model.
pub fn block(config: &Config, index: usize, device: &Device) -> Block {
    let (width, deviation) = (config.width, config.deviation);
    // As in GPT-2, the initial weights of residual projections are divided by sqrt(2 x blocks), so that deeper models
    // start with smaller ones.
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

/// Creates a layer norm over the model's width, with the configured epsilon.
pub fn norm(config: &Config, device: &Device) -> LayerNorm {
    LayerNorm::init(&LayerNormConfig::new(config.width).with_epsilon(config.epsilon), device)
}
