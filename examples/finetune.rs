//! Fine-tunes a language model from a folder of the Hugging Face hub, cut into pipeline stages.
//!
//! ```text
//! cargo run --release --features models --example finetune -- --model SmolLM-135M --data notes.txt --export tuned
//! ```
//!
//! It trains if `--data` is given and `--steps` is not 0. Then it exports, computes logits and continues a prompt.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use regex::Regex;
use stageline::{CountingAllocator, Pipeline};
use stageline_data::{Bytes, Continued, Encode, Message, Tokenizer};
use stageline_models::{LanguageModel, Logits, Samples, Sampling, Tokens};
use stageline_train::{Documents, Program, Run, TokenData, TokenRows, TokenSettings, open_tokens, say};

/// The allocator that counts memory on the CPU, for memory estimates and for the log.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Fine-tunes a language model from a folder of the Hugging Face hub, cut into pipeline stages.
#[derive(Clone, Parser)]
struct Flags {
    /// Folder of a model in the Hugging Face format: config.json, model.safetensors or its shards, and tokenizer.json
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Configuration file of a new model, in the format of config.json; its parameters are drawn from --seed
    #[arg(long, value_name = "CONFIG.json")]
    init: Option<PathBuf>,
    /// Text to train on, unless --steps is 0: a text file, a folder, JSON lines (`text`, `prompt` and `completion`, or
    /// `messages`), or a .json file with arrays of tokens (in file order). Without tokenizer.json, each byte is a token
    #[arg(long)]
    data: Option<PathBuf>,
    /// Length of a sample, in tokens [default: 256, or 1024 for packed documents, or less if the model has fewer positions]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Documents in a sample [default: packed if the data has prompts or messages, and otherwise joined]
    #[arg(long)]
    documents: Option<Documents>,
    /// Share of the text that is held out for evaluation and not trained on
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    held_out: f64,
    /// Parameters to freeze (they are not trained): a regular expression for the names of their tensors
    #[arg(long, value_name = "REGEX")]
    freeze: Option<String>,
    /// Folder to which the trained model is written, in the format that transformers' from_pretrained reads
    #[arg(help_heading = "Outputs", long, value_name = "DIR")]
    export: Option<PathBuf>,
    /// JSON file with an array of equally long arrays of tokens. Their logits are computed and written to --out
    #[arg(help_heading = "Outputs", long, value_name = "TOKENS.json")]
    logits: Option<PathBuf>,
    /// File for the logits of --logits: the tensor `logits` [rows, length, vocabulary] in f32
    #[arg(help_heading = "Outputs", long, value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// Text that the model continues after the training
    #[arg(help_heading = "Outputs", long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Writes --prompt as a user's message by the chat template of the model, which answers it
    #[arg(help_heading = "Outputs", long)]
    chat: bool,
    /// Number of tokens with which the model continues --prompt [default: 100]
    #[arg(help_heading = "Outputs", long, value_name = "TOKENS")]
    new_tokens: Option<usize>,
    /// Temperature of the sampling; 0 always takes the likeliest token [default: that of the model's settings, or 0.8]
    #[arg(help_heading = "Outputs", long)]
    temperature: Option<f64>,
    /// Top-k sampling: each token is drawn from this number of likeliest ones; 0 for all [default: likewise, or all]
    #[arg(help_heading = "Outputs", long)]
    top_k: Option<usize>,
    /// Nucleus sampling: tokens come from the fewest likeliest ones with this probability in total [default: likewise, or 1]
    #[arg(help_heading = "Outputs", long)]
    top_p: Option<f64>,
    /// Penalty for tokens that the text already has [default: likewise, or 1 for none]
    #[arg(help_heading = "Outputs", long)]
    repetition_penalty: Option<f64>,
}

fn main() -> ExitCode {
    Program::<Flags>::new().default_value("learning_rate", "2e-5").default_value("steps", "100").main(finetune)
}

fn finetune(run: Run<Flags>) -> Result<()> {
    let (flags, seed) = (run.flags.clone(), run.seed());
    check(&flags)?;
    let model = open(&flags, seed)?;
    let data = flags.data.as_deref().filter(|_| run.steps() > 0); // resumed runs have that of their checkpoint
    let encoding = if data.is_some() || flags.prompt.is_some() { encoding(model.home())? } else { Box::new(Bytes) };
    // Outputs that could fail after the training are checked before it.
    let rows = flags.logits.as_deref().map(TokenRows::read).transpose().context("--logits")?;
    rows.iter().try_for_each(|rows| rows.check(model.vocabulary(), model.positions())).context("--logits")?;
    flags.out.iter().try_for_each(|file| model.check_output(file)).context("--out")?;
    flags.export.iter().try_for_each(|folder| model.check_export(folder)).context("--export")?;
    let mut sampling = model.sampling(Sampling { temperature: 0.8, seed, ..Sampling::GREEDY });
    sampling.temperature = flags.temperature.unwrap_or(sampling.temperature);
    sampling.top_k = flags.top_k.or(sampling.top_k);
    sampling.top_p = flags.top_p.or(sampling.top_p);
    sampling.repetition_penalty = flags.repetition_penalty.unwrap_or(sampling.repetition_penalty);
    let answered = |text: &str| encoding.encode_chat(&[Message::new("user", text)]);
    let tokens = |text| if flags.chat { answered(text) } else { encoding.encode_whole(text) };
    let prompt = flags.prompt.as_deref().map(tokens).transpose().context("--prompt")?;
    prompt.iter().try_for_each(|prompt| model.check_prompt(prompt, &sampling)).context("--prompt")?;
    let ignored = |name| say(format_args!("{name} of the model's settings has no effect: it is not implemented"));
    data.iter().flat_map(|_| model.ignored_in_training()).try_for_each(ignored)?;
    prompt.iter().flat_map(|_| model.ignored_in_generation()).try_for_each(ignored)?;

    let one_token = (Tokens::zeros([1, 1], &burn::tensor::Device::flex()), None); // --cut measured runs layers on it
    let mut pipeline = match data.map(|path| open_data(path, &flags, &model, &*encoding, seed)).transpose()? {
        Some(data) => match run.smaller("take a smaller model, or a shorter --context").train(&model.row(), data)? {
            Some(trained) => trained.pipeline,
            None => return Ok(()),
        },
        None => run.pipeline(&model.row(), one_token)?,
    };
    if let Some(folder) = &flags.export {
        model.export(pipeline.snapshot()?, folder)?; // comes first, so that no later failure loses the model
        say(format_args!("the model is in {}", folder.display()))?;
    }
    rows.iter().zip(&flags.out).try_for_each(|(rows, out)| model.write_logits(&mut pipeline, rows.input(), out))?;
    if let (Some(prompt), Some(text)) = (&prompt, &flags.prompt) {
        write!(stdout(), "{}", if flags.chat { "" } else { text })?; // of a conversation only the answer is shown
        continue_text(&model, &mut pipeline, &*encoding, prompt, flags.new_tokens.unwrap_or(100), sampling)?;
    }
    Ok(())
}

/// Checks that no flag lacks a flag that it needs, as --logits needs --out. clap cannot check this in a --config file.
fn check(flags: &Flags) -> Result<()> {
    ensure!(flags.logits.is_some() == flags.out.is_some(), "--logits and --out belong together: give both or neither");
    let has_number = [flags.temperature, flags.top_p, flags.repetition_penalty].iter().any(Option::is_some);
    let samples = has_number || flags.new_tokens.is_some() || flags.top_k.is_some() || flags.chat;
    let names = "--chat, --new-tokens, --temperature, --top-k, --top-p and --repetition-penalty";
    ensure!(!samples || flags.prompt.is_some(), "{names} need --prompt");
    Ok(())
}

/// Opens the model of `--model`, or creates a new one from `--init`. Freezes the parameters that `--freeze` selects.
fn open(flags: &Flags, seed: u64) -> Result<LanguageModel> {
    let model = match (&flags.model, &flags.init) {
        (Some(folder), None) => LanguageModel::open(folder).context("--model")?,
        (None, Some(config)) => LanguageModel::new(config, seed).context("--init")?,
        _ => bail!("give --model DIR for a model of the hub, or --init CONFIG.json for a new one"),
    };
    let Some(pattern) = &flags.freeze else { return Ok(model) };
    let regex = Regex::new(pattern).context("--freeze")?;
    let model = model.freeze(move |name| regex.is_match(name));
    let tensors = model.tensors();
    let frozen = tensors.iter().filter(|(_, frozen)| *frozen).count();
    ensure!(frozen > 0, "--freeze {pattern}: no tensor has such a name; they are like {}", tensors[0].0);
    say(format_args!("{frozen} of {} tensors are frozen", tensors.len()))?;
    Ok(model)
}

/// Returns the tokenizer in the model's folder `home`. Without a tokenizer, each byte is a token.
fn encoding(home: &Path) -> Result<Box<dyn Encode>> {
    if let Some(tokenizer) = Tokenizer::in_folder(home)? {
        return Ok(Box::new(tokenizer));
    }
    say(format_args!("there is no tokenizer.json in {}, so each byte of a text is a token", home.display()))?;
    Ok(Box::new(Bytes))
}

/// Opens the text of `path` for training, as tokens of the model. Samples must not be longer than the model allows.
fn open_data(path: &Path, flags: &Flags, model: &LanguageModel, encoding: &dyn Encode, seed: u64) -> Result<TokenData> {
    let settings = TokenSettings {
        encoding,
        end_of_document: model.end_of_text().first().copied(),
        vocabulary: model.vocabulary(),
        positions: model.positions(),
        context: flags.context,
        documents: flags.documents,
        held_out: flags.held_out,
        seed,
    };
    open_tokens(path, &settings).context("--data")
}

/// Prints the model's continuation of the prompt, token by token as it is generated.
fn continue_text(
    model: &LanguageModel,
    pipeline: &mut Pipeline<Samples, Logits, Tokens>,
    encoding: &dyn Encode,
    prompt: &[u32],
    new_tokens: usize,
    sampling: Sampling,
) -> Result<()> {
    let (mut text, ends) = (Continued::new(encoding, prompt)?, model.end_of_generation());
    for token in model.generate(pipeline, prompt, sampling)?.take(new_tokens) {
        let token = token?;
        if ends.contains(&token) {
            break;
        }
        write!(stdout(), "{}", text.push(token)?)?;
        stdout().flush()?;
    }
    say(text.rest()?)
}
