//! Fine-tunes a language model from a folder of the Hugging Face hub, cut into pipeline stages.
//!
//! ```text
//! cargo run --release --features models --example finetune -- --model SmolLM-135M --data notes.txt --export tuned
//! ```
//!
//! It trains if there is `--data`, and then computes logits, writes the model and continues a prompt, as the flags say.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use regex::Regex;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use stageline::{CountingAllocator, Pipeline};
use stageline_data::{Bytes, Encode, TokenOptions, Tokenizer, prepare};
use stageline_models::{LanguageModel, Logits, Sampling, Tokens};
use stageline_train::{Data, Program, Run, TokenRows, TokenWindows};

/// The allocator that counts the memory of every stage on the CPU, for memory estimates and the log.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Fine-tunes a language model from a folder of the Hugging Face hub, cut into pipeline stages.
#[derive(Clone, Parser)]
struct Flags {
    /// Folder of the model: config.json, model.safetensors or its shards, and tokenizer.json
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Configuration of a new model, like config.json, whose parameters are drawn from --seed
    #[arg(long, value_name = "CONFIG.json")]
    init: Option<PathBuf>,
    /// Text to train on: a text file, a folder of them, JSON lines with the field `text`, or a .json file with rows of
    /// tokens, which are taken in their order. Without tokenizer.json each byte is a token
    #[arg(long)]
    data: Option<PathBuf>,
    /// Length of a sample, in tokens [default: 256, or less if the model has fewer positions]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Share of the text that is evaluated and not trained on
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    held_out: f64,
    /// Parameters that stay as they are: a regular expression for the names of their tensors
    #[arg(long, value_name = "REGEX")]
    freeze: Option<String>,
    /// Folder for the trained model, which transformers' from_pretrained reads
    #[arg(long, value_name = "DIR")]
    export: Option<PathBuf>,
    /// JSON file with an array of equally long arrays of tokens, whose logits go to --out
    #[arg(long, value_name = "TOKENS.json", requires = "out")]
    logits: Option<PathBuf>,
    /// File for the tensor `logits` [rows, length, vocabulary] in f32
    #[arg(long, value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// Text that the model continues
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Number of tokens with which the model continues --prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 100)]
    new_tokens: usize,
    /// Temperature of the continuation; 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Number of likeliest tokens that the continuation draws from [default: all]
    #[arg(long)]
    top_k: Option<usize>,
    /// Probability of the likeliest tokens that the continuation draws from [default: 1]
    #[arg(long)]
    top_p: Option<f64>,
}

fn main() -> ExitCode {
    let program = Program::<Flags>::new().default_value("learning_rate", "2e-5").default_value("steps", "100");
    program.main(finetune)
}

fn finetune(run: Run<Flags>) -> Result<()> {
    let (flags, seed) = (run.flags.clone(), run.seed());
    let (model, home) = open(&flags, seed)?;
    let encoding = encoding(&home)?;
    let data = match &flags.data {
        Some(path) if run.steps() > 0 => Some(open_data(path, &flags, &model, &*encoding, seed)?),
        _ => None,
    };
    let mut pipeline = match data {
        Some(data) => match run.smaller("give a shorter --context").train(&model.row(), &*data)? {
            Some(trained) => trained.pipeline,
            None => return Ok(()),
        },
        None => run.pipeline(&model.row(), one_token())?,
    };
    if let (Some(rows), Some(out)) = (&flags.logits, &flags.out) {
        write_logits(&model, &mut pipeline, rows, out)?;
    }
    if let Some(folder) = &flags.export {
        model.export(pipeline.snapshot()?, folder)?;
        println!("the model is in {}", folder.display());
    }
    if let Some(prompt) = &flags.prompt {
        let Flags { temperature, top_k, top_p, .. } = flags;
        let sampling = Sampling { temperature, top_k, top_p, seed };
        continue_text(&model, &mut pipeline, &*encoding, (prompt, flags.new_tokens), sampling)?;
    }
    Ok(())
}

/// Opens the model, and returns it with the folder that may have its tokenizer.
fn open(flags: &Flags, seed: u64) -> Result<(LanguageModel, PathBuf)> {
    let (model, home) = match (&flags.model, &flags.init) {
        (Some(folder), None) => (LanguageModel::open(folder).context("--model")?, folder.clone()),
        (None, Some(config)) => {
            let home = config.parent().unwrap_or(Path::new(".")).to_owned();
            (LanguageModel::new(config, seed).context("--init")?, home)
        }
        _ => bail!("give --model DIR for a model of the hub, or --init CONFIG.json for a new one"),
    };
    let Some(pattern) = &flags.freeze else { return Ok((model, home)) };
    let pattern = Regex::new(pattern).context("--freeze")?;
    let shown = pattern.as_str().to_owned();
    let model = model.freeze(move |name| pattern.is_match(name));
    let tensors = model.tensors();
    let frozen = tensors.iter().filter(|(_, frozen)| *frozen).count();
    let example = tensors.first().map_or("", |(name, _)| name);
    ensure!(frozen > 0, "--freeze {shown}: no tensor has such a name; they are like {example}");
    println!("{frozen} of {} tensors are frozen", tensors.len());
    Ok((model, home))
}

/// Returns the encoding of text: that of tokenizer.json if there is one, else bytes.
fn encoding(home: &Path) -> Result<Box<dyn Encode>> {
    let path = home.join("tokenizer.json");
    Ok(if path.exists() { Box::new(Tokenizer::open(&path)?) } else { Box::new(Bytes) })
}

type TokenData = Box<dyn Data<Input = Tokens, Target = Tokens>>;

fn open_data(path: &Path, flags: &Flags, model: &LanguageModel, encoding: &dyn Encode, seed: u64) -> Result<TokenData> {
    let vocabulary = model.vocabulary();
    if path.extension().is_some_and(|extension| extension == "json") {
        let rows = TokenRows::read(path).context("--data")?;
        let largest = rows.largest() as usize;
        ensure!(largest < vocabulary, "--data: it has the token {largest}, and the vocabulary has {vocabulary}");
        return Ok(Box::new(rows));
    }
    let end_of_document = model.end_of_text().first().copied().filter(|end| (*end as usize) < encoding.vocabulary());
    let options = TokenOptions { end_of_document, ..TokenOptions::default() };
    let tokens = prepare(path, encoding, &options).context("--data")?;
    ensure!(
        tokens.vocabulary() <= vocabulary,
        "--data: the text has {} different tokens, and the model's vocabulary has {vocabulary}; is it the model's tokenizer.json?",
        tokens.vocabulary()
    );
    let context = flags.context.unwrap_or(model.positions().min(256));
    ensure!(context <= model.positions(), "--context {context}: the model is made for {} tokens", model.positions());
    println!("{}: {} tokens in {} documents", path.display(), tokens.len(), tokens.documents());
    Ok(Box::new(TokenWindows::new(tokens, context, flags.held_out, seed)?))
}

/// Returns an input of one token, by whose costs the model is cut if it is not trained.
fn one_token() -> Tokens {
    Tokens::zeros([1, 1], &burn::tensor::Device::flex())
}

fn write_logits(
    model: &LanguageModel,
    pipeline: &mut Pipeline<Tokens, Logits, Tokens>,
    rows: &Path,
    out: &Path,
) -> Result<()> {
    let (rows, vocabulary) = (TokenRows::read(rows).context("--logits")?, model.vocabulary());
    let largest = rows.largest() as usize;
    ensure!(largest < vocabulary, "--logits: it has the token {largest}, and the vocabulary has {vocabulary}");
    let logits = pipeline.infer(rows.input())?;
    let shape = logits.dims().to_vec();
    let bytes: Vec<u8> = logits.into_data().iter::<f32>().flat_map(f32::to_le_bytes).collect();
    let tensor = TensorView::new(Dtype::F32, shape, &bytes)?;
    safetensors::serialize_to_file([("logits", tensor)], None, out).with_context(|| out.display().to_string())
}

/// Prints the prompt and its continuation, as it comes.
fn continue_text(
    model: &LanguageModel,
    pipeline: &mut Pipeline<Tokens, Logits, Tokens>,
    encoding: &dyn Encode,
    (prompt, new_tokens): (&str, usize),
    sampling: Sampling,
) -> Result<()> {
    let mut tokens = encoding.encode(prompt).context("--prompt")?;
    let mut shown = String::new();
    let ends = model.end_of_text();
    for token in model.generate(pipeline, &tokens.clone(), sampling).context("--prompt")?.take(new_tokens) {
        let token = token?;
        if ends.contains(&token) {
            break;
        }
        tokens.push(token);
        // A character may have several tokens, so the text is decoded again as a whole.
        let text = encoding.decode(&tokens)?;
        if let Some(new) = text.strip_prefix(&shown).filter(|new| !new.ends_with('\u{fffd}')) {
            print!("{new}");
            std::io::stdout().flush()?;
            shown = text;
        }
    }
    println!();
    Ok(())
}
