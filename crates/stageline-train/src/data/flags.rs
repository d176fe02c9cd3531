//! The command-line flags that choose a language model's training data ([`TokenFlags`]).

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::data::documents::{Documents, Targets, TokenData};
use crate::data::evaluation::HeldOut;
use crate::data::open::{TokenSettings, has_rows, open_tokens};

/// The default of `--held-out`: the share of the training data that is held out for evaluation.
const HELD_OUT: f64 = 0.05;

/// Command-line flags that choose a language model's data and how it is divided into samples.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenFlags {
    /// Path of the text to train on; without it nothing is trained. One of: a text file; a .jsonl file, whose lines have
    /// `text`, `prompt` and `completion`, or `messages`; a folder of such files; or a .json file with arrays of token
    /// ids, which are trained on in their order. Without tokenizer.json, each byte is a token
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Text to evaluate on instead of a held-out part of --data; takes the same formats as --data
    #[arg(long, value_name = "DATA")]
    pub eval_data: Option<PathBuf>,
    /// Share of the text that is held out for evaluation [default: 0.05, or 0 with --eval-data]
    #[arg(long, value_name = "SHARE")]
    pub held_out: Option<f64>,
    /// Length of a sample, in tokens [default: 256, or 1024 for packed documents, or less if the model has fewer
    /// positions]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// How documents share a sample [default: packed if the data has prompts or messages, and otherwise joined]
    #[arg(long)]
    pub documents: Option<Documents>,
    /// Tokens of prompts and messages that are trained on: only the completions and answers, or all [default: answers]
    #[arg(long, value_name = "answers|all")]
    pub train_on: Option<Targets>,
    /// Prints this number of samples, with « and » around the tokens that are targets, and exits
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
        let is_held_out = self.held_out.is_some_and(|share| share > 0.0);
        if let Some(rows) = self.data.as_ref().filter(|path| is_held_out && has_rows(path)) {
            bail!(
                "--held-out: nothing is held out of the rows in {}; leave it out, give --eval-data instead, or give --held-out 0 if it \
                 comes from the checkpoint",
                rows.display()
            );
        }
        Ok(())
    }

    /// Whether `--data` or `--eval-data` is a text, which needs a tokenizer, and not a `.json` file with rows of
    /// tokens.
    pub fn reads_text(&self) -> bool {
        [&self.data, &self.eval_data].into_iter().flatten().any(|path| !has_rows(path))
    }

    /// Opens the dataset of `--data`, or returns `None` if the flag is unset. `of_model` holds the settings that depend
    /// on the model; the flags override its `context`, `documents`, `targets` and `held_out`.
    ///
    /// # Errors
    /// Returns the errors of [`open_tokens`].
    pub fn open(&self, of_model: TokenSettings) -> Result<Option<TokenData>> {
        let Some(path) = &self.data else { return Ok(None) };
        let held_out = match &self.eval_data {
            Some(path) => HeldOut::Data(path),
            None => HeldOut::Share(self.held_out.unwrap_or(HELD_OUT)),
        };
        let (context, documents, targets) = (self.context, self.documents, self.train_on.unwrap_or_default());
        let settings = TokenSettings { context, documents, targets, held_out, ..of_model };
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
        let rows = checked("--data a.json --held-out 0.5").unwrap_err();
        assert!(rows.starts_with("--held-out: nothing is held out of the rows in a.json; leave it out"), "{rows}");
        assert!(
            ["--data a --eval-data b --held-out 0", "--data a --held-out 0.1", ""]
                .iter()
                .all(|line| checked(line).is_ok())
        );
    }
}
