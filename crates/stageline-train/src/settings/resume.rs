//! Resolves a command line together with the settings of the checkpoint that `--resume` names.

use std::ffi::OsString;
use std::fmt::Display;

use anyhow::{Context, Result};
use clap::{ArgMatches, Command, FromArgMatches};
use serde_json::Value;
use stageline::checkpoint::{CheckpointError, Printable, Saved};

use super::flags::TrainingFlags;
use super::keeping::BEST;
use super::merge::{Merged, Settings, resolve};
use super::setting::{LONGEST_VALUE, takes_path};
use crate::terminal::{say, tell};

/// A run's resolved command line: its flags and settings, and the checkpoint that it resumes, if any.
pub struct CommandLine {
    pub matches: ArgMatches,
    pub flags: TrainingFlags,
    pub settings: Settings,
    /// Names of the settings that no source sets, so that their values are derived from other settings.
    pub derived: Vec<&'static str>,
    /// The opened checkpoint from which the run resumes; `None` if it starts from the beginning.
    pub saved: Option<Saved>,
}

/// Resolves a program's command line `arguments` and, with `--resume`, its checkpoint into flags and settings.
/// `command` describes the program's flags. Prints the settings that differ from the checkpoint or that only one of the
/// two has, and the file paths that come from the checkpoint.
///
/// # Errors
/// Returns a [`clap::Error`] if a flag is invalid or `--help` is given. Also returns an error for an invalid setting,
/// for a checkpoint that cannot be opened, and for invalid settings in the checkpoint.
pub fn command_line(command: &Command, arguments: &[OsString]) -> Result<CommandLine> {
    let resolved = |command: &Command, resumed| {
        let Merged { matches, mut settings } = resolve(command.clone(), arguments, resumed)?;
        let derived =
            ["schedule_steps", "tuned_for"].into_iter().filter(|name| !settings.0.contains_key(*name)).collect();
        let flags = TrainingFlags::from_arg_matches(&matches)?.with_schedule(command);
        // These derived defaults are stored, so that a resumed run keeps them even with other `--steps` or
        // `--micro-batches`.
        if let Some(steps) = flags.schedule_steps {
            settings.0.insert("schedule_steps".to_owned(), steps.into());
        }
        settings.0.insert("tuned_for".to_owned(), flags.tuned_for().into());
        Ok::<_, anyhow::Error>(CommandLine { matches, flags, settings, derived, saved: None })
    };
    // Required flags may come from the checkpoint, so they are optional in this first parse.
    let alone = resolved(&command.clone().mut_args(|flag| flag.required(false)), None)?;
    let Some(requested) = &alone.flags.resume else { return resolved(command, None) };
    let place = match requested.to_str() {
        Some(newest @ ("latest" | "auto")) => {
            let missing = || format!("--resume {newest}: give --checkpoint the folder to look in");
            alone.flags.checkpoint.as_deref().with_context(missing)?
        }
        _ => requested,
    };
    let saved = match Saved::open(place) {
        Err(
            CheckpointError::PathNotFound { .. }
            | CheckpointError::NoCheckpoint { .. }
            | CheckpointError::Neither { .. },
        ) if requested.as_os_str() == "auto" => {
            let line = resolved(command, None)?;
            let begins = format!("no checkpoint in {}: the training starts from its beginning", place.display());
            note(&line.flags, begins)?;
            return Ok(line);
        }
        opened => opened.context("--resume")?,
    };
    let before = settings_of(saved.manifest().run.get("settings"));
    let mut line = resolved(command, Some(&before))
        .with_context(|| format!("--resume, with the settings in {}", saved.path().display()))?;
    // New checkpoints go to the folder in which this checkpoint was found, even if it was moved. A folder of
    // `--best-checkpoint` is not used, because it keeps only the best checkpoint.
    let found = || if place == saved.path() { saved.store() } else { Some(place.to_owned()) };
    let is_best = saved.manifest().run.contains_key(BEST);
    line.flags.checkpoint = alone.flags.checkpoint.clone().or_else(|| if is_best { None } else { found() });
    let trains = line.flags.steps > 0 || line.flags.epochs > 0.0;
    if line.flags.checkpoint.is_none() && trains {
        let is = if is_best { "is the best checkpoint of a training" } else { "is in no folder of checkpoints" };
        let path = saved.path().display();
        note(&line.flags, format!("{path} {is}, so this run writes no others: give --checkpoint a folder for them"))?;
    }
    let CommandLine { flags: now, settings, .. } = &line;
    differences(&before, settings, now.checkpoint.is_some()).iter().try_for_each(|line| note(now, line))?;
    // Paths that only the checkpoint names are printed, so that it cannot make a run read a file unnoticed.
    for name in paths(command) {
        if let Some(value) = settings.0.get(&name).filter(|value| alone.settings.0.get(&name) != Some(value)) {
            note(now, format_args!("as in the checkpoint: {name} = {}", whole(value)))?;
        }
    }
    Ok(CommandLine { saved: Some(saved), ..line })
}

/// Prints a line about a resumed run's settings on the standard output, or on stderr with `--print-config`, whose
/// output is on the standard output.
fn note(flags: &TrainingFlags, line: impl Display) -> Result<()> {
    if flags.print_config {
        tell(line);
        return Ok(());
    }
    say(line)
}

/// Describes, one line each, the settings whose values differ between a resumed run (`now`) and its checkpoint
/// (`before`), and those that only one of the two has.
///
/// The checkpoint folder (`checkpoint`) has no line if `now` lacks it but the run writes checkpoints
/// (`writes_checkpoints`), because the run then writes to the folder that it resumes from.
pub(crate) fn differences(before: &Settings, now: &Settings, writes_checkpoints: bool) -> Vec<String> {
    let line = |(name, before): (&String, &Value)| match now.0.get(name) {
        Some(now) if is_same(now, before) => None,
        Some(now) => Some(format!("different from the checkpoint: {name} = {}, was {}", shown(now), shown(before))),
        None if name == "checkpoint" && writes_checkpoints => None,
        // The name is as untrusted as the value, because the program may not know the setting.
        None => Some(format!("not taken from the checkpoint: {} = {}", Printable::new(name.as_str()), shown(before))),
    };
    let new = now.0.iter().filter(|(name, _)| !before.0.contains_key(*name));
    let new = new.map(|(name, now)| format!("not in the checkpoint: {name} = {}", shown(now)));
    before.0.iter().filter_map(line).chain(new).collect()
}

/// Whether two values of a setting are equal. In a checkpoint of an earlier version, a number may be stored as a
/// string.
fn is_same(now: &Value, before: &Value) -> bool {
    let is_text_of = |number: &Value, text: &Value| {
        number.as_f64().is_some_and(|number| text.as_str().and_then(|text| text.parse().ok()) == Some(number))
    };
    now == before || is_text_of(now, before)
}

/// Returns the names of settings that are file paths: flags of `command` with values of type `PathBuf`.
fn paths(command: &Command) -> Vec<String> {
    command.get_arguments().filter(|flag| takes_path(flag)).map(|flag| flag.get_id().to_string()).collect()
}

/// Escapes and truncates a value from a checkpoint's manifest, so that it is safe to print.
pub(crate) fn shown(value: &Value) -> Printable<'static> {
    Printable::new(value.to_string())
}

/// Escapes a checkpoint's setting, so that it is safe to print. Truncates it only beyond the maximum length of a
/// setting, that is, if the checkpoint was manipulated.
fn whole(value: &Value) -> Printable<'static> {
    shown(value).at_most(LONGEST_VALUE)
}

/// Returns the settings stored in a checkpoint. `value` is the entry `settings` of its manifest; without it, the result
/// is empty.
pub(crate) fn settings_of(value: Option<&Value>) -> Settings {
    let object = value.and_then(Value::as_object).cloned().unwrap_or_default();
    Settings(object.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use clap::{Args, CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser, PartialEq)]
    struct Own {
        #[arg(long)]
        augment: bool,
        #[arg(long, value_delimiter = ',')]
        channels: Vec<usize>,
        #[arg(long)]
        width: usize,
        place: Option<String>,
    }

    fn merged(arguments: &str, resumed: Option<&Settings>, file: &str) -> Result<(Own, Settings)> {
        let command = TrainingFlags::augment_args(Own::command());
        let words: Vec<OsString> = arguments.split_whitespace().map(Into::into).collect();
        let file = file.to_owned();
        let Merged { matches, settings } = crate::settings::merge::merge(command, &words, resumed, |_| Ok(file))?;
        Ok((Own::from_arg_matches(&matches)?, settings))
    }

    /// Tests that a resumed run takes two kinds of settings from its checkpoint: those that affect the trained bits,
    /// and those of the program's own flags.
    #[test]
    fn a_resumed_run_inherits_what_decides_the_bits() {
        let command = TrainingFlags::augment_args(Own::command());
        let known = command.get_arguments().map(|flag| flag.get_id().as_str().to_owned());
        let alone = merged("train --width 5", None, "").unwrap().1;
        // The test gives every flag an invalid value. The value is an error if it is inherited, and otherwise has no
        // effect.
        let is_inherited = |name: &String| {
            let before = Settings([(name.clone(), Value::from("from the checkpoint"))].into());
            match merged("train --width 5", Some(&before), "") {
                Ok((_, settings)) => assert_eq!(settings, alone, "{name}"),
                Err(error) => return error.to_string().contains("from the checkpoint"),
            }
            false
        };
        let mut inherited: Vec<_> = known.filter(is_inherited).collect();
        inherited.sort();
        assert_eq!(
            inherited,
            [
                "augment",
                "beta1",
                "beta2",
                "channels",
                "clip",
                "decay",
                "decay_length",
                "epochs",
                "epsilon",
                "gradient_groups",
                "learning_rate",
                "loss_scale",
                "lowest_rate",
                "micro_batch_size",
                "micro_batches",
                "on_non_finite",
                "optimizer",
                "patience",
                "precision",
                "replicas",
                "schedule_steps",
                "seed",
                "steps",
                "tuned_for",
                "validate_every",
                "warm_up",
                "weight_decay",
                "width",
            ]
        );
    }

    /// Tests the length of the learning rate schedule without `--schedule-steps`. The schedule ends with the last step,
    /// unless the run has fewer steps than the program trains by default.
    #[test]
    fn a_schedule_is_as_long_as_the_run_or_as_the_default_of_the_program() {
        let length = |default: &'static str, arguments: &str| {
            let command = TrainingFlags::augment_args(Own::command());
            let command = command.mut_arg("steps", |steps| steps.default_value(default));
            let arguments: Vec<_> =
                format!("train --width 5 {arguments}").split_whitespace().map(OsString::from).collect();
            let line = command_line(&command, &arguments).unwrap();
            assert_eq!(line.settings.0["schedule_steps"], line.flags.schedule_steps());
            line.flags.schedule_steps()
        };
        assert_eq!([length("100", ""), length("100", "--steps 20"), length("100", "--steps 900")], [100, 100, 900]);
        assert_eq!([length("400", "--steps 20"), length("100", "--steps 20 --schedule-steps 5")], [400, 5]);
    }

    /// Tests the lines that a resumed run prints about its settings. There is one line for each setting of the
    /// checkpoint that the run lacks or has with another value. Hostile names and values are escaped and shortened.
    #[test]
    fn settings_that_are_not_taken_from_the_checkpoint_are_named() {
        let flags = "train --width 5 --memory 8 --cores-per-stage 1 --peak-tflops 2 --chunks 2 --device cuda:all \
                     --cut 0,1 --log run.jsonl --checkpoint kept";
        let (_, mut before) = merged(flags, None, "").unwrap();
        before.0.insert("\u{1b}[2J".to_owned(), "x".repeat(1_000).into());
        let (_, now) = merged("train --stages 3", Some(&before), "").unwrap();
        let lines = differences(&before, &now, true);
        let last = lines.iter().position(|line| line.contains("[2J")).unwrap();
        assert!(lines[last].starts_with("not taken from the checkpoint: \\u{1b}[2J = \"xx"), "{}", lines[last]);
        assert!(lines[last].len() < 200, "{}", lines[last]);
        let others: Vec<_> = lines.iter().enumerate().filter(|(at, _)| *at != last).map(|(_, line)| &**line).collect();
        assert_eq!(
            others,
            [
                "not taken from the checkpoint: chunks = 2",
                "not taken from the checkpoint: cores_per_stage = 1",
                "different from the checkpoint: cut = \"counted\", was \"0,1\"",
                "different from the checkpoint: device = \"cpu\", was \"cuda:all\"",
                "not taken from the checkpoint: log = \"run.jsonl\"",
                "not taken from the checkpoint: memory = 8",
                "not taken from the checkpoint: peak_tflops = 2",
                "different from the checkpoint: stages = 3, was 2",
            ]
        );
        let lines = differences(&before, &now, false);
        assert!(lines.contains(&"not taken from the checkpoint: checkpoint = \"kept\"".to_owned()), "{lines:?}");
    }

    /// Tests that a path given twice is an error, because one of the two would be lost, and that a text may have
    /// several lines.
    #[test]
    fn a_path_given_twice_is_an_error_and_a_text_may_have_several_lines() {
        let error = merged("train --width 5 --log a --log b", None, "").unwrap_err().to_string();
        assert!(error.contains("'--log <FILE>' cannot be used multiple times"), "{error}");
        assert_eq!(merged("train --width 5 --steps 3 --steps 4", None, "").unwrap().1.0["steps"], 4);
        for both in ["--steps 3 --epochs 2", "--epochs=2 --steps=3"] {
            let error = merged(&format!("train --width 5 {both}"), None, "").unwrap_err().to_string();
            assert_eq!(error, "--steps and --epochs exclude each other: give one of them");
        }
        let (_, settings) =
            merged("train --width 5 --steps 3 --config file", None, "steps = 4\nlog = \"two\\n\\tlines\"").unwrap();
        assert_eq!((&settings.0["steps"], &settings.0["log"]), (&3.into(), &"two\n\tlines".into()));
        let error = merged("train --width 5 --config file", None, "log = \"\\u001b[2J\"").unwrap_err().to_string();
        assert!(error.contains("without control characters other than line feeds and tabs"), "{error}");
    }

    #[test]
    fn the_last_source_with_steps_or_epochs_decides_the_length() {
        let length = |line: &str, before: Option<&Settings>, file: &str| {
            let (_, settings) = merged(&format!("train --width 5 {line}"), before, file).unwrap();
            ["steps", "epochs"].map(|name| settings.0.get(name).and_then(Value::as_f64))
        };
        let of_file = |line: &str, file: &str| length(&format!("--config file {line}"), None, file);
        assert_eq!(of_file("--steps 7", "epochs = 2.0"), [Some(7.0), None]);
        assert_eq!(of_file("--steps 0", "epochs = 2.0"), [Some(0.0), None]);
        assert_eq!(of_file("--epochs 1.5", "steps = 9"), [None, Some(1.5)]);
        assert_eq!(of_file("--epochs 0", "steps = 9"), [Some(9.0), None]);
        // A program may count epochs by default, also when it resumes a training that counts steps.
        let by_default = |resumed: Option<&Settings>, arguments: &str| {
            let command = TrainingFlags::augment_args(Own::command()).mut_arg("epochs", |flag| flag.default_value("2"));
            let words: Vec<OsString> =
                format!("train --width 5 {arguments}").split_whitespace().map(Into::into).collect();
            crate::settings::merge::merge(command, &words, resumed, |_| unreachable!()).unwrap().settings
        };
        assert_eq!(by_default(None, "").0["epochs"], 2);
        let steps = by_default(None, "--steps 7");
        assert_eq!((steps.0["steps"].as_u64(), steps.0.get("epochs")), (Some(7), None));
        assert_eq!(by_default(Some(&steps), "").0["steps"], 7);
        for (written, read) in [(".5", 0.5), ("1.", 1.0), ("+2", 2.0), ("02", 2.0)] {
            let (_, kept) = merged(&format!("train --width 5 --epochs {written}"), None, "").unwrap();
            assert_eq!(length("", Some(&kept), ""), [None, Some(read)], "{written}");
        }
        let (_, kept) = merged("train --width 5 --epochs 3", None, "").unwrap();
        assert_eq!(length("", Some(&kept), ""), [None, Some(3.0)]);
        assert_eq!(length("--steps 4", Some(&kept), ""), [Some(4.0), None]);
        let error = merged("train --width 5 --config file", None, "steps = 4\nepochs = 2.0").unwrap_err();
        assert_eq!(format!("{error:#}"), "--config file: --steps and --epochs exclude each other: give one of them");
    }

    /// Tests a program's own switches, lists and required flags. A checkpoint or a settings file sets them like the
    /// flags that every training has. A positional argument is not taken from a checkpoint.
    #[test]
    fn own_flags_of_every_kind_are_settings() {
        let (own, settings) =
            merged("train --augment --channels 32,64 --channels 128 --width 5 here", None, "").unwrap();
        assert_eq!(own, Own { augment: true, channels: vec![32, 64, 128], width: 5, place: Some("here".to_owned()) });
        // A resumed run takes all these settings from its checkpoint, except the positional argument.
        let (again, same) = merged("train", Some(&settings), "").unwrap();
        assert_eq!((again.augment, &again.channels, again.width), (true, &own.channels, 5));
        assert_eq!(same, settings);
        // The settings have the same effect if a settings file gives them.
        let (from_file, same) = merged("train --config file", None, &settings.to_toml().unwrap()).unwrap();
        assert_eq!((from_file.augment, from_file.channels, from_file.width), (true, own.channels, 5));
        assert_eq!(same, settings);
        let (later, _) = merged("train --channels 7 --config file", Some(&settings), "augment = false").unwrap();
        assert_eq!((later.augment, later.channels, later.width), (false, vec![7], 5));
        assert!(merged("train", None, "").is_err(), "--width is required");
    }
}
