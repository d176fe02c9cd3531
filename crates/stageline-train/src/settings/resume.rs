//! Resolves a command line together with the settings of the checkpoint that `--resume` names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{ArgMatches, Command, FromArgMatches};
use serde_json::Value;
use stageline::checkpoint::{Printable, Saved};

use super::flags::TrainingFlags;
use super::merge::{Merged, Settings, resolve};

/// The flags of a run, with the checkpoint that it resumes.
pub struct CommandLine {
    pub matches: ArgMatches,
    pub flags: TrainingFlags,
    pub settings: Settings,
    /// The opened checkpoint, if the run resumes one.
    pub saved: Option<Saved>,
}

/// Resolves the command line of a program whose flags are `command`. Prints how the settings differ from those of the
/// resumed checkpoint, and which files only the checkpoint names.
///
/// # Errors
/// Returns an error if a setting is wrong, there is no such checkpoint, or its settings are not valid.
pub fn command_line(command: &Command, arguments: &[OsString]) -> Result<CommandLine> {
    let resolved = |resumed| {
        let Merged { matches, mut settings } = resolve(command.clone(), arguments, resumed)?;
        let flags = TrainingFlags::from_arg_matches(&matches)?;
        // The default is stored, so that resuming with more `--steps` keeps the length of the schedule.
        settings.0.insert("schedule_steps".to_owned(), flags.schedule_steps().into());
        Ok::<_, anyhow::Error>((matches, flags, settings))
    };
    let (matches, flags, alone) = resolved(None)?;
    let Some(requested) = &flags.resume else {
        return Ok(CommandLine { matches, flags, settings: alone, saved: None });
    };
    let place = match requested.as_os_str() == "latest" {
        true => flags.checkpoint.as_deref().context("--resume latest: give --checkpoint the folder to look in")?,
        false => requested,
    };
    let saved = Saved::open(place).context("--resume")?;
    let before = settings_of(saved.manifest().run.get("settings"));
    let (matches, mut now, settings) = resolved(Some(&before))
        .with_context(|| format!("--resume, with the settings in {}", saved.path().display()))?;
    // New checkpoints go to the folder in which this one was found, because the folder may have been moved.
    let folder = flags.checkpoint.clone().or_else(|| (place != saved.path()).then(|| place.to_owned()));
    now.checkpoint = folder.or_else(|| saved.store().map(Path::to_owned));
    for (name, before) in &before.0 {
        if let Some(now) = settings.0.get(name).filter(|now| *now != before) {
            println!("different from the checkpoint: {name} = {now}, was {}", shown(before));
        }
    }
    // Paths that only the checkpoint names are printed, so that it cannot make a run read a file unnoticed.
    for name in paths(command) {
        if let Some(now) = settings.0.get(&name).filter(|now| alone.0.get(&name) != Some(now)) {
            println!("as in the checkpoint: {name} = {now}");
        }
    }
    Ok(CommandLine { matches, flags: now, settings, saved: Some(saved) })
}

/// Returns the names of all flags that take a path.
fn paths(command: &Command) -> Vec<String> {
    let takes_path = |flag: &&clap::Arg| flag.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>();
    command.get_arguments().filter(takes_path).map(|flag| flag.get_id().to_string()).collect()
}

/// Returns a value from a checkpoint's manifest as text that is safe to print: escaped and of bounded length.
pub(crate) fn shown(value: &Value) -> Printable<'static> {
    Printable::new(value.to_string())
}

/// Reads the settings in a checkpoint's manifest; a manifest without settings gives none.
fn settings_of(value: Option<&Value>) -> Settings {
    let object = value.and_then(Value::as_object).cloned().unwrap_or_default();
    Settings(object.into_iter().collect())
}
