//! Fine-tunes a BERT text classifier: a user-defined model, made of burn's layers, with PyTorch weights.
//!
//! ```text
//! cargo run --release --features models,rayon --example bert -- --model bert-base-uncased --new-head --data reviews.jsonl
//! ```
//!
//! Each line of the data is a JSON object with a `text` and a `label`, a class index counted from 0. Dropout, which
//! BERT has in its blocks, is not applied.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use burn::module::Module;
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Bool, Device, Int, Tensor};
use clap::Parser;
use serde::Deserialize;
use serde_json::json;
use stageline::nn::cross_entropy;
use stageline::{CountingAllocator, LossStage, Row, SharedInput, Stage, Weight};
use stageline_data::{Bytes, Encode, Tokenizer};
use stageline_hub::{ModelFolder, write_config};
use stageline_models::{TorchFormat, TorchWeights};
use stageline_train::{LabelledTexts, PaddedTokens, Program, Run, say};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new(); // it counts memory for estimates and the log

/// Fine-tunes a BERT text classifier, cut into pipeline stages.
#[derive(Clone, Parser)]
struct Flags {
    /// Model folder of a BERT in the Hugging Face format. Without tokenizer.json, each byte of a text is a token
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// JSON lines with a `text` and a `label`, a class index counted from 0. Every tenth text is held out for
    /// evaluation
    #[arg(long, value_name = "FILE.jsonl")]
    data: PathBuf,
    /// Initialises a new head for the classes of the data, instead of loading the folder's head
    #[arg(long)]
    new_head: bool,
    /// Length to which texts are padded or truncated, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    context: usize,
    /// Folder to which the trained model is written, for BertForSequenceClassification.from_pretrained
    #[arg(help_heading = "Outputs", long, value_name = "DIR")]
    export: Option<PathBuf>,
}

/// A BERT's sizes: the fields of its config.json that its layers need.
#[derive(Clone, Debug, Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f64,
    hidden_act: String,
    #[serde(default)]
    is_decoder: bool,
    /// The task; without it, a model with two classes or more has [`SINGLE_LABEL`].
    problem_type: Option<String>,
}

impl Config {
    /// Checks that this example's layers compute what transformers computes with this config.json.
    fn check(&self, new_head: bool) -> Result<()> {
        let Self { hidden_size, num_attention_heads: heads, hidden_act, .. } = self;
        ensure!(hidden_act == "gelu", "hidden_act {hidden_act}: this BERT has gelu");
        ensure!(!self.is_decoder, "is_decoder: this BERT is an encoder; its attention has no causal mask");
        ensure!(
            *heads > 0 && hidden_size.is_multiple_of(*heads),
            "num_attention_heads {heads} does not divide hidden_size {hidden_size}"
        );
        let problem = self.problem_type.as_deref().filter(|problem| !new_head && *problem != SINGLE_LABEL);
        problem.map_or(Ok(()), |problem| {
            bail!("problem_type {problem}: this example trains one class for each text; give --new-head")
        })
    }
}

/// The name in config.json of the task that this example trains: one class for each text.
const SINGLE_LABEL: &str = "single_label_classification";

/// The padding mask, `[samples, length]`, which is true for padding. All stages read it from the batch.
type Padding = SharedInput<Tensor<2, Bool>>;

/// The first layer: adds the embeddings of tokens, positions and segments (always segment 0 here), and normalises the
/// sums.
#[derive(Module, Debug)]
struct Embeddings {
    tokens: Embedding,
    positions: Embedding,
    texts: Embedding,
    norm: LayerNorm,
}

impl Stage for Embeddings {
    type Input = PaddedTokens;
    type Output = (Tensor<3>, Padding);

    fn forward(&self, (tokens, padding): Self::Input) -> Self::Output {
        let [_, length] = tokens.dims();
        let positions =
            self.positions.weight.val().slice_dim(0, 0..length) + self.texts.weight.val().slice_dim(0, 0..1);
        (self.norm.forward(self.tokens.forward(tokens) + positions.unsqueeze()), padding)
    }
}

#[derive(Module, Debug)]
struct Block {
    layer: TransformerEncoderLayer,
}

impl Stage for Block {
    type Input = (Tensor<3>, Padding);
    type Output = (Tensor<3>, Padding);

    fn forward(&self, (hidden, padding): Self::Input) -> Self::Output {
        (self.layer.forward(hidden, Some(padding.get()), None), padding)
    }
}

/// The last layer: computes a text's class logits from the activations of the text's first token.
#[derive(Module, Debug)]
struct Head {
    pooler: Linear,
    classifier: Linear,
}

impl Stage for Head {
    type Input = (Tensor<3>, Padding);
    type Output = Tensor<2>;

    fn forward(&self, (hidden, _): Self::Input) -> Tensor<2> {
        self.classifier.forward(self.pooler.forward(hidden.slice_dim(1, 0..1).squeeze_dim::<2>(1)).tanh())
    }
}

impl LossStage for Head {
    type Target = Tensor<1, Int>;
    const METRICS: &'static [&'static str] = &["accuracy"];

    fn loss(&self, logits: Tensor<2>, label: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(logits, label)
    }

    fn weight(&self, label: &Tensor<1, Int>) -> Weight {
        label.dims()[0].into()
    }

    fn metrics(&self, logits: Tensor<2>, label: Tensor<1, Int>) -> Tensor<1> {
        logits.argmax(1).squeeze_dim::<1>(1).equal(label).float().sum()
    }
}

/// Returns the layers of a BERT classifier with `classes` classes. Each layer is created later, on its stage's device.
fn bert(config: Config, classes: usize, seed: u64) -> Row<Embeddings, Block, Head> {
    let (width, blocks, eps) = (config.hidden_size, config.num_hidden_layers, config.layer_norm_eps);
    let description = format!("{config:?}");
    let table = move |rows, device: &Device| EmbeddingConfig::new(rows, width).init(device);
    let block = TransformerEncoderConfig::new(width, config.intermediate_size, config.num_attention_heads, blocks)
        .with_dropout(0.0)
        .with_layer_norm_eps(eps);
    Row::new(
        move |device| Embeddings {
            tokens: table(config.vocab_size, device),
            positions: table(config.max_position_embeddings, device),
            texts: table(config.type_vocab_size, device),
            norm: LayerNormConfig::new(width).with_epsilon(eps).init(device),
        },
        blocks,
        move |_, device| Block { layer: TransformerEncoderLayer::new(&block, device) },
        move |device| Head {
            pooler: LinearConfig::new(width, width).init(device),
            classifier: LinearConfig::new(width, classes).init(device),
        },
    )
    .seed(seed)
    .names("embeddings", "blocks", "head")
    .described(description)
}

/// Returns the mapping from this example's parameter names to those of BERT in PyTorch.
fn names() -> TorchFormat {
    [
        ("embeddings.tokens", "embeddings.word_embeddings"),
        ("embeddings.positions", "embeddings.position_embeddings"),
        ("embeddings.texts", "embeddings.token_type_embeddings"),
        ("embeddings.norm", "embeddings.LayerNorm"),
        ("embeddings", "bert.embeddings"),
        ("layer.mha.output", "attention.output.dense"),
        ("layer.mha", "attention.self"),
        ("layer.norm_1", "attention.output.LayerNorm"),
        ("layer.pwff.linear_inner", "intermediate.dense"),
        ("layer.pwff.linear_outer", "output.dense"),
        ("layer.norm_2", "output.LayerNorm"),
        ("blocks", "bert.encoder.layer"),
        ("head.pooler", "bert.pooler.dense"),
        ("head", ""),
    ]
    .into_iter()
    .fold(TorchFormat::new(), |format, (ours, theirs)| format.rename(ours, theirs))
}

fn main() -> ExitCode {
    // Blocks are timed because burn's layers report no FLOPs.
    let program = Program::<Flags>::new().default_value("cut", "measured");
    program.default_value("learning_rate", "2e-5").default_value("steps", "100").main(finetune)
}

fn finetune(run: Run<Flags>) -> Result<()> {
    let Flags { model, data, new_head, context, export } = run.flags.clone();
    let encoding: Box<dyn Encode> = Tokenizer::in_folder(&model)?.map_or(Box::new(Bytes), |found| Box::new(found));
    let texts = LabelledTexts::read(&data, &*encoding, context, run.seed()).context("--data")?;
    let folder = ModelFolder::open(&model).context("--model")?;
    let mut description = folder.config()?.clone();
    let labels = description["id2label"].as_object().map(|labels| labels.len() as u64);
    let of_folder = description["num_labels"].as_u64().or(labels).unwrap_or(2) as usize; // 2 as in transformers
    let classes = if new_head { texts.classes() } else { of_folder };
    ensure!(
        texts.classes() <= classes,
        "the data has {} classes, and the model has {classes}; give --new-head",
        texts.classes()
    );
    ensure!(classes > 1, "the texts have labels of one class only; give a text with another label");
    let config = Config::deserialize(&description).context("config.json")?;
    config.check(new_head).context("config.json")?;
    texts.check(config.vocab_size).context("--data")?;
    let positions = config.max_position_embeddings;
    ensure!(context <= positions, "--context {context}: the model has {positions} positions");
    ensure!(new_head || folder.has("classifier.weight"), "the folder has no classifier; give --new-head");
    let has_pooler = folder.has("bert.pooler.dense.weight"); // a folder of BertForMaskedLM has none
    let is_new = move |name: &str| name.starts_with("classifier.") || (!has_pooler && name.starts_with("bert.pooler."));
    let weights = TorchWeights::open(&model, names())?
        .draw(move |name| new_head && is_new(name))
        .leave_out(|name| name.starts_with("cls."))
        .keep(|name| name.ends_with("position_ids"));
    let row = weights.load(bert(config, classes, run.seed()))?;
    export.iter().try_for_each(|folder| weights.check_export(&row, folder)).context("--export")?;
    let (Some(mut trained), Some(folder)) = (run.train(&row, texts)?, export) else { return Ok(()) };
    weights.export(&row, trained.pipeline.snapshot()?, &folder)?;
    if new_head {
        // from_pretrained takes the number of classes from the labels, unless `num_labels` contradicts them.
        description.as_object_mut().map(|fields| fields.remove("num_labels"));
        description["architectures"] = json!(["BertForSequenceClassification"]);
        description["problem_type"] = json!(SINGLE_LABEL);
        let label = |class| format!("LABEL_{class}");
        description["id2label"] = (0..classes).map(|class| (class.to_string(), json!(label(class)))).collect();
        description["label2id"] = (0..classes).map(|class| (label(class), json!(class))).collect();
        write_config(&folder, &description)?;
    }
    say(format_args!("the model is in {}", folder.display()))
}
