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

use anyhow::{Context, Error, Result, ensure};
use clap::Parser;
use stageline::{CountingAllocator, Pipeline};
use stageline_data::{Bytes, Continued, Encode, Message, Tokenizer};
use stageline_models::flags::{ModelFlags, SamplingFlags};
use stageline_models::{LanguageModel, Logits, Samples, Sampling, Tokens};
use stageline_train::{HeldOut, Program, Run, TokenFlags, TokenRows, TokenSettings, is_same_place, say, show_samples};

/// The allocator that counts memory on the CPU, for memory estimates and for the log.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Fine-tunes a language model from a folder of the Hugging Face hub, cut into pipeline stages.
#[derive(Clone, Parser)]
struct Flags {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    data: TokenFlags,
    /// Folder to which the trained model is written, in the format that transformers' from_pretrained reads. LoRA
    /// adapters are added to its weights
    #[arg(help_heading = "Outputs", long, value_name = "DIR")]
    export: Option<PathBuf>,
    /// Folder to which the LoRA adapters are written, in the format that PEFT reads
    #[arg(help_heading = "Outputs", long, value_name = "DIR")]
    export_adapter: Option<PathBuf>,
    /// JSON file with an array of equally long arrays of token ids. After the training, the model's logits for them are
    /// written to --out
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
    if flags.model.init.is_some() && run.trains() && !run.is_set("learning_rate") {
        say("the learning rate is that of fine-tuning: a new model usually takes --learning-rate 3e-4 to 3e-3")?;
    }
    // A resumed run has the data of its checkpoint, also if it does not train.
    let has_data = flags.data.data.is_some() && (run.trains() || flags.data.show_samples.is_some());
    let encoding = if has_data || flags.prompt.is_some() { encoding(model.home())? } else { Box::new(Bytes) };
    // Outputs that could fail after the training are checked before it.
    let rows = flags.logits.as_deref().map(TokenRows::read).transpose().context("--logits")?;
    rows.iter().try_for_each(|rows| rows.check(model.vocabulary(), model.positions())).context("--logits")?;
    flags.out.iter().try_for_each(|file| model.check_output(file)).context("--out")?;
    flags.export.iter().try_for_each(|folder| model.check_export(folder)).context("--export")?;
    flags
        .export_adapter
        .iter()
        .try_for_each(|folder| model.check_adapter_export(folder))
        .context("--export-adapter")?;
    let sampling = flags.sampling.sampling(&model, seed);
    let answered = |text: &str| encoding.encode_chat(&[Message::new("user", text)]);
    let tokens = |text| if flags.chat { answered(text) } else { encoding.encode_whole(text) };
    let prompt = flags.prompt.as_deref().map(tokens).transpose().context("--prompt")?;
    prompt.iter().try_for_each(|prompt| model.check_prompt(prompt, &sampling)).context("--prompt")?;
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
                let line =
                    |name| say(format_args!("{name} has no effect, because this run has not ended the training"));
                return names.filter(|(_, is_given)| *is_given).try_for_each(|(name, _)| line(name));
            }
        },
        None => run.pipeline(&model.row(), one_token)?,
    };
    // The exports come first, and each is written even if the other fails, so that no failure loses what was trained.
    if let Some(folder) = &flags.export_adapter {
        let exported = model.export_adapter(pipeline.snapshot()?, folder).map_err(Error::from);
        unwritten.unless(exported.and_then(|()| say(format_args!("the adapters are in {}", folder.display()))));
    }
    if let Some(folder) = &flags.export {
        let exported = model.export(pipeline.snapshot()?, folder).map_err(Error::from);
        unwritten.unless(exported.and_then(|()| say(format_args!("the model is in {}", folder.display()))));
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

/// Returns the tokenizer in the model's folder `home`. Without a tokenizer, each byte is a token.
fn encoding(home: &Path) -> Result<Box<dyn Encode>> {
    if let Some(tokenizer) = Tokenizer::in_folder(home)? {
        return Ok(Box::new(tokenizer));
    }
    say(format_args!("there is no tokenizer.json in {}, so each byte of a text is a token", home.display()))?;
    Ok(Box::new(Bytes))
}

/// Returns the settings of training data for a model; the flags choose the others.
fn settings<'a>(model: &LanguageModel, encoding: &'a dyn Encode, seed: u64) -> TokenSettings<'a> {
    TokenSettings {
        encoding,
        end_of_document: model.end_of_text().first().copied(),
        vocabulary: model.vocabulary(),
        positions: model.positions(),
        context: None,
        documents: None,
        held_out: HeldOut::Share(0.0),
        seed,
    }
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
