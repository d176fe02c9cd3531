//! The layers of Llama (Touvron et al., 2023, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971)) and related
//! families: RMS norms, rotary embeddings, grouped-query attention and SwiGLU.

use burn::module::Module;
use burn::nn::RmsNormConfig;
use burn::tensor::{Device, Int, Tensor};
use stageline::nn::{AttentionHeads, Embedding, Linear, Operation, RmsNorm, RotaryAngles, join_rotated, swiglu};

use super::config::Config;
use crate::attention::{BlockCache, DocumentStarts, KeyValueCache, Scope};
use crate::families::block::{self, Residual};
use crate::families::initial::{linear, rows};

/// The type of the Llama family's final norm, before the projection to the vocabulary: an RMS norm.
pub type Norm = RmsNorm;

/// A Llama-family model's first layer: the token embeddings, which map token ids `[batch, length]` to activations
/// `[batch, length, width]`.
#[derive(Module, Debug)]
pub struct Embeddings {
    pub(crate) tokens: Embedding,
    /// The id of the padding token, whose embedding is not trained; `None` if the model has no such token.
    #[module(skip)]
    padding: Option<usize>,
    #[module(skip)]
    cache: KeyValueCache,
}

/// A Llama-family transformer block, with RMS norms.
pub type Block = block::Block<Attention, Mlp>;

/// The attention of a Llama-family block: an RMS norm, and causal self-attention with rotary embeddings of queries and
/// keys. Several query heads may share one key-value head (grouped-query attention).
#[derive(Module, Debug)]
pub struct Attention {
    norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// The norm of each head's queries, before the rotary embedding; `None` except in Qwen3.
    query_norm: Option<RmsNorm>,
    key_norm: Option<RmsNorm>,
    #[module(skip)]
    heads: AttentionHeads,
    #[module(skip)]
    angles: RotaryAngles,
    #[module(skip)]
    cache: BlockCache,
}

/// The MLP (feed-forward half) of a Llama-family block: an RMS norm and a gated layer (SwiGLU).
#[derive(Module, Debug)]
pub struct Mlp {
    norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Embeddings {
    pub(crate) fn new(tokens: Embedding, padding: Option<usize>, cache: &KeyValueCache) -> Self {
        Self { tokens, padding, cache: cache.clone() }
    }

    /// Returns the first layer's output: the token embeddings, and the scope of attention. `starts` holds the document
    /// starts, or the mark of an input that continues a generated text (see [`KeyValueCache`]).
    pub(crate) fn forward(&self, tokens: Tensor<2, Int>, starts: Option<DocumentStarts>) -> (Tensor<3>, Scope) {
        let [_, length] = tokens.dims();
        let embedded = self.tokens.forward(tokens.clone());
        let embedded = match self.padding {
            Some(padding) if embedded.is_tracked() => without_gradient(embedded, tokens, padding),
            _ => embedded,
        };
        (embedded, self.cache.scope(length, starts))
    }
}

/// Stops the gradient through the embeddings of the token `padding`, as PyTorch's `torch.nn.Embedding` does with
/// `padding_idx`; the values `embedded`, `[batch, length, width]`, are unchanged. The tokens are `[batch, length]`. The
/// head of a tied model still trains this token's row.
fn without_gradient(embedded: Tensor<3>, tokens: Tensor<2, Int>, padding: usize) -> Tensor<3> {
    let is_padding = tokens.equal_elem(padding as i64).unsqueeze_dim::<3>(2).expand(embedded.dims());
    let constant = embedded.clone().detach();
    embedded.mask_where(is_padding, constant)
}

/// Creates a Llama-family transformer block with newly initialised parameters. `index` is its zero-based index in the
/// model, and `angles` holds the frequencies of the rotary embedding.
pub fn block(config: &Config, index: usize, angles: &RotaryAngles, device: &Device) -> Block {
    let Config { width, hidden, head_size, deviation, .. } = *config;
    let linear = |from: usize, to: usize, bias: bool| linear([from, to], deviation, bias, device);
    let [of_queries, of_keys] = [config.heads, config.key_value_heads].map(|heads| heads * head_size);
    let head_norm = || config.head_norms.then(|| norm(config, head_size, device));
    let heads =
        AttentionHeads { query: config.heads, key_value: config.key_value_heads, window: config.windows[index] };
    let attention = Attention {
        norm: norm(config, width, device),
        query: linear(width, of_queries, config.query_key_value_bias),
        key: linear(width, of_keys, config.query_key_value_bias),
        value: linear(width, of_keys, config.query_key_value_bias),
        output: linear(of_queries, width, config.output_bias),
        query_norm: head_norm(),
        key_norm: head_norm(),
        heads,
        angles: angles.clone(),
        cache: BlockCache::default(),
    };
    let mlp = Mlp {
        norm: norm(config, width, device),
        gate: linear(width, hidden, config.mlp_bias),
        up: linear(width, hidden, config.mlp_bias),
        down: linear(hidden, width, config.mlp_bias),
    };
    Block::new(attention, mlp)
}

impl Residual for Attention {
    fn normalise(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(input)
    }

    /// Positions count from the start of the sample, even across documents. The scores are the same: with a rotary
    /// embedding, they depend only on the distance between query and key, and a query attends only to keys of its own
    /// document.
    fn forward(&self, input: Tensor<2>, [batch, length, _]: [usize; 3], scope: Scope) -> Tensor<2> {
        let size = 2 * self.angles.frequencies().len();
        let normalised = |part: Tensor<2>, norm: &Option<RmsNorm>| match norm {
            Some(norm) => {
                let dims = part.dims();
                norm.forward(part.reshape([dims[0] * dims[1] / size, size])).reshape(dims)
            }
            None => part,
        };
        let position = scope.position();
        let part = |part: Tensor<2>| {
            let columns = part.dims()[1];
            part.reshape([batch, length, columns])
        };
        let query = part(normalised(self.query.forward(input.clone()), &self.query_norm));
        let key = part(normalised(self.key.forward(input.clone()), &self.key_norm));
        let joined = join_rotated(query, key, part(self.value.forward(input)), &self.angles, position);
        self.output.forward(rows(self.cache.attend(joined, self.heads, scope)))
    }

    fn operations(&self) -> Vec<Operation> {
        let head = 2 * self.angles.frequencies().len();
        vec![Operation::rms_norm(), Operation::rotary_embedding(), Operation::causal_attention(head)]
    }
}

impl Residual for Mlp {
    fn normalise(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(input)
    }

    fn forward(&self, input: Tensor<2>, _: [usize; 3], _: Scope) -> Tensor<2> {
        self.down.forward(swiglu(self.gate.forward(input.clone()), self.up.forward(input)))
    }

    fn operations(&self) -> Vec<Operation> {
        vec![Operation::rms_norm(), Operation::swiglu()]
    }
}

/// Creates an RMS norm over `width` elements, with the configured epsilon.
pub fn norm(config: &Config, width: usize, device: &Device) -> RmsNorm {
    RmsNorm::init(&RmsNormConfig::new(width).with_epsilon(config.epsilon), device)
}
