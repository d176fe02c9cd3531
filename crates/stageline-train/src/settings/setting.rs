//! Decides which flags are settings, and which values a setting may have.

use std::any::TypeId;
use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Arg, ArgAction, Command};
use serde_json::Number;
use stageline::checkpoint::Printable;

/// Minimum Jaro-Winkler similarity, from 0 to 1, for suggesting a known setting in the error for an unknown name.
const ALIKE: f64 = 0.7;

/// The `--help` headings of flags that apply to one run (process) only. A training may consist of several runs, each
/// resuming the previous one.
///
/// A resumed run does not take these flags from its checkpoint, because they do not affect the trained values, and most
/// fit one machine only. For security, a checkpoint from elsewhere must not choose files to write, hosts to connect to,
/// or the file with the secret token.
pub(super) const OF_THE_RUN: [&str; 8] =
    ["Pipeline", "Memory", "Measurement", "Devices", "Checkpoints", "Settings", "Inference", "Outputs"];

/// The maximum length of a setting's value, in bytes.
pub(super) const LONGEST_VALUE: usize = 65_536;

/// Whether a flag's value is a path.
pub(super) fn takes_path(flag: &Arg) -> bool {
    flag.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

/// Finds the command-line flag of a setting by its name, such as `--micro-batches` for `micro_batches`. The error for
/// an unknown name suggests a setting with a similar name, if there is one.
pub(super) fn flag<'a>(command: &'a Command, name: &str) -> Result<&'a Arg> {
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

/// Whether a resumed run takes this flag's value from its checkpoint: true for flags that affect the trained values,
/// and for the program's own flags.
pub(super) fn is_inherited(flag: &Arg) -> bool {
    flag.get_help_heading().is_none_or(|heading| !OF_THE_RUN.contains(&heading))
}

/// Checks that a checkpoint can store the program's own flag `flag`, for runs that resume from it. A list is stored as
/// one string, so its flag must split values at commas. A flag that is counted, or that sets a value to false, has no
/// value to store and is an error.
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

/// Whether a flag is a setting, which a checkpoint stores and a TOML file may set. A flag is a setting if it takes a
/// value, except:
/// - `--config`, `--set` and `--resume`, which name sources of settings.
/// - `--stop-after` and `--print-config`, which concern one run only.
pub(super) fn is_setting(flag: &Arg) -> bool {
    let only_here = ["config", "set", "resume", "stop_after", "print_config"];
    flag.get_long().is_some() && flag.get_action().takes_values() && !only_here.contains(&flag.get_id().as_str())
}

/// Returns a flag and its value as one argument `--name=value`, so that a value with a leading dash is not taken for a
/// flag.
pub(super) fn argument(flag: &Arg, value: &str) -> OsString {
    format!("--{}={value}", flag.get_long().expect("settings are flags with long names")).into()
}

/// Checks that a setting's value is safe to show in checkpoints, logs and terminals. Returns an error if it is longer
/// than [`LONGEST_VALUE`] bytes, or contains control characters (other than line feeds and tabs) or characters that
/// change the text direction.
pub(super) fn check_text(flag: &Arg, text: &str) -> Result<()> {
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

/// Whether a flag takes a number, judged by its type and not by its value, because a path may consist of digits.
pub(super) fn is_number(flag: &Arg) -> bool {
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

/// Parses a setting's value as a number, in every form that a flag accepts, so that 1, +1, 1.0, 1. and 1e0 are equal.
/// Returns `None` for other strings, and for numbers that JSON lacks, such as `inf`.
///
/// Floats are parsed by the standard library, because the JSON parser does not guarantee the nearest float.
pub(super) fn number(text: &str) -> Option<Number> {
    let integer =
        text.parse().map(|number: u64| number.into()).or_else(|_| text.parse().map(|number: i64| number.into()));
    // -0 is parsed as a float, to keep its sign.
    if let Some(integer) = integer.ok().filter(|_| !text.starts_with("-0")) {
        return Some(integer);
    }
    let float: f64 = text.parse().ok()?;
    let whole = serde_json::from_str(&float.to_string()).ok().filter(|number: &Number| !number.is_f64());
    whole.or_else(|| Number::from_f64(float))
}
