//! Flags from a file, from `--set`, and from the command line: the later ones count.
//!
//! A setting of the file is a flag of its name, with `_` for `-`; so clap reads, checks and explains all of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use serde_json::Value;

use crate::flags::Flags;

/// How much of a name must be the same (Jaro and Winkler) to be taken for a slip.
const ALIKE: f64 = 0.7;

/// Flags, and everything that they come to.
pub struct Resolved {
    pub flags: Flags,
    pub settings: Settings,
}

/// Settings by name, the ones by default included.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings(pub BTreeMap<String, Value>);

/// Reads the command line; the settings of a run that is resumed come first, then those of `--config`, then `--set`.
pub fn resolve(arguments: Vec<OsString>, resumed: Option<&Settings>) -> Result<Resolved> {
    let command = Flags::command().args_override_self(true);
    let given = command.clone().get_matches_from(arguments.clone());
    let mut all: Vec<OsString> = arguments.iter().take(1).cloned().collect();
    if let Some(Settings(settings)) = resumed {
        let inherited = settings.iter().filter(|(name, _)| is_inherited(name) && flag(&command, name).is_ok());
        all.extend(inherited.map(|(name, value)| argument(name, &text(value))));
        // What is wrong here is not the user's command line.
        command.clone().try_get_matches_from(&all).map_err(|error| anyhow!("{error}"))?;
    }
    if let Some(path) = given.get_one::<std::path::PathBuf>("config") {
        all.extend(from_file(&command, path).with_context(|| format!("--config {}", path.display()))?);
    }
    for assignment in given.get_many::<String>("set").unwrap_or_default() {
        all.push(from_assignment(&command, assignment).with_context(|| format!("--set {assignment}"))?);
    }
    all.extend(arguments.into_iter().skip(1));
    let matches = command.clone().get_matches_from(all);
    let mut settings = settings(&command, &matches);
    let flags = Flags::from_arg_matches(&matches)?;
    settings.0.insert("schedule_steps".to_owned(), flags.schedule_steps().into());
    Ok(Resolved { flags, settings })
}

fn from_file(command: &Command, path: &Path) -> Result<Vec<OsString>> {
    let text = fs::read_to_string(path).context("it cannot be read; give the path of a TOML file")?;
    let table: toml::Table = text.parse()?;
    table.iter().map(|(name, value)| Ok(argument(flag(command, name)?, &toml_text(name, value)?))).collect()
}

fn from_assignment(command: &Command, assignment: &str) -> Result<OsString> {
    let (name, value) = assignment.split_once('=').context("give a name, `=`, and a value: --set micro_batches=16")?;
    Ok(argument(flag(command, name.trim())?, value.trim()))
}

/// The setting of that name.
fn flag<'a>(command: &Command, name: &'a str) -> Result<&'a str> {
    let known: Vec<_> =
        command.get_arguments().map(|argument| argument.get_id().as_str()).filter(|id| is_setting(id)).collect();
    if known.contains(&name) {
        return Ok(name);
    }
    if command.get_arguments().any(|argument| argument.get_id() == name) {
        bail!("`{name}` is for the command line only: give it as a flag");
    }
    let alike = |known: &&str| strsim::jaro_winkler(known, name);
    let nearest = known.into_iter().max_by(|a, b| alike(a).total_cmp(&alike(b))).filter(|known| alike(known) >= ALIKE);
    match nearest {
        Some(nearest) => bail!("there is no setting `{name}`; did you mean `{nearest}`?"),
        None => bail!("there is no setting `{name}`; --help lists all flags, which are settings with `_` for `-`"),
    }
}

/// A run that goes on writes where it is told to, and not where the one before was.
fn is_inherited(name: &str) -> bool {
    !["log", "trace", "tensorboard", "report", "checkpoint", "verify"].contains(&name)
}

/// What says where settings come from is none, and what is for one run only.
fn is_setting(name: &str) -> bool {
    !["config", "set", "print_config", "resume", "stop_after", "help"].contains(&name)
}

fn argument(name: &str, value: &str) -> OsString {
    format!("--{}={value}", name.replace('_', "-")).into()
}

fn toml_text(name: &str, value: &toml::Value) -> Result<String> {
    Ok(match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Array(values) => {
            let texts = values.iter().map(|value| toml_text(name, value)).collect::<Result<Vec<_>>>()?;
            texts.join(",")
        }
        other => bail!("`{name}` is a {}; give a number or a text", other.type_str()),
    })
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// What the flags come to.
fn settings(command: &Command, matches: &ArgMatches) -> Settings {
    let ids = command.get_arguments().map(|argument| argument.get_id().as_str()).filter(|id| is_setting(id));
    let value = |id: &str| {
        let raw = matches.get_raw(id)?.next_back()?.to_string_lossy().into_owned();
        Some((id.to_owned(), serde_json::from_str(&raw).ok().filter(Value::is_number).unwrap_or(Value::String(raw))))
    };
    Settings(ids.filter_map(value).collect())
}

impl Settings {
    /// As a file for `--config`.
    pub fn to_toml(&self) -> Result<String> {
        Ok(toml::to_string(&self.0)?)
    }
}
