//! Merges the settings of a checkpoint, a TOML file, `--set` and the command line into one set of flags; the later
//! source wins.
//!
//! A setting has the name of its flag, with `_` for `-`, so clap parses, validates and documents all of them. The code
//! here works with any set of flags: a fuzzer gives it a set of its own (`fuzz/src/configuration.rs`).

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Number, Value};
use stageline::checkpoint::Printable;

/// The lowest similarity at which the error for an unknown setting suggests a known one. It is the Jaro-Winkler
/// similarity of the two names, from 0 to 1.
const ALIKE: f64 = 0.7;

/// The headings in `--help` of the flags that apply to a single run, which is one process. A training may have several
/// runs, each of which resumes the one before it.
///
/// A resumed run does not take these flags from its checkpoint. They do not decide the trained bits, and most of them
/// fit one machine only. For safety, a checkpoint from elsewhere must not choose files to write, hosts to connect to,
/// or the file of the secret.
pub(super) const OF_THE_RUN: [&str; 7] =
    ["Pipeline", "Memory", "Measurement", "Devices", "Checkpoints", "Settings", "Outputs"];

/// The maximum length of the value of a setting, in bytes.
pub(super) const LONGEST_VALUE: usize = 65_536;

/// The names of the two settings that give the length of a training.
const STEPS: &str = "steps";
const EPOCHS: &str = "epochs";

/// The maximum length of the TOML file of `--config`, in bytes.
const LONGEST: u64 = 1 << 20;

/// The merged settings of a run: the arguments as the parser clap returns them, and the value of every setting for logs
/// and checkpoints.
pub struct Merged {
    pub matches: ArgMatches,
    pub settings: Settings,
}

/// The values of all settings of a run, by the names of the settings. Defaults are included.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings(pub BTreeMap<String, Value>);

/// Resolves the command line of a program into flags and settings (see [`merge`]), and reads the file of `--config`
/// from the disk.
pub fn resolve(command: Command, arguments: &[OsString], resumed: Option<&Settings>) -> Result<Merged> {
    merge(command, arguments, resumed, contents)
}

/// Merges the settings of a run from four sources. In order, they are the checkpoint that the run resumes, the file of
/// `--config`, the assignments of `--set`, and the other flags of the command line. Each source overrides the ones
/// before it.
///
/// The function `read` returns the text of the file at the path that `--config` gives.
///
/// # Errors
/// Returns a [`clap::Error`] if a flag is wrong or `--help` is given. Otherwise the error names the source of the wrong
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
    // A flag that must be set may be set by any source, so only the last parse requires it.
    let lenient = command.clone().mut_args(|flag| flag.required(false));
    let parse_some = |flags: &[OsString]| lenient.clone().try_get_matches_from([&program].into_iter().chain(flags));
    check_length(flags)?;
    // A path that is given twice is an error. Another value may be given again, as after default flags in a script.
    let once = lenient.clone().args_override_self(false).mut_args(replaces_itself);
    let given = once.try_get_matches_from([&program].into_iter().chain(flags))?;
    let mut all = Vec::new();
    if let Some(settings) = resumed {
        let inherited = inherited(&command, settings)?;
        remove_replaced(&mut all, &inherited, &command); // a program may have epochs by default
        all.extend(inherited);
        // These errors quote a checkpoint, whose text may be long or hostile, so they are escaped and cut short.
        parse_some(&all).map_err(|error| anyhow!("{}", Printable::new(error.to_string()).at_most(400)))?;
    }
    // An error of clap would end the process without the name of the source.
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
    // Of `steps` and `epochs`, only the setting that decides the length of the training is kept.
    let has_epochs = settings.0.get(EPOCHS).and_then(Value::as_f64).is_some_and(|epochs| epochs > 0.0);
    settings.0.remove(if has_epochs { STEPS } else { EPOCHS });
    Ok(Merged { settings, matches })
}

/// Returns the message of an error of clap without its first word, `error:`, and the advice at its end.
fn without_usage(message: &str) -> &str {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    message.split("\n\nFor more information").next().unwrap_or(message).trim_end()
}

/// Changes how the value of a flag is parsed. A switch, such as `--augment`, may also have the value `true` or `false`.
/// The command line can then turn off a switch that is on in a checkpoint or settings file. A flag for a number accepts
/// a negative number as its value, which is then rejected with the allowed range.
fn with_value(flag: Arg) -> Arg {
    if !matches!(flag.get_action(), ArgAction::SetTrue) || flag.get_id() == "print_config" {
        // A negative number gets the error with the allowed range, and not that of an unknown flag.
        let is_negative = flag.get_action().takes_values() && is_number(&flag);
        return flag.allow_negative_numbers(is_negative);
    }
    let flag = flag.action(ArgAction::Set).value_parser(clap::value_parser!(bool)).num_args(0..=1);
    flag.require_equals(true).default_missing_value("true").default_value("false")
}

/// Whether the value of a flag is a path.
pub(super) fn takes_path(flag: &Arg) -> bool {
    flag.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

/// Lets the last value of a flag replace an earlier one in the same source. A list stays a list of all values, and a
/// path that is given twice stays an error.
fn replaces_itself(flag: Arg) -> Arg {
    if takes_path(&flag) || matches!(flag.get_action(), ArgAction::Append) {
        return flag;
    }
    let itself = flag.get_id().clone();
    flag.overrides_with(itself)
}

/// Removes from the arguments `all` those that the arguments `later` replace and that clap would not replace:
///
/// - If `later` sets a list again, clap would join both lists.
/// - If `later` sets a number of steps, clap would keep a number of epochs, which may be the program's default.
/// - If `later` turns the decay of the learning rate off, clap would keep the settings of the decay.
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

/// Returns the last value of the flag `name` in arguments such as `--name=value` or `--name value`.
fn value_of(name: &str, arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().rposition(|argument| name_of(argument).is_some_and(|found| found == name))?;
    let joined = arguments[at].to_str()?.split_once('=').map(|(_, value)| value.to_owned());
    joined.or_else(|| Some(arguments.get(at + 1)?.to_str()?.to_owned()))
}

/// Returns an error if the arguments of one source (such as the command line) give both `--steps` and `--epochs`.
fn check_length(arguments: &[OsString]) -> Result<()> {
    let has = |name: &str| arguments.iter().filter_map(name_of).any(|given| given == name);
    ensure!(!(has(STEPS) && has(EPOCHS)), "--steps and --epochs exclude each other: give one of them");
    Ok(())
}

/// Returns the name of the flag in an argument such as `--name` or `--name=value`; `None` for another argument.
fn name_of(argument: &OsString) -> Option<String> {
    let text = argument.to_str()?.strip_prefix("--")?;
    Some(text.split_once('=').map_or(text, |(name, _)| name).to_owned())
}

/// Returns the text of the TOML file of `--config`. It is an error if the file cannot be read, for example because it
/// does not exist, or is longer than [`LONGEST`] bytes.
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

/// Returns the settings in a TOML text, as command-line arguments `--name=value`.
fn from_text(command: &Command, text: &str) -> Result<Vec<OsString>> {
    let table: toml::Table = text.parse()?;
    table.iter().map(|(name, value)| Ok(argument(flag(command, name)?, &toml_text(name, value)?))).collect()
}

/// Returns the assignment `NAME=VALUE` of a `--set` flag as the command-line argument `--name=value`.
fn from_assignment(command: &Command, assignment: &str) -> Result<OsString> {
    let (name, value) = assignment.split_once('=').context("give a name, `=`, and a value: --set micro_batches=16")?;
    Ok(argument(flag(command, name.trim())?, value.trim()))
}

/// Returns the command-line flag of a setting, such as `--micro-batches` for `micro_batches`. The error for an unknown
/// name suggests the most similar setting, if there is one.
fn flag<'a>(command: &'a Command, name: &str) -> Result<&'a Arg> {
    if let Some(flag) = command.get_arguments().find(|flag| flag.get_id() == name) {
        ensure!(is_setting(flag), "`{name}` is for the command line only: give it as a flag");
        return Ok(flag);
    }
    let known = command.get_arguments().filter(|flag| is_setting(flag)).map(|flag| flag.get_id().as_str());
    let alike = |known: &&str| strsim::jaro_winkler(known, name);
    let nearest = known.max_by(|a, b| alike(a).total_cmp(&alike(b))).filter(|known| alike(known) >= ALIKE);
    match nearest {
        Some(nearest) => bail!("there is no setting `{name}`; did you mean `{nearest}`?"),
        None => bail!("there is no setting `{name}`; --help lists all flags, which are settings with `_` for `-`"),
    }
}

/// Whether a resumed run takes the value of a flag from its checkpoint. It does so for flags that decide the trained
/// bits, and for the program's own flags.
fn is_inherited(flag: &Arg) -> bool {
    flag.get_help_heading().is_none_or(|heading| !OF_THE_RUN.contains(&heading))
}

/// Checks that a checkpoint can keep the values of a program's own flag, which a resumed run takes from there. A list
/// is kept as one text, so its flag must split a text at commas. Flags that are counted, or that mean `false`, have no
/// value to keep.
pub(crate) fn check_kept(flag: &Arg) -> Result<()> {
    let is_kept = flag.get_long().is_some() && is_inherited(flag);
    let (name, action) = (flag.get_id(), flag.get_action());
    let remedy = match action {
        ArgAction::Append if flag.get_value_delimiter() != Some(',') => "write #[arg(value_delimiter = ',')]",
        ArgAction::SetFalse => "use a bool that is true with the flag",
        ArgAction::Count => "use a number as the flag's value",
        _ => return Ok(()),
    };
    ensure!(!is_kept, "a checkpoint cannot keep the program's flag `{name}` ({action:?}): {remedy}");
    Ok(())
}

/// Whether a command-line flag is a setting, which checkpoints store and a TOML file may set. A setting takes a value.
/// The flags that name sources of settings (`--config`, `--set` and `--resume`) are no settings. Neither are
/// `--stop-after` and `--print-config`, which concern a single run only.
fn is_setting(flag: &Arg) -> bool {
    let only_here = ["config", "set", "resume", "stop_after", "print_config"];
    flag.get_long().is_some() && flag.get_action().takes_values() && !only_here.contains(&flag.get_id().as_str())
}

/// Returns a flag and its value as one argument `--name=value`. A value with a leading dash is then not read as a flag.
fn argument(flag: &Arg, value: &str) -> OsString {
    format!("--{}={value}", flag.get_long().expect("settings are flags with long names")).into()
}

/// Returns the TOML value of a setting as the text that its flag takes; an array becomes a comma-separated list.
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

/// Returns the kind of a JSON value in words, such as `a number`, for an error message.
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

/// Returns the final value of every setting of a run, from the parsed command-line arguments.
fn settings(command: &Command, matches: &ArgMatches) -> Result<Settings> {
    let flags = command.get_arguments().filter(|flag| is_setting(flag));
    let value = |flag: &Arg| {
        let name = flag.get_id().to_string();
        let mut raw = matches.get_raw(&name)?;
        // The values of a list are joined by commas, as its flag takes them.
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

/// Returns an error if the value of a setting is longer than [`LONGEST_VALUE`] bytes or contains control characters
/// other than line feeds and tabs, or characters that change the direction of the text around them. Checkpoints, logs
/// and terminals show these values.
fn check_text(flag: &Arg, text: &str) -> Result<()> {
    // A prompt may have several lines.
    let is_control = |char: char| char.is_control() && !matches!(char, '\n' | '\t');
    let is_direction = |char| matches!(char, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    let (name, shown) = (flag.get_id(), Printable::new(text));
    ensure!(
        text.len() <= LONGEST_VALUE && !text.chars().any(|char| is_control(char) || is_direction(char)),
        "`{name}` is {shown}; give at most {LONGEST_VALUE} bytes without control characters other than line feeds and tabs, and \
         without characters that change the direction of a text"
    );
    Ok(())
}

/// Whether a command-line flag takes a number. The type of the flag decides this. The value cannot, because a path may
/// consist of digits.
fn is_number(flag: &Arg) -> bool {
    let numbers = [
        TypeId::of::<f32>(),
        TypeId::of::<f64>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<NonZero<usize>>(),
    ];
    numbers.iter().any(|number| flag.get_value_parser().type_id() == *number)
}

/// Parses the value of a setting as a number, in every form that a flag takes, so that 1, +1, 1.0, 1. and 1e0 are equal.
/// Returns `None` if the text is no number, or one that JSON does not have, such as `inf`.
///
/// Floats are parsed by the standard library, because the JSON parser does not promise the nearest float.
fn number(text: &str) -> Option<Number> {
    let integer =
        text.parse().map(|number: u64| number.into()).or_else(|_| text.parse().map(|number: i64| number.into()));
    // -0 is a float, because it has a sign.
    if let Some(integer) = integer.ok().filter(|_| !text.starts_with("-0")) {
        return Some(integer);
    }
    let float: f64 = text.parse().ok()?;
    let whole = serde_json::from_str(&float.to_string()).ok().filter(|number: &Number| !number.is_f64());
    whole.or_else(|| Number::from_f64(float))
}

impl Settings {
    /// Returns the settings as TOML text, from which `--config` can read them again.
    pub fn to_toml(&self) -> Result<String> {
        // TOML integers have 63 bits; a larger number becomes a text, which flags take as well.
        let in_toml = |value: &Value| match value.as_u64() {
            Some(large) if i64::try_from(large).is_err() => large.to_string().into(),
            _ => value.clone(),
        };
        let table: BTreeMap<_, _> = self.0.iter().map(|(name, value)| (name, in_toml(value))).collect();
        Ok(toml::to_string(&table)?)
    }
}
