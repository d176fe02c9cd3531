//! The GPT example's model: a byte-level GPT with pre-norm blocks (layer norms) and learned position embeddings. It is
//! written as a first layer, blocks and a last layer, which can be divided into pipeline stages.
//!
//! Activations between layers have the shape `[batch, context, width]`. Inside, layers compute on `[batch x context,
//! width]`.

use burn::module::{Initializer, Module, Param};
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use stageline::nn::{
    Embedding, LayerNorm, Linear, Operation, block, causal_attention, cross_entropy, feed_forward, gelu, selective,
};
use stageline::{Costs, LossStage, Row, Stage, Weight};

/// The size of the GPT's vocabulary: a token is one byte, so there are 256 tokens.
pub const VOCABULARY: usize = 256;

/// A batch of text: an integer tensor `[batch, context]`, in which each element is one byte of the text, from 0 to 255.
pub type Bytes = Tensor<2, Int>;

/// The GPT's output: the logits of the next byte at every position, `[batch, context, 256]`.
pub type Logits = Tensor<3>;

/// A GPT model's sizes: number of blocks, width and context length.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of transformer blocks in the GPT.
    pub layers: usize,
    /// Width of the GPT: the number of elements of a token's (byte's) activation.
    pub width: usize,
    /// The maximum length of the GPT's input, in bytes of text.
    pub context: usize,
}

impl Shape {
    /// Returns the GPT's number of attention heads: the largest divisor of the width that gives each head at least 64
    /// dimensions; 1 for a width below 64.
    pub fn heads(self) -> usize {
        (1..=(self.width / 64).max(1)).rev().find(|heads| self.width.is_multiple_of(*heads)).unwrap_or(1)
    }
}

/// The GPT's first layer, which maps bytes `[batch, context]` to activations `[batch, context, width]`: the sum of byte
/// and position embeddings.
#[derive(Module, Debug)]
pub struct Embeddings {
    bytes: Embedding,
    positions: Param<Tensor<2>>,
}

/// A transformer block of the GPT: attention and an MLP, each with a layer norm before it and a residual connection
/// around it. It maps activations `[batch, context, width]` to activations of the same shape.
#[derive(Module, Debug)]
pub struct Block {
    attention_norm: LayerNorm,
    attention: Attention,
    mlp_norm: LayerNorm,
    up: Linear,
    down: Linear,
}

/// A transformer block's causal multi-head self-attention: a linear layer for queries, keys and values, attention, and
/// a linear layer for the output.
#[derive(Module, Debug)]
pub struct Attention {
    query_key_value: Linear,
    output: Linear,
    heads: usize,
}

/// The GPT's last layer, which maps activations `[batch, context, width]` to logits `[batch, context, 256]`: the final
/// layer norm and the projection to logits. It also computes the loss.
#[derive(Module, Debug)]
pub struct Head {
    norm: LayerNorm,
    logits: Linear,
}

/// The whole GPT as a [`Row`] (a first layer, blocks and a last layer), which Stageline can divide into any number of
/// stages.
pub type Gpt = Row<Embeddings, Block, Head>;

/// The whole GPT as a tuple of its first layer, its blocks and its last layer, not divided into stages.
pub type Layers = (Embeddings, Vec<Block>, Head);

/// Returns a GPT of the given shape as a [`Row`] (a first layer, blocks and a last layer), which Stageline divides into
/// stages. Its parameters are initialised at random from the seed.
pub fn gpt(shape: Shape, seed: u64) -> Gpt {
    gpt_with(shape, seed, |head| head)
}

/// Returns a GPT like [`gpt`] with a replaced last layer: `wrap` takes the GPT's own last layer and returns the one to
/// use, for example with a different loss.
pub fn gpt_with<H>(shape: Shape, seed: u64, wrap: impl Fn(Head) -> H + 'static) -> Row<Embeddings, Block, H>
where
    H: LossStage<Input = Tensor<3>>,
{
    let embeddings = move |device: &Device| Embeddings::init(shape, device);
    let block = move |_, device: &Device| Block::init(shape, device);
    let head = move |device: &Device| wrap(Head::init(shape, device));
    Row::new(embeddings, shape.layers, block, head).seed(seed).names("embeddings", "blocks", "head")
}

/// Returns each layer's cost for one sample of the maximum length: the layer's number of parameters, and the FLOPs of
/// its forward pass. No times are measured.
pub fn costs(shape: Shape) -> Costs {
    gpt(shape, 0).count(Tensor::zeros([1, shape.context], &Device::flex()))
}

/// The standard deviation of the GPT's initial weights, as in GPT-2. In residual projections it is divided by sqrt(2 x
/// layers).
const DEVIATION: f64 = 0.02;

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Returns a linear layer whose weights are normally distributed with the standard deviation `std`, and whose biases
/// are 0.
fn linear(from: usize, to: usize, std: f64, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(from, to).with_initializer(normal(std)).init(device);
    linear.bias = Some(Initializer::Zeros.init([to], device));
    linear.into()
}

impl Embeddings {
    fn init(shape: Shape, device: &Device) -> Self {
        let bytes = EmbeddingConfig::new(VOCABULARY, shape.width).with_initializer(normal(DEVIATION));
        Self {
            bytes: bytes.init(device).into(),
            positions: normal(DEVIATION).init([shape.context, shape.width], device),
        }
    }
}

impl Block {
    fn init(shape: Shape, device: &Device) -> Self {
        let width = shape.width;
        let residual = DEVIATION / (2.0 * shape.layers as f64).sqrt();
        let norm = || LayerNorm::init(&LayerNormConfig::new(width), device);
        Self {
            attention_norm: norm(),
            attention: Attention {
                query_key_value: linear(width, 3 * width, DEVIATION, device),
                output: linear(width, width, residual, device),
                heads: shape.heads(),
            },
            mlp_norm: norm(),
            up: linear(width, 4 * width, DEVIATION, device),
            down: linear(4 * width, width, residual, device),
        }
    }
}

impl Head {
    fn init(shape: Shape, device: &Device) -> Self {
        let logits = LinearConfig::new(shape.width, VOCABULARY).with_bias(false).with_initializer(normal(DEVIATION));
        Self { norm: LayerNorm::init(&LayerNormConfig::new(shape.width), device), logits: logits.init(device).into() }
    }
}

/// Reshapes activations from `[batch, context, width]` to the matrix `[batch x context, width]`.
fn rows(input: Tensor<3>) -> Tensor<2> {
    input.flatten(0, 1)
}

impl Stage for Embeddings {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;

    fn forward(&self, input: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = input.dims();
        let positions = self.positions.val().slice_dim(0, 0..length);
        self.bytes.forward(input) + positions.unsqueeze()
    }
}

impl Stage for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        block(self, input, Self::compute)
    }

    fn operations(&self) -> Vec<Operation> {
        let head = self.attention.output.weight.shape()[0] / self.attention.heads;
        vec![Operation::layer_norm(), Operation::causal_attention(head), Operation::gelu()]
    }
}

impl Block {
    /// Computes a transformer block's output from activations `[batch, context, width]`. The block's `forward` wraps
    /// this function, so that the whole block can be recomputed in the backward pass.
    fn compute(&self, input: Tensor<3>) -> Tensor<3> {
        let dims = input.dims();
        let residual = rows(input);
        let attention = move |attention: &Attention, input| attention.forward(input, dims);
        let attended = selective(&self.attention, self.attention_norm.forward(residual.clone()), attention);
        let residual = residual + attended;
        let mlp = |block: &Self, input| block.down.forward(gelu(block.up.forward(input)));
        let fed = feed_forward(self, self.mlp_norm.forward(residual.clone()), mlp);
        (residual + fed).reshape(dims)
    }
}

impl Attention {
    /// Computes a block's attention, from activations `[batch x context, width]` to activations of the same shape. The
    /// second argument holds the three sizes `[batch, context, width]`.
    fn forward(&self, input: Tensor<2>, [batch, length, width]: [usize; 3]) -> Tensor<2> {
        let split = self.query_key_value.forward(input).reshape([batch, length, 3 * width]);
        self.output.forward(rows(causal_attention(split, self.heads)))
    }
}

impl Stage for Head {
    type Input = Tensor<3>;
    type Output = Logits;

    fn forward(&self, input: Tensor<3>) -> Logits {
        let [batch, length, _] = input.dims();
        self.logits.forward(self.norm.forward(rows(input))).reshape([batch, length, VOCABULARY])
    }

    fn operations(&self) -> Vec<Operation> {
        vec![Operation::layer_norm(), Operation::cross_entropy()]
    }
}

impl LossStage for Head {
    type Target = Bytes;

    /// Returns the loss of a micro-batch: the cross-entropy of the next bytes, summed over all targets, in nats.
    fn loss(&self, logits: Logits, target: Bytes) -> Tensor<1> {
        cross_entropy(rows(logits), target.flatten(0, 1))
    }

    fn weight(&self, target: &Tensor<2, Int>) -> Weight {
        target.shape().num_elements().into()
    }
}
