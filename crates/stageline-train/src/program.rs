//! A training program ([`Program`]): it reads the settings, shows warnings, starts the run, and returns an exit status.

use std::ffi::OsString;
use std::io::Write;
use std::marker::PhantomData;
use std::process::ExitCode;

use anyhow::Result;
use clap::parser::ValueSource;
use clap::{Args, Parser};
use stageline::StepError;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;

use crate::outputs::progress::Progress;
use crate::outputs::unwritten::Unwritten;
use crate::settings::flags::TrainingFlags;
use crate::settings::job::Job;
use crate::settings::places::check_places;
use crate::settings::resume::{CommandLine, command_line};
use crate::settings::setting::check_kept;
use crate::terminal::{say, tell};
use crate::training::run::Run;

/// The exit status after the watchdog ends a training run because of a stall: a stage made no progress.
const STALLED: u8 = 3;

/// An empty set of flags, for a program whose model and data have no flags of their own.
#[derive(Debug, Parser)]
#[command(about = "Trains a model as the settings say")]
pub struct NoFlags {}

/// A program that trains a model. `F` is the type of the program's own flags, for its model and data. The program also
/// takes the flags that all training programs share, such as `--stages` and `--learning-rate`.
///
/// The description of the program in `--help` is the doc comment of `F`, or its `#[command(about = "...")]`.
///
/// A resumed run takes the values of the flags in `F` from its checkpoint, unless they are given again or have
/// the heading `Outputs` or `Inference` (`#[arg(help_heading = "Outputs")]`). Give flags for output files the heading
/// `Outputs`, so that a checkpoint from elsewhere cannot choose which files are written, and flags for using the
/// trained model the heading `Inference`.
pub struct Program<F> {
    defaults: Vec<(&'static str, &'static str)>,
    flags: PhantomData<F>,
}

impl<F: Parser> Default for Program<F> {
    fn default() -> Self {
        Self { defaults: Vec::new(), flags: PhantomData }
    }
}

impl<F: Parser> Program<F> {
    /// Creates a program whose training flags have the defaults that `--help` shows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the default value of a training flag. `flag` is the flag's name without leading dashes and with `_` for
    /// `-`, such as `learning_rate`. `value` is the default as it would be given on the command line.
    ///
    /// # Panics
    /// [`main`](Self::main) and [`configured`](Self::configured) panic if there is no such flag.
    #[must_use]
    pub fn default_value(mut self, flag: &'static str, value: &'static str) -> Self {
        self.defaults.push((flag, value));
        self
    }

    /// Reads the settings from the command line, a TOML file and a checkpoint, and calls `train` with the run that they
    /// describe. Returns the process's exit status. Errors and warnings are printed on stderr.
    ///
    /// | status | meaning |
    /// | --- | --- |
    /// | 0 | `train` returned `Ok`: the training is done, or a signal or `--stop-after` ended it with a checkpoint |
    /// | 1 | an error in the settings (also in a file or `--set`), in the training, or in writing an output after it |
    /// | 2 | the command line cannot be parsed |
    /// | 3 | a stall: a stage made no progress, and the watchdog ended the training |
    /// | 130 | a second SIGINT or SIGTERM |
    ///
    /// With the statuses 2 and 130, the process ends immediately, and this function does not return. The same holds for
    /// `--help`, with status 0. Signals are handled only in a run that writes checkpoints to the folder of
    /// `--checkpoint`, or to the folder that it resumes from.
    pub fn main(self, train: impl FnOnce(Run<F>) -> Result<()>) -> ExitCode {
        let Err(error) = self.run(train) else { return ExitCode::SUCCESS };
        tell(format_args!("Error: {error:#}"));
        let mut cause = error.downcast_ref::<StepError>();
        while let Some(StepError::Torn { cause: inner, .. }) = cause {
            cause = Some(inner);
        }
        match cause {
            Some(StepError::Stalled(_)) => ExitCode::from(STALLED),
            _ => ExitCode::FAILURE,
        }
    }

    /// Returns the run that `settings` describe, for programs that start training runs from code. Each setting is a
    /// flag's name, without leading dashes and with `_` or `-` between words, and its value. The command line is not
    /// read, warnings are not shown, and no error ends the process.
    ///
    /// ```no_run
    /// # use stageline::{LossStage, Row, Stage};
    /// # use stageline_train::Data;
    /// use stageline_train::{NoFlags, Program};
    ///
    /// # fn sweep<F: Stage, B: Stage<Input = F::Output, Output = F::Output>, L: LossStage<Input = F::Output>>(
    /// #     model: &Row<F, B, L>,
    /// #     data: std::sync::Arc<impl Data<Input = F::Input, Target = L::Target>>,
    /// # ) -> anyhow::Result<()> {
    /// for rate in ["1e-3", "2e-3"] {
    ///     let run = Program::<NoFlags>::new().configured([("learning_rate", rate), ("steps", "100")])?;
    ///     let trained = run.train(model, data.clone())?;
    ///     println!("{rate}: {:?}", trained.and_then(|trained| trained.validation).map(|report| report.loss));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if a setting is unknown or invalid, or if two settings contradict each other. Also returns an
    /// error if a device cannot be opened, or if the checkpoint of the setting `resume` cannot be read.
    pub fn configured<'a>(self, settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Run<F>> {
        let flag = |(name, value): (&str, &str)| format!("--{}={value}", name.replace('_', "-")).into();
        let program = OsString::from("settings given in code");
        let arguments: Vec<_> = [program].into_iter().chain(settings.into_iter().map(flag)).collect();
        Self::described(self.read(&arguments)?, Progress::default(), Unwritten::default())
    }

    fn run(self, train: impl FnOnce(Run<F>) -> Result<()>) -> Result<()> {
        let progress = Progress::default();
        show_warnings(&progress);
        let line = self
            .read(&std::env::args_os().collect::<Vec<_>>())
            // As usual with clap, `--help` and invalid flags end the process.
            .map_err(|error| error.downcast::<clap::Error>().map_or_else(|other| other, |error| error.exit()))?;
        if line.flags.print_config {
            // Settings that are derived from others are not printed, so that they follow when the others change.
            let mut printed = line.settings;
            printed.0.retain(|name, _| !line.derived.contains(&name.as_str()));
            return say(printed.to_toml()?.trim_end());
        }
        let unwritten = Unwritten::default();
        train(Self::described(line, progress, unwritten.clone())?)?;
        unwritten.first()
    }

    /// Returns the run that a parsed command line describes. `progress` is the run's progress bar, and `unwritten`
    /// collects errors from writing its outputs after the last step.
    fn described(line: CommandLine, progress: Progress, unwritten: Unwritten) -> Result<Run<F>> {
        let flags = F::from_arg_matches(&line.matches)?;
        // Settings from all sources reach clap as arguments, so `CommandLine` means that the setting is set explicitly.
        let is_set = |name: &&clap::Id| line.matches.value_source(name.as_str()) == Some(ValueSource::CommandLine);
        let set = line.matches.ids().filter(is_set).map(ToString::to_string).collect();
        Ok(Run::new(flags, set, Job::of(line.flags, line.settings)?, line.saved, progress, unwritten))
    }

    /// Parses the command-line arguments into settings. The known flags are those that all training programs share and
    /// the program's own. The program may have changed their default values.
    fn read(self, arguments: &[OsString]) -> Result<CommandLine> {
        let own = F::command();
        own.get_arguments().try_for_each(check_kept)?;
        // Adding the training flags would replace the program's description in `--help`, so it is restored afterwards.
        let [short, long] = [own.get_about(), own.get_long_about()].map(Option::<&_>::cloned);
        let mut command = TrainingFlags::augment_args(own).about(short.unwrap_or_default());
        command = match long {
            Some(long) => command.long_about(long),
            None => command.long_about(None::<&'static str>),
        };
        for (flag, value) in self.defaults {
            command = command.mut_arg(flag, |argument| argument.default_value(value));
        }
        let line = command_line(&command, arguments)?;
        check_places(&command, &line.matches)?;
        Ok(line)
    }
}

/// Installs a subscriber that prints log messages on stderr, above the progress bar: by default, all crates' warnings
/// and Stageline's INFO messages. The environment variable `RUST_LOG` overrides these levels; `stageline=trace`, for
/// example, also shows the spans of all steps and actions.
fn show_warnings(progress: &Progress) {
    let warnings = progress.clone();
    // Hides burn's noise: a log line for every compiler pass over a GPU kernel, and a warning for every message in
    // flight to a lost host. A lost host already ends the training run with one error.
    let usual = || {
        let other_crates = Targets::new().with_default(Level::WARN).with_target("burn_remote", Level::ERROR);
        other_crates.with_targets([("stageline", Level::INFO), ("stageline_train", Level::INFO)])
    };
    let asked = std::env::var("RUST_LOG").ok();
    let filter = match asked.as_deref().map(str::parse::<Targets>) {
        Some(Ok(targets)) => targets,
        Some(Err(error)) => {
            // If this message cannot be written, there is no other place to report the error.
            let _ = writeln!(std::io::stderr(), "RUST_LOG is not valid: {error}; give levels such as stageline=debug");
            usual()
        }
        None => usual(),
    };
    // ANSI colours are turned off explicitly, because a dependency of the feature `serve` turns them on, and messages
    // may be redirected to files.
    let layer =
        tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || warnings.clone()).with_target(false);
    let shown = match asked {
        // A span is shown when it ends, with its duration.
        Some(_) => layer.with_span_events(FmtSpan::CLOSE).boxed(),
        None => layer.without_time().boxed(),
    };
    // A tracing subscriber that the program has already installed takes precedence.
    let _ = tracing_subscriber::registry().with(shown.with_filter(filter)).try_init();
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Program;

    /// Flags whose values no checkpoint can keep, one of each kind.
    #[derive(Parser)]
    struct List {
        #[arg(long)]
        source: Vec<String>,
        /// A flag that a resumed run does not take from its checkpoint, so its value may be of any kind.
        #[arg(help_heading = "Outputs", long)]
        extra: Vec<String>,
    }

    #[derive(Parser)]
    struct Off {
        #[arg(long = "no-shuffle", action = clap::ArgAction::SetFalse)]
        shuffle: bool,
    }

    #[derive(Parser)]
    struct Counted {
        #[arg(short, long, action = clap::ArgAction::Count)]
        deep: u8,
    }

    #[test]
    fn own_flags_that_a_checkpoint_cannot_keep_are_refused() {
        fn error<F: Parser>() -> String {
            Program::<F>::new().configured([]).err().unwrap().to_string()
        }
        let list = "a checkpoint cannot keep the program's flag `source` (Append): write #[arg(value_delimiter = ',')]";
        assert_eq!(error::<List>(), list);
        assert!(error::<Off>().contains("`shuffle` (SetFalse): use a bool that is true with the flag"));
        assert!(error::<Counted>().contains("`deep` (Count): use a number"));
    }
}
