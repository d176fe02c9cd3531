//! The layers of Llama (Touvron et al., 2023, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971)) and its relatives:
//! RMS norms, rotary embeddings, grouped-query attention and SwiGLU.

use burn::module::Module;
use burn::nn::RmsNormConfig;
use burn::tensor::{Device, Int, Tensor};
use stageline::nn::{
    AttentionHeads, Embedding, Linear, Operation, RmsNorm, RotaryAngles, block, feed_forward, join_rotated, selective,
    swiglu,
};

use super::config::Config;
use crate::attention::{BlockCache, DocumentStarts, KeyValueCache, Scope};
use crate::families::initial::{linear, rows};
use crate::families::residual::with_residuals;

/// The type of the Llama family's final normalisation, before the projection to the vocabulary: an RMS norm.
pub type Norm = RmsNorm;

/// The first layer of a model of the Llama family: the token embeddings, which map token ids `[batch, length]` to
/// activations `[batch, length, width]`.
#[derive(Module, Debug)]
pub struct Embeddings {
    pub(crate) tokens: Embedding,
    /// The id of the padding token, whose embedding is not trained; `None` if the model has no such token.
    #[module(skip)]
    padding: Option<usize>,
    #[module(skip)]
    cache: KeyValueCache,
}

/// A transformer block of the Llama family: RMS norm, attention, RMS norm and feed-forward part, with two residual
/// connections.
#[derive(Module, Debug)]
pub struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

/// Causal self-attention with a rotary embedding of queries and keys. Several query heads may share one head of keys
/// and values (grouped-query attention).
#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// The normalisation of each attention head's queries, before the rotary embedding rotates them; `None` except in
    /// Qwen3.
    query_norm: Option<RmsNorm>,
    key_norm: Option<RmsNorm>,
    #[module(skip)]
    heads: AttentionHeads,
    #[module(skip)]
    angles: RotaryAngles,
    #[module(skip)]
    cache: BlockCache,
}

/// The gated feed-forward part (SwiGLU) of a block of the Llama family.
#[derive(Module, Debug)]
struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Embeddings {
    pub(crate) fn new(tokens: Embedding, padding: Option<usize>, cache: &KeyValueCache) -> Self {
        Self { tokens, padding, cache: cache.clone() }
    }

    /// Returns the embedding of every token, and the scope of attention. `starts` holds the starts of documents, or the
    /// mark of an input that continues a generated text (see [`KeyValueCache`]).
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

/// Returns the embeddings `embedded`, `[batch, length, width]`, of tokens `[batch, length]` unchanged, but no gradient
/// flows back from the embeddings of the token `padding`. So this token's row of the table is not trained by its
/// look-ups, as with `padding_idx` of PyTorch's `torch.nn.Embedding`. The head of a tied model still trains the row.
fn without_gradient(embedded: Tensor<3>, tokens: Tensor<2, Int>, padding: usize) -> Tensor<3> {
    let is_padding = tokens.equal_elem(padding as i64).unsqueeze_dim::<3>(2).expand(embedded.dims());
    let constant = embedded.clone().detach();
    embedded.mask_where(is_padding, constant)
}

impl Block {
    pub(crate) fn new(config: &Config, index: usize, angles: &RotaryAngles, device: &Device) -> Self {
        let Config { width, hidden, head_size, deviation, .. } = *config;
        let linear = |from: usize, to: usize, bias: bool| linear([from, to], deviation, bias, device);
        let [of_queries, of_keys] = [config.heads, config.key_value_heads].map(|heads| heads * head_size);
        let head_norm = || config.head_norms.then(|| norm(config, head_size, device));
        let heads =
            AttentionHeads { query: config.heads, key_value: config.key_value_heads, window: config.windows[index] };
        Self {
            attention_norm: norm(config, width, device),
            attention: Attention {
                query: linear(width, of_queries, config.query_key_value_bias),
                key: linear(width, of_keys, config.query_key_value_bias),
                value: linear(width, of_keys, config.query_key_value_bias),
                output: linear(of_queries, width, config.output_bias),
                query_norm: head_norm(),
                key_norm: head_norm(),
                heads,
                angles: angles.clone(),
                cache: BlockCache::default(),
            },
            mlp_norm: norm(config, width, device),
            mlp: Mlp {
                gate: linear(width, hidden, config.mlp_bias),
                up: linear(width, hidden, config.mlp_bias),
                down: linear(hidden, width, config.mlp_bias),
            },
        }
    }

    /// Returns the output of the block for activations `[batch, length, width]`. `scope` says which earlier tokens a
    /// token attends to.
    pub(crate) fn forward(&self, input: Tensor<3>, scope: Scope) -> Tensor<3> {
        block(self, input, move |block, input| block.compute(input, scope.clone()))
    }

    pub(crate) fn operations(&self) -> Vec<Operation> {
        let head = 2 * self.attention.angles.frequencies().len();
        let attention = [Operation::rotary_embedding(), Operation::causal_attention(head)];
        [Operation::rms_norm()].into_iter().chain(attention).chain([Operation::swiglu()]).collect()
    }

    fn compute(&self, input: Tensor<3>, scope: Scope) -> Tensor<3> {
        let attend = |input: Tensor<2>, dims: [usize; 3]| {
            let attend = move |attention: &Attention, input| attention.forward(input, dims, scope.clone());
            selective(&self.attention, self.attention_norm.forward(input), attend)
        };
        with_residuals(input, attend, |input| feed_forward(&self.mlp, self.mlp_norm.forward(input), Mlp::forward))
    }
}

impl Attention {
    /// Applies the self-attention of a block to activations `[batch x length, width]` and returns activations of the
    /// same shape. The second argument is the array of the sizes batch, length and width.
    ///
    /// Positions count from the start of the sample, also if the sample has several documents. This does not change the
    /// scores. A rotary embedding makes a score depend only on the distance of query and key, and a query sees only
    /// keys of its own document.
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
}

impl Mlp {
    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.down.forward(swiglu(self.gate.forward(input.clone()), self.up.forward(input)))
    }
}

/// Creates an RMS norm over `width` elements, with the epsilon that the model's configuration gives.
pub fn norm(config: &Config, width: usize, device: &Device) -> RmsNorm {
    RmsNorm::init(&RmsNormConfig::new(width).with_epsilon(config.epsilon), device)
}
