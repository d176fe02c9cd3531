//! Merges the settings from a checkpoint, a TOML file, `--set` and the command line into one set of flags. Later
//! sources override earlier ones.
//!
//! A setting is named like its flag, with `_` for `-`, so clap parses, validates and documents all settings. The code
//! here works with any set of flags: a fuzz target uses its own set (`fuzz/src/configuration.rs`).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;
use stageline::checkpoint::Printable;

use super::setting::{argument, check_text, flag, is_inherited, is_number, is_setting, number, takes_path};

/// Names of the two settings of the training length, `steps` and `epochs`; only one of them takes effect.
const STEPS: &str = "steps";
const EPOCHS: &str = "epochs";

/// The maximum length of the TOML file of `--config`, in bytes.
const LONGEST: u64 = 1 << 20;

/// A run's settings, merged from the command line, the config file, the checkpoint that the run resumes, and the
/// defaults: as clap's parsed arguments (`matches`), and as values by name for logs and checkpoints (`settings`).
pub struct Merged {
    pub matches: ArgMatches,
    pub settings: Settings,
}

/// The values of all settings of a run, including defaults, by setting name.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings(pub BTreeMap<String, Value>);

/// Merges a program's command line with the settings of its other sources (see [`merge`]), reading the file of
/// `--config` from disk.
pub fn resolve(command: Command, arguments: &[OsString], resumed: Option<&Settings>) -> Result<Merged> {
    merge(command, arguments, resumed, contents)
}

/// Merges a run's settings from four sources, each of which overrides the ones before it: the checkpoint that the run
/// resumes (`resumed`), the file of `--config`, the assignments of `--set`, and the other flags on the command line.
///
/// `read` returns the content of the `--config` file at a given path.
///
/// # Errors
/// Returns a [`clap::Error`] if a flag is invalid or `--help` is given. Any other error names the source of the invalid
/// setting.
pub fn merge(
    command: Command,
    arguments: &[OsString],
    resumed: Option<&Settings>,
    read: impl FnOnce(&Path) -> Result<String>,
) -> Result<Merged> {
    let mut command = command.args_override_self(true).mut_args(with_value);
    command.build();
    let (program, flags) =
        arguments.split_first().map_or((OsString::new(), arguments), |(first, rest)| (first.clone(), rest));
    let parse = |flags: &[OsString]| command.clone().try_get_matches_from([&program].into_iter().chain(flags));
    // Any source may provide a required flag, so only the final parse enforces it.
    let lenient = command.clone().mut_args(|flag| flag.required(false));
    let parse_some = |flags: &[OsString]| lenient.clone().try_get_matches_from([&program].into_iter().chain(flags));
    check_length(flags)?;
    // A path given twice is an error. Other flags may be repeated, so that a user can override a script's default
    // flags.
    let once = lenient.clone().args_override_self(false).mut_args(replaces_itself);
    let given = once.try_get_matches_from([&program].into_iter().chain(flags))?;
    let mut all = Vec::new();
    if let Some(settings) = resumed {
        let inherited = inherited(&command, settings)?;
        remove_replaced(&mut all, &inherited, &command); // a program may have epochs by default
        all.extend(inherited);
        // These errors quote a checkpoint, whose strings may be long or hostile, so they are escaped and truncated.
        parse_some(&all).map_err(|error| anyhow!("{}", Printable::new(error.to_string()).at_most(400)))?;
    }
    // Errors of clap become ordinary errors here, because clap's would end the process without naming the source.
    let parsed = |before: &[OsString], flags: Vec<OsString>| match parse_some(&[before, &flags].concat()) {
        Ok(_) => Ok(flags),
        Err(error) => Err(anyhow!("{}", without_usage(&error.to_string()))),
    };
    if let Some(path) = given.get_one::<PathBuf>("config") {
        let from_file = || {
            let flags = from_text(&command, &read(path)?)?;
            check_length(&flags)?;
            parsed(&all, flags)
        };
        let from_file = from_file().with_context(|| format!("--config {}", path.display()))?;
        remove_replaced(&mut all, &from_file, &command);
        all.extend(from_file);
    }
    for assignment in given.get_many::<String>("set").unwrap_or_default() {
        let assigned = || parsed(&all, vec![from_assignment(&command, assignment)?]);
        let assigned = assigned().with_context(|| format!("--set {assignment}"))?;
        remove_replaced(&mut all, &assigned, &command);
        all.extend(assigned);
    }
    remove_replaced(&mut all, flags, &command);
    all.extend_from_slice(flags);
    let matches = parse(&all)?;
    let mut settings = settings(&command, &matches)?;
    // Of `steps` and `epochs`, keeps only the one that takes effect.
    let has_epochs = settings.0.get(EPOCHS).and_then(Value::as_f64).is_some_and(|epochs| epochs > 0.0);
    settings.0.remove(if has_epochs { STEPS } else { EPOCHS });
    Ok(Merged { settings, matches })
}

/// Removes clap's leading `error:` and trailing usage advice from an error message, to quote the rest.
fn without_usage(message: &str) -> &str {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    message.split("\n\nFor more information").next().unwrap_or(message).trim_end()
}

/// Changes how clap parses a flag's value:
///
/// - A switch, such as `--augment`, also accepts the value `true` or `false`, so that the command line can turn off a
///   switch that is on in a checkpoint or settings file.
/// - A flag accepts a negative number as its value, which is then rejected with the allowed range.
fn with_value(flag: Arg) -> Arg {
    if !matches!(flag.get_action(), ArgAction::SetTrue) || flag.get_id() == "print_config" {
        // Without this, clap would take a negative number for an unknown flag.
        let takes_values = flag.get_action().takes_values();
        return flag.allow_negative_numbers(takes_values);
    }
    let flag = flag.action(ArgAction::Set).value_parser(clap::value_parser!(bool)).num_args(0..=1);
    flag.require_equals(true).default_missing_value("true").default_value("false")
}

/// Lets a flag that is repeated in one source take its last value, except lists, which collect all values, and paths,
/// for which a repetition is an error.
fn replaces_itself(flag: Arg) -> Arg {
    if takes_path(&flag) || matches!(flag.get_action(), ArgAction::Append) {
        return flag;
    }
    let itself = flag.get_id().clone();
    flag.overrides_with(itself)
}

/// Removes arguments of earlier sources from `all` if a later source (`later`) overrides them but clap would not
/// replace them:
///
/// - A list, if `later` sets it again: clap would join both lists.
/// - A number of epochs, if `later` sets a number of steps: the epochs may be the program's default.
/// - Settings of the learning-rate decay, if `later` turns the decay off.
fn remove_replaced(all: &mut Vec<OsString>, later: &[OsString], command: &Command) {
    let is_list = |name: &String| {
        let mut lists = command.get_arguments().filter(|flag| matches!(flag.get_action(), ArgAction::Append));
        lists.any(|flag| flag.get_long() == Some(name))
    };
    let mut replaced: Vec<_> = later.iter().filter_map(name_of).filter(is_list).collect();
    let has_steps = later.iter().filter_map(name_of).any(|name| name == STEPS);
    replaced.extend(has_steps.then(|| EPOCHS.to_owned()));
    if value_of("decay", later).as_deref() == Some("none") {
        replaced.extend(["lowest-rate", "decay-length"].map(ToOwned::to_owned));
    }
    all.retain(|argument| name_of(argument).is_none_or(|name| !replaced.contains(&name)));
    all.extend(has_steps.then(|| format!("--{EPOCHS}=0").into()));
}

/// Returns the last value of the flag `name` in `arguments`, given as `--name=value` or `--name value`.
fn value_of(name: &str, arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().rposition(|argument| name_of(argument).is_some_and(|found| found == name))?;
    let joined = arguments[at].to_str()?.split_once('=').map(|(_, value)| value.to_owned());
    joined.or_else(|| Some(arguments.get(at + 1)?.to_str()?.to_owned()))
}

/// Returns an error if one source (such as the command line) gives both `--steps` and `--epochs`. With 0 epochs, the
/// number of steps decides.
fn check_length(arguments: &[OsString]) -> Result<()> {
    let has_steps = arguments.iter().filter_map(name_of).any(|given| given == STEPS);
    let epochs = value_of(EPOCHS, arguments);
    let has_epochs = epochs.is_some_and(|epochs| epochs.parse::<f64>().is_ok_and(|epochs| epochs > 0.0));
    ensure!(!(has_steps && has_epochs), "--steps and --epochs exclude each other: give one of them");
    Ok(())
}

/// Returns the flag's name if the argument has the form `--name` or `--name=value`, and otherwise `None`.
fn name_of(argument: &OsString) -> Option<String> {
    let text = argument.to_str()?.strip_prefix("--")?;
    Some(text.split_once('=').map_or(text, |(name, _)| name).to_owned())
}

/// Returns the content of the TOML file of `--config`. Returns an error if the file cannot be read, or is longer than
/// [`LONGEST`] bytes.
fn contents(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text));
    read.context("it cannot be read; give the path of a TOML file")?;
    ensure!(text.len() as u64 <= LONGEST, "it is longer than {LONGEST} bytes; give a TOML file of settings");
    Ok(text)
}

/// Returns the settings that a resumed run takes from its checkpoint, as command-line arguments `--name=value`.
/// Settings that this program does not know are left out.
fn inherited(command: &Command, Settings(settings): &Settings) -> Result<Vec<OsString>> {
    let known = settings.iter().filter_map(|(name, value)| Some((flag(command, name).ok()?, value)));
    let known = known.filter(|(flag, _)| is_inherited(flag));
    let argument = |(flag, value): (&Arg, &Value)| match value {
        Value::String(text) => {
            check_text(flag, text).context("the checkpoint was not written by this program, or was changed since")?;
            Ok(argument(flag, text))
        }
        Value::Number(number) => Ok(argument(flag, &number.to_string())),
        _ => bail!("`{}` is {}, which is neither a number nor a text", flag.get_id(), kind(value)),
    };
    known.map(argument).collect()
}

/// Parses TOML settings into command-line arguments `--name=value`.
fn from_text(command: &Command, text: &str) -> Result<Vec<OsString>> {
    let table: toml::Table = text.parse()?;
    table.iter().map(|(name, value)| Ok(argument(flag(command, name)?, &toml_text(name, value)?))).collect()
}

/// Converts a `--set` assignment `NAME=VALUE` into the command-line argument `--name=value`.
fn from_assignment(command: &Command, assignment: &str) -> Result<OsString> {
    let (name, value) = assignment.split_once('=').context("give a name, `=`, and a value: --set micro_batches=16")?;
    Ok(argument(flag(command, name.trim())?, value.trim()))
}

/// Converts a setting's TOML value into the string that its flag takes; an array becomes a comma-separated list.
fn toml_text(name: &str, value: &toml::Value) -> Result<String> {
    Ok(match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(value) => value.to_string(),
        toml::Value::Array(values) => {
            let texts = values.iter().map(|value| toml_text(name, value)).collect::<Result<Vec<_>>>()?;
            texts.join(",")
        }
        other => bail!("`{name}` is a {}; give a number or a text", other.type_str()),
    })
}

/// Names the type of a JSON value, such as `a number`, for an error message.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Returns the final value of every setting, read from the parsed arguments.
fn settings(command: &Command, matches: &ArgMatches) -> Result<Settings> {
    let flags = command.get_arguments().filter(|flag| is_setting(flag));
    let value = |flag: &Arg| {
        let name = flag.get_id().to_string();
        let mut raw = matches.get_raw(&name)?;
        // A list's values are joined by commas, the form that its flag accepts.
        let raw = match flag.get_action() {
            ArgAction::Append => raw.collect::<Vec<_>>().join(OsStr::new(",")),
            _ => raw.next_back()?.to_owned(),
        };
        let Some(text) = raw.to_str() else {
            let shown = raw.to_string_lossy();
            return Some(Err(anyhow!("`{name}` is {shown}, which is not Unicode, as settings are; give another name")));
        };
        if let Err(error) = check_text(flag, text) {
            return Some(Err(error));
        }
        let number = number(text).filter(|_| is_number(flag));
        Some(Ok((name, number.map_or_else(|| text.into(), Value::Number))))
    };
    flags.filter_map(value).collect::<Result<_>>().map(Settings)
}

impl Settings {
    /// Returns the settings as a TOML document, which `--config` can read again.
    pub fn to_toml(&self) -> Result<String> {
        // TOML integers have 63 bits; a larger number becomes a string, which flags accept too.
        let in_toml = |value: &Value| match value.as_u64() {
            Some(large) if i64::try_from(large).is_err() => large.to_string().into(),
            _ => value.clone(),
        };
        let table: BTreeMap<_, _> = self.0.iter().map(|(name, value)| (name, in_toml(value))).collect();
        Ok(toml::to_string(&table)?)
    }
}
