//! Fine-tunes a language model from a Hugging Face model folder, cut into pipeline stages.
//!
//! ```text
//! cargo run --release --features models --example finetune -- --model SmolLM-135M --data notes.txt --export tuned
//! ```
//!
//! It trains if `--data` is given and `--steps` is not 0. Then it exports the model, computes logits and continues a
//! prompt.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Error, Result, ensure};
use clap::Parser;
use stageline::{CountingAllocator, Pipeline};
use stageline_data::{Bytes, Continued, Encode, Message, Tokenizer};
use stageline_models::flags::{ModelFlags, SamplingFlags};
use stageline_models::{LanguageModel, Logits, Samples, Sampling, Tokens};
use stageline_train::{Program, Run, TokenFlags, TokenRows, TokenSettings, is_same_place, say, show_samples};

/// The allocator that counts host memory, for memory estimates and for the log.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Fine-tunes a language model from a Hugging Face model folder, cut into pipeline stages.
#[derive(Clone, Parser)]
struct Flags {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    data: TokenFlags,
    /// Folder to which the trained model is written, in the format that transformers' from_pretrained reads. LoRA
    /// adapters are merged into its weights
    #[arg(help_heading = "Outputs", long, value_name = "DIR")]
    export: Option<PathBuf>,
    /// Folder to which the LoRA adapters are written, in the format that PEFT reads
    #[arg(help_heading = "Outputs", long, value_name = "DIR")]
    export_adapter: Option<PathBuf>,
    /// JSON file with an array of equally long arrays of token ids. After training, the model's logits for them are
    /// written to --out
    #[arg(help_heading = "Inference", long, value_name = "TOKENS.json")]
    logits: Option<PathBuf>,
    /// File for the logits of --logits: the tensor `logits` [rows, length, vocabulary] in f32
    #[arg(help_heading = "Outputs", long, value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// Text that the model continues after training
    #[arg(help_heading = "Inference", long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Formats --prompt as a user message with the model's chat template, and generates the answer
    #[arg(help_heading = "Inference", long)]
    chat: bool,
    /// Number of tokens to generate after --prompt [default: max_new_tokens of the folder, or 100]
    #[arg(help_heading = "Inference", long, value_name = "TOKENS")]
    new_tokens: Option<usize>,
    #[command(flatten)]
    sampling: SamplingFlags,
}

fn main() -> ExitCode {
    Program::<Flags>::new().default_value("learning_rate", "2e-5").default_value("steps", "100").main(finetune)
}

fn finetune(run: Run<Flags>) -> Result<()> {
    let (flags, seed) = (run.flags.clone(), run.seed());
    check(&flags)?;
    let model = flags.model.open(seed)?.computing_in(run.precision());
    say(&model)?;
    // A resumed run has its checkpoint's data, even if it does not train.
    let has_data = flags.data.data.is_some() && (run.trains() || flags.data.show_samples.is_some());
    if has_data && run.trains() && flags.data.show_samples.is_none() {
        tell(&run)?;
    }
    let decodes = flags.prompt.is_some() || flags.data.show_samples.is_some();
    let encoding = encoding(model.home(), decodes || has_data && flags.data.reads_text())?;
    // Outputs that could fail after training are checked before it.
    let rows = flags.logits.as_deref().map(TokenRows::read).transpose().context("--logits")?;
    rows.iter().try_for_each(|rows| rows.check(model.vocabulary(), model.positions())).context("--logits")?;
    flags.out.iter().try_for_each(|file| model.check_output(file)).context("--out")?;
    flags.export.iter().try_for_each(|folder| model.check_export(folder)).context("--export")?;
    let adapters = flags.export_adapter.as_deref();
    adapters.map_or(Ok(()), |folder| model.check_adapter_export(folder)).context("--export-adapter")?;
    let sampling = flags.prompt.as_ref().map(|_| flags.sampling.sampling(&model, seed)).transpose()?;
    let answered = |text: &str| encoding.encode_chat(&[Message::new("user", text)]);
    let tokens = |text| if flags.chat { answered(text) } else { encoding.encode_whole(text) };
    let prompt = flags.prompt.as_deref().map(tokens).transpose().context("--prompt")?;
    prompt.iter().zip(&sampling).try_for_each(|(prompt, by)| model.check_prompt(prompt, by)).context("--prompt")?;
    let ignored = |name| say(format_args!("{name} of the model's settings has no effect: it is not implemented"));
    has_data.then(|| model.ignored_in_training()).into_iter().flatten().try_for_each(ignored)?;
    prompt.iter().flat_map(|_| model.ignored_in_generation()).try_for_each(ignored)?;

    let one_token = (Tokens::zeros([1, 1], &burn::tensor::Device::flex()), None); // --cut measured runs layers on it
    if !has_data && flags.data.eval_data.is_some() {
        say("--eval-data has no effect, because this run does not train")?;
    }
    let data = if has_data { flags.data.open(settings(&model, &*encoding, seed))? } else { None };
    if let (Some(data), Some(count)) = (&data, flags.data.show_samples) {
        return Ok(write!(stdout(), "{}", show_samples(data, &*encoding, count)?)?);
    }
    let unwritten = run.unwritten();
    let mut pipeline = match data {
        Some(data) => match run.smaller("take a smaller model").train(&model.row(), data)? {
            Some(trained) => trained.pipeline,
            None => {
                let given = [flags.export.is_some(), flags.export_adapter.is_some(), rows.is_some(), prompt.is_some()];
                let names = ["--export", "--export-adapter", "--logits", "--prompt"].into_iter().zip(given);
                let line = |name| say(format_args!("{name} has no effect: this run has not ended the training"));
                return names.filter(|(_, is_given)| *is_given).try_for_each(|(name, _)| line(name));
            }
        },
        None => run.pipeline(&model.row(), one_token)?,
    };
    // The exports come first, and each is written even if the other fails, so that no failure loses the trained
    // parameters.
    if let Some(folder) = &flags.export_adapter {
        let exported = model.export_adapter(pipeline.snapshot()?, folder).map_err(Error::from);
        unwritten.unless(exported.and_then(|()| say(format_args!("the adapters are in {}", folder.display()))));
    }
    if let Some(folder) = &flags.export {
        let exported = model.export(pipeline.snapshot()?, folder).map_err(Error::from);
        unwritten.unless(exported.and_then(|()| say(format_args!("the model is in {}", folder.display()))));
    }
    rows.iter().zip(&flags.out).try_for_each(|(rows, out)| model.write_logits(&mut pipeline, rows.input(), out))?;
    if let (Some(prompt), Some(sampling), Some(text)) = (&prompt, sampling, &flags.prompt) {
        write!(stdout(), "{}", if flags.chat { "" } else { text })?; // of a conversation only the answer is shown
        let most = flags.new_tokens.or(model.max_new_tokens()).unwrap_or(100);
        continue_text(&model, &mut pipeline, &*encoding, prompt, most, sampling)?;
    }
    Ok(())
}

/// Reminds the user of settings that may have been forgotten: a learning rate that suits the kind of training, and a
/// place for the trained parameters.
fn tell(run: &Run<Flags>) -> Result<()> {
    let Flags { model, export, export_adapter, prompt, logits, .. } = &run.flags;
    let adapts = model.lora.is_some() || model.adapter.is_some();
    if (adapts || model.init.is_some()) && !run.is_set("learning_rate") {
        let usual = if adapts { "LoRA adapters take 1e-4 to 3e-4" } else { "a new model takes 3e-4 to 3e-3" };
        say(format_args!("the learning rate is that of fine-tuning all parameters; usually {usual}: --learning-rate"))?;
    }
    let is_used = prompt.is_some() || logits.is_some() || run.writes_checkpoints();
    if export.is_none() && export_adapter.is_none() && !is_used {
        say("the trained parameters are not kept: give --export, --export-adapter or --checkpoint")?;
    }
    Ok(())
}

/// Checks that flags that depend on each other are given together, such as --logits and --out. clap cannot check flags
/// in a --config file.
fn check(flags: &Flags) -> Result<()> {
    ensure!(flags.logits.is_some() == flags.out.is_some(), "--logits and --out belong together: give both or neither");
    flags.data.check()?;
    let folders = flags.export.as_ref().zip(flags.export_adapter.as_ref());
    ensure!(
        !folders.is_some_and(|(one, other)| is_same_place(one, other)),
        "--export and --export-adapter need a folder each"
    );
    let samples = flags.sampling.is_given() || flags.new_tokens.is_some() || flags.chat;
    let names = "--chat, --new-tokens, --temperature, --top-k, --top-p and --repetition-penalty";
    ensure!(!samples || flags.prompt.is_some(), "{names} need --prompt");
    Ok(())
}

/// Returns the tokenizer in the model folder `home`, if texts are read or written (`has_text`). Without a tokenizer, each
/// byte is a token.
fn encoding(home: &Path, has_text: bool) -> Result<Box<dyn Encode>> {
    let tokenizer = if has_text { Tokenizer::in_folder(home)? } else { return Ok(Box::new(Bytes)) };
    if let Some(tokenizer) = tokenizer {
        return Ok(Box::new(tokenizer));
    }
    say(format_args!("there is no tokenizer.json in {}, so each byte of a text is a token", home.display()))?;
    Ok(Box::new(Bytes))
}

/// Returns the settings for opening the training data that depend on the model; the flags choose the others.
fn settings<'a>(model: &LanguageModel, encoding: &'a dyn Encode, seed: u64) -> TokenSettings<'a> {
    let of_model = TokenSettings::new(encoding, model.vocabulary(), model.positions());
    TokenSettings { end_of_document: model.end_of_text().first().copied(), seed, ..of_model }
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
