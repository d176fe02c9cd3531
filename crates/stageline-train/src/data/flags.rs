//! The flags of a program that trains a language model on text ([`TokenFlags`]).

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::data::documents::{Documents, TokenData};
use crate::data::evaluation::HeldOut;
use crate::data::open::{TokenSettings, open_tokens};

/// The share of the data that is held out by default.
const HELD_OUT: f64 = 0.05;

/// The flags that choose the data of a language model, and how samples are made of it.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenFlags {
    /// Path of the text to train on, unless --steps is 0: a text file; a .jsonl file, whose lines have `text`, `prompt`
    /// and `completion`, or `messages`; a folder of such files; or a .json file with arrays of token ids, which are
    /// trained on in their order. Without tokenizer.json, each byte is a token
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Text to evaluate on, in one of the forms of --data, instead of a part of --data
    #[arg(long, value_name = "DATA")]
    pub eval_data: Option<PathBuf>,
    /// Share of the text that is held out for evaluation and not trained on [default: 0.05, or 0 with --eval-data]
    #[arg(long, value_name = "SHARE")]
    pub held_out: Option<f64>,
    /// Length of a sample, in tokens [default: 256, or 1024 for packed documents, or less if the model has fewer
    /// positions]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Documents in a sample [default: packed if the data has prompts or messages, and otherwise joined]
    #[arg(long)]
    pub documents: Option<Documents>,
    /// Prints this number of samples, with « and » around the text that is trained on, and exits
    #[arg(long, value_name = "SAMPLES")]
    pub show_samples: Option<usize>,
}

impl TokenFlags {
    /// Checks that the flags do not contradict each other.
    ///
    /// # Errors
    /// Returns an error that names the flags that contradict each other.
    pub fn check(&self) -> Result<()> {
        ensure!(self.show_samples.is_none() || self.data.is_some(), "--show-samples needs --data");
        ensure!(
            self.eval_data.is_none() || self.data.is_some(),
            "--eval-data needs --data: only trainings are evaluated"
        );
        ensure!(
            self.eval_data.is_none() || self.held_out.is_none_or(|share| share == 0.0),
            "--eval-data and --held-out exclude each other; leave one out, or give --held-out 0 if it comes from the checkpoint"
        );
        Ok(())
    }

    /// Opens the data of `--data`. The settings are those of `of_model`, but the flags decide `context`, `documents`
    /// and `held_out`. Returns `None` if `--data` is unset.
    ///
    /// # Errors
    /// Returns the errors of [`open_tokens`].
    pub fn open(&self, of_model: TokenSettings) -> Result<Option<TokenData>> {
        let Some(path) = &self.data else { return Ok(None) };
        let held_out = match &self.eval_data {
            Some(path) => HeldOut::Data(path),
            None => HeldOut::Share(self.held_out.unwrap_or(HELD_OUT)),
        };
        let settings = TokenSettings { context: self.context, documents: self.documents, held_out, ..of_model };
        let flags = if self.eval_data.is_some() { "--data, --eval-data" } else { "--data" };
        open_tokens(path, &settings).context(flags).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        let checked = |line: &str| {
            let command = TokenFlags::augment_args(Command::new("train"));
            let matches = command.try_get_matches_from(["train"].into_iter().chain(line.split_whitespace())).unwrap();
            TokenFlags::from_arg_matches(&matches).unwrap().check().map_err(|error| error.to_string())
        };
        let both = "--eval-data and --held-out exclude each other; leave one out, or give --held-out 0 if it comes from the checkpoint";
        assert_eq!(checked("--data a --eval-data b --held-out 0.1").unwrap_err(), both);
        assert!(checked("--eval-data b").unwrap_err().starts_with("--eval-data needs --data"));
        assert_eq!(checked("--show-samples 2").unwrap_err(), "--show-samples needs --data");
        assert!(
            ["--data a --eval-data b --held-out 0", "--data a --held-out 0.1", ""]
                .iter()
                .all(|line| checked(line).is_ok())
        );
    }
}
