//! The supported model families ([`Family`]). All families share one type each for first layer, block and head, so that
//! every model is the same type of [`Row`](stageline::Row) (first layer, blocks, last layer).

use std::fmt;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use serde_json::Value;
use stageline::nn::{Embedding, Operation, RotaryAngles};
use stageline::{Halves, LossStage, Stage, Weight};

use crate::attention::{DocumentStarts, KeyValueCache, Scope};
use crate::families::block::Activations;
use crate::families::initial::{rows, table};
use crate::families::{gpt2, head, llama, unsupported};
use crate::parameters::Names;

/// The model architectures that this crate supports, as values of `model_type` in `config.json`.
pub const KNOWN: &[&str] = &["gpt2", "llama", "mistral", "qwen2", "qwen3"];

/// Returns the Transformers library's class name for causal language models of the type `kind`, one of [`KNOWN`]. It is
/// an entry of `architectures` in `config.json`.
pub fn architecture(kind: &str) -> &'static str {
    match kind {
        "gpt2" => "GPT2LMHeadModel",
        "mistral" => "MistralForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        _ => "LlamaForCausalLM",
    }
}

/// A language model's input: token ids, `[batch, length]`, and the document starts. The starts are `None` if every
/// sample is one document, in which each token attends to all earlier tokens.
pub type Samples = (Tensor<2, Int>, Option<DocumentStarts>);

/// A language model's family (architecture), with the model's configuration.
#[derive(Clone, Debug)]
pub enum Family {
    Gpt2(gpt2::Config),
    Llama(llama::Config),
}

/// Formats a summary of the model's sizes, such as `4 blocks of width 64, 4 heads`.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (width, heads, shared) = match self {
            Self::Gpt2(config) => (config.width, config.heads, config.heads),
            Self::Llama(config) => (config.width, config.heads, config.key_value_heads),
        };
        write!(f, "{} blocks of width {width}, {heads} heads", self.blocks())?;
        if shared != heads {
            write!(f, " with {shared} for keys and values")?;
        }
        write!(f, ", a vocabulary of {} tokens, {} positions", self.vocabulary(), self.positions())
    }
}

impl Family {
    /// Returns the configuration as text, to identify the function that a trained model computes. Settings that change
    /// no output are omitted: the standard deviation of initial weights, and a Llama's padding token and maximum
    /// sequence length.
    pub fn function(&self) -> String {
        match self {
            Self::Gpt2(config) => format!("{:?}", gpt2::Config { deviation: 0.0, ..config.clone() }),
            Self::Llama(config) => {
                let config = llama::Config { deviation: 0.0, padding: None, positions: 0, ..config.clone() };
                format!("{config:?}")
            }
        }
    }

    /// Parses `config`, the contents of a `config.json` of `model_type` `kind`. Returns `None` if this crate does not
    /// support the type; the inner error says which field is missing or invalid.
    pub fn read(kind: &str, config: &Value) -> Option<Result<Self, String>> {
        if !KNOWN.contains(&kind) {
            return None;
        }
        Some(unsupported::check(config).and_then(|()| match kind {
            "gpt2" => gpt2::Config::read(config).map(Self::Gpt2),
            _ => llama::Config::read(config, kind).map(Self::Llama),
        }))
    }

    /// Returns the tensor names of this model family on the Hugging Face hub, by layer and parameter.
    pub fn names(&self) -> &'static Names {
        match self {
            Self::Gpt2(_) => &gpt2::NAMES,
            Self::Llama(_) => &llama::NAMES,
        }
    }

    /// Whether the head is tied: its projection to the vocabulary and the token embedding table are one parameter.
    pub fn tied(&self) -> bool {
        match self {
            Self::Gpt2(config) => config.tied,
            Self::Llama(config) => config.tied,
        }
    }

    /// Returns the id of the padding token, whose embedding is not trained; `None` if the model has no such token.
    /// GPT-2 trains the embeddings of all tokens.
    pub fn padding(&self) -> Option<usize> {
        match self {
            Self::Gpt2(_) => None,
            Self::Llama(config) => config.padding,
        }
    }

    /// Returns the language model's number of transformer blocks.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Gpt2(config) => config.layers,
            Self::Llama(config) => config.layers,
        }
    }

    /// Returns the number of tokens in the model's vocabulary.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Gpt2(config) => config.vocabulary,
            Self::Llama(config) => config.vocabulary,
        }
    }

    /// Returns the length, in tokens, of the longest sequence that the model supports.
    pub fn positions(&self) -> usize {
        match self {
            Self::Gpt2(config) => config.positions,
            Self::Llama(config) => config.positions,
        }
    }

    /// Returns the rotary embedding's frequencies, for the rotation angles in each block; empty for GPT-2, which has no
    /// rotary embedding.
    pub fn angles(&self) -> RotaryAngles {
        match self {
            Self::Gpt2(_) => RotaryAngles::new(Vec::new()),
            Self::Llama(config) => RotaryAngles::new(config.frequencies.clone()),
        }
    }

    /// Creates a newly initialised table `[vocabulary, width]`: the token embedding table, or the weight of the head's
    /// projection to the vocabulary.
    pub fn table(&self, device: &Device) -> Embedding {
        let (width, deviation) = match self {
            Self::Gpt2(config) => (config.width, config.deviation),
            Self::Llama(config) => (config.width, config.deviation),
        };
        table([self.vocabulary(), width], deviation, device)
    }

    /// Creates a language model's first layer, with the token embedding table `tokens`. `cache` holds the state of text
    /// generation.
    pub fn embeddings(&self, tokens: Embedding, cache: &KeyValueCache, device: &Device) -> Embeddings {
        match self {
            Self::Gpt2(config) => Embeddings::Gpt2(gpt2::Embeddings::new(config, tokens, cache, device)),
            Self::Llama(config) => Embeddings::Llama(llama::Embeddings::new(tokens, config.padding, cache)),
        }
    }

    /// Creates a language model's transformer block with the zero-based index `index`. `angles` holds the frequencies
    /// of the rotary embedding; GPT-2 ignores it.
    pub fn block(&self, index: usize, angles: &RotaryAngles, device: &Device) -> Block {
        match self {
            Self::Gpt2(config) => Block::Gpt2(gpt2::block(config, index, device)),
            Self::Llama(config) => Block::Llama(llama::block(config, index, angles, device)),
        }
    }

    /// Creates a language model's head (last layer): the final norm and the projection to the vocabulary. `output`
    /// holds the projection's weight, `[vocabulary, width]`; in a tied model it is the token embedding table.
    pub fn head(&self, output: Embedding, device: &Device) -> Head {
        match self {
            Self::Gpt2(config) => Head::Gpt2(Gpt2Head { norm: gpt2::norm(config, device), output }),
            Self::Llama(config) => Head::Llama(LlamaHead { norm: llama::norm(config, config.width, device), output }),
        }
    }
}

/// A model's first layer, which maps token ids ([`Samples`]) to activations ([`Activations`]), with one variant per
/// family: GPT-2 adds position embeddings to the token embeddings, and the Llama family does not.
#[derive(Module, Debug)]
#[allow(missing_docs)]
pub enum Embeddings {
    Gpt2(gpt2::Embeddings),
    Llama(llama::Embeddings),
}

/// A model's transformer block, with one variant for each model family: GPT-2 has layer norms, and the Llama family has
/// RMS norms and rotary embeddings. Input and output are [`Activations`].
#[derive(Module, Debug)]
#[allow(missing_docs)]
#[allow(clippy::large_enum_variant)] // The size is small beside the tensors of a block.
pub enum Block {
    Gpt2(gpt2::Block),
    Llama(llama::Block),
}

/// A model's head (last layer), with one variant for each model family. It normalises activations (layer norm in GPT-2,
/// RMS norm in the Llama family) and projects them to logits `[batch, length, vocabulary]`. During text generation, it
/// projects only the last position, `[batch, 1, vocabulary]`. The loss is the summed cross-entropy of the next tokens
/// in nats.
#[derive(Module, Debug)]
#[allow(missing_docs)]
pub enum Head {
    Gpt2(Gpt2Head),
    Llama(LlamaHead),
}

/// The head of GPT-2: the final layer norm and the projection to the vocabulary.
#[derive(Module, Debug)]
pub struct Gpt2Head {
    norm: gpt2::Norm,
    output: Embedding,
}

/// The head of the Llama family: the final RMS norm and the projection to the vocabulary.
#[derive(Module, Debug)]
pub struct LlamaHead {
    norm: llama::Norm,
    output: Embedding,
}

impl Stage for Embeddings {
    type Input = Samples;
    type Output = Activations;

    fn forward(&self, (tokens, starts): Samples) -> Activations {
        match self {
            Self::Gpt2(embeddings) => embeddings.forward(tokens, starts),
            Self::Llama(embeddings) => embeddings.forward(tokens, starts),
        }
    }
}

impl Stage for Block {
    type Input = Activations;
    type Output = Activations;

    fn forward(&self, input: Activations) -> Activations {
        match self {
            Self::Gpt2(block) => block.forward(input),
            Self::Llama(block) => block.forward(input),
        }
    }

    fn operations(&self) -> Vec<Operation> {
        match self {
            Self::Gpt2(block) => block.operations(),
            Self::Llama(block) => block.operations(),
        }
    }
}

impl Halves for Block {
    const NAMES: [&'static str; 2] = gpt2::Block::NAMES;

    fn halves(self) -> [Self; 2] {
        match self {
            Self::Gpt2(block) => block.halves().map(Self::Gpt2),
            Self::Llama(block) => block.halves().map(Self::Llama),
        }
    }

    fn join(self, second: Self) -> Self {
        match (self, second) {
            (Self::Gpt2(first), Self::Gpt2(second)) => Self::Gpt2(first.join(second)),
            (Self::Llama(first), Self::Llama(second)) => Self::Llama(first.join(second)),
            _ => unreachable!("all blocks of a model are of one family"),
        }
    }

    fn is_first_half(&self) -> bool {
        match self {
            Self::Gpt2(block) => block.is_first_half(),
            Self::Llama(block) => block.is_first_half(),
        }
    }
}

impl Stage for Head {
    type Input = Activations;
    type Output = Tensor<3>;

    fn forward(&self, (input, scope): Activations) -> Tensor<3> {
        let input = match scope {
            // Generation needs only the last position's logits; those of a whole prompt would take much device memory.
            Scope::Generated { .. } => last_position(input),
            Scope::Sample | Scope::Documents(_) => input,
        };
        let (dims, input) = (input.dims(), rows(input));
        match self {
            Self::Gpt2(Gpt2Head { norm, output }) => head::logits(output, norm.forward(input), dims),
            Self::Llama(LlamaHead { norm, output }) => head::logits(output, norm.forward(input), dims),
        }
    }

    fn operations(&self) -> Vec<Operation> {
        let norm = match self {
            Self::Gpt2(_) => Operation::layer_norm(),
            Self::Llama(_) => Operation::rms_norm(),
        };
        vec![norm, Operation::cross_entropy()]
    }
}

/// Returns the last position, `[batch, 1, width]`, of activations or logits `[batch, length, width]`.
pub fn last_position(values: Tensor<3>) -> Tensor<3> {
    let [_, length, _] = values.dims();
    values.slice_dim(1, length - 1..length)
}

impl LossStage for Head {
    type Target = Tensor<2, Int>;

    fn loss(&self, logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
        head::loss(logits, targets)
    }

    fn weight(&self, targets: &Tensor<2, Int>) -> Weight {
        head::weight(targets)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_head_projects_only_the_last_position_of_a_generated_text() {
        let device = Device::flex();
        let gpt2 = json!({"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16});
        let llama = json!({
            "vocab_size": 11, "hidden_size": 8, "intermediate_size": 9, "num_hidden_layers": 1,
            "num_attention_heads": 2,
        });
        for (kind, config) in [("gpt2", gpt2), ("llama", llama)] {
            let family = Family::read(kind, &config).unwrap().unwrap();
            let head = family.head(family.table(&device), &device);
            let input = Tensor::<3>::random([2, 5, 8], Distribution::Uniform(-1.0, 1.0), &device);
            let all = head.forward((input.clone(), Scope::Sample));
            let last = head.forward((input, Scope::Generated { text: 1, position: 0 }));
            assert_eq!((all.dims(), last.dims()), ([2, 5, 11], [2, 1, 11]), "{kind}");
            let apart = (all.slice_dim(1, 4..5) - last).abs().max().into_scalar::<f32>();
            assert!(apart < 1e-5, "{kind}: {apart}");
        }
    }
}
