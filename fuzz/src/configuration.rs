//! Fuzzes the settings of a training: reads bytes as a command line, a settings file and the settings of a resumed run.
//! The code of `stageline-train` then merges these settings.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, FromArgMatches, Parser, ValueEnum, parser::ValueSource};
use serde_json::Value;

use config::{Merged, Settings};

#[allow(dead_code)] // the functions that end the process or read files are not called here
#[path = "../../crates/stageline-train/src/settings/merge.rs"]
mod config;
#[allow(dead_code)]
#[path = "../../crates/stageline-train/src/settings/setting.rs"]
mod setting;

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

/// The byte that separates the three parts of a fuzz input: command line, settings file and settings of a resumed run.
const BORDER: u8 = b'|';

/// The merged settings of a training in two forms: as parsed flags, and as a table.
struct Resolved {
    flags: Flags,
    settings: Settings,
}

/// The command-line flags of the fuzzed program, which are like those of a training program.
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    run: RunFlags,
    #[arg(long)]
    config: Option<PathBuf>,
    #[arg(long)]
    set: Vec<String>,
    #[arg(long)]
    resume: Option<PathBuf>,
    #[arg(long)]
    stop_after: Option<usize>,
    #[arg(long)]
    print_config: bool,
}

/// The flags of the fuzzed program that are also settings. A settings file, `--set` and a checkpoint can give their
/// values, too.
#[derive(Args, Debug)]
struct RunFlags {
    #[arg(long)]
    data: Option<PathBuf>,
    #[arg(long, default_value_t = 2)]
    stages: usize,
    #[arg(long, default_value_t = 8)]
    micro_batches: usize,
    #[arg(long)]
    schedule_steps: Option<usize>,
    #[arg(long, default_value_t = 2e-3)]
    learning_rate: f64,
    #[arg(long, default_value_t = 1.0)]
    clip: f64,
    #[arg(long)]
    peak_tflops: Option<f64>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long, default_value_t = 60)]
    watchdog: u32,
    #[arg(long, default_value_t = NonZero::new(3).expect("3 is not 0"))]
    keep: NonZero<usize>,
    #[arg(long, default_value = "full")]
    precision: Precision,
    #[arg(long, default_value = "1f1b", value_parser = schedule)]
    schedule: &'static str,
    #[arg(long, default_value = "cpu", help_heading = "Devices")]
    device: String,
    #[arg(long, num_args = 0..=1, default_missing_value = "100", help_heading = "Measurement")]
    verify: Option<usize>,
    #[arg(long, help_heading = "Outputs")]
    log: Option<PathBuf>,
}

/// The names of the settings that a resumed training does not take from its checkpoint. Their flags are under the
/// headings `Devices`, `Measurement` and `Outputs` of the help.
const NOT_INHERITED: [&str; 3] = ["verify", "log", "device"];

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Precision {
    Full,
    Bf16,
    F16,
}

fn schedule(name: &str) -> Result<&'static str, String> {
    ["gpipe", "1f1b"].into_iter().find(|known| *known == name).ok_or(format!("there is no schedule `{name}`"))
}

/// Merges the three parts of a fuzz input into a training's settings. Asserts that the result is right, or that the
/// error message is not empty.
///
/// The parts are the command line (one flag per line), the settings file, and the settings of the resumed run as JSON.
pub fn configuration(bytes: &[u8]) {
    if bytes.len() > LIMIT {
        return;
    }
    let mut parts = bytes.splitn(3, |&byte| byte == BORDER);
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let flags = next().unwrap_or_default();
    let file = next().map(<[u8]>::to_vec);
    let before: Option<BTreeMap<String, Value>> = next().and_then(|json| serde_json::from_slice(json).ok());
    let resumed = before.map(Settings);

    let mut arguments = vec!["gpt".into()];
    arguments.extend(file.is_some().then(|| "--config=file".into()));
    arguments.extend(flags.split(|&byte| byte == b'\n').filter(|flag| !flag.is_empty()).map(argument));
    let text = file.and_then(|file| String::from_utf8(file).ok());
    if let Some(table) = text.as_deref().and_then(|text| text.parse::<toml::Table>().ok()) {
        table.iter().for_each(|(name, value)| assert_file_setting(name, value));
    }
    resumed.iter().for_each(assert_inherited);

    match merge(&arguments, resumed.as_ref(), text.as_deref()) {
        Ok(resolved) => {
            assert_round_trips(&resolved);
            assert_precedence(&resolved, &arguments, resumed.as_ref(), text.as_deref());
        }
        Err(error) => assert!(!format!("{error:#}").is_empty()),
    }
}

#[cfg(unix)]
fn argument(bytes: &[u8]) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

#[cfg(not(unix))]
fn argument(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}

fn merge(arguments: &[OsString], resumed: Option<&Settings>, file: Option<&str>) -> Result<Resolved> {
    let read = |_: &std::path::Path| Ok(file.context("it cannot be read")?.to_owned());
    let Merged { matches, settings } = config::merge(Flags::command(), arguments, resumed, read)?;
    Ok(Resolved { flags: Flags::from_arg_matches(&matches)?, settings })
}

/// Merges the text `file` of a settings file into the default settings, without other flags and without a checkpoint.
fn merge_file(file: &str) -> Result<Resolved> {
    merge(&["gpt".into(), "--config=file".into()], None, Some(file))
}

/// Returns the default values of all settings of the fuzzed program.
fn default() -> &'static Settings {
    static DEFAULT: OnceLock<Settings> = OnceLock::new();
    DEFAULT.get_or_init(|| merge(&["gpt".into()], None, None).expect("nothing is wrong").settings)
}

/// Returns the names of all settings of the fuzzed program. They are read from the definition of its flags, and not
/// with the tested code.
fn names() -> &'static BTreeSet<String> {
    static NAMES: OnceLock<BTreeSet<String>> = OnceLock::new();
    let command = || RunFlags::augment_args(clap::Command::new("gpt"));
    NAMES.get_or_init(|| command().get_arguments().map(|flag| flag.get_id().to_string()).collect())
}

/// Asserts that a settings file with the single entry `name = value` changes only that setting. The error for an
/// unknown name must contain the name.
fn assert_file_setting(name: &str, value: &toml::Value) {
    let text = toml::to_string(&BTreeMap::from([(name, value)])).expect("it was read");
    let unknown = format!("there is no setting `{name}`");
    match merge_file(&text) {
        Ok(resolved) => {
            assert!(names().contains(name), "`{name}` is taken for a setting");
            assert_changes_only(&resolved, &BTreeSet::from([name]));
        }
        Err(error) => {
            let said = format!("{error:#}");
            if names().contains(name) {
                return assert!(!said.contains("there is no setting"), "{said}");
            }
            let elsewhere = format!("`{name}` is for the command line only");
            let is_flag = Flags::command().get_arguments().any(|flag| flag.get_id() == name) || name == "help";
            assert!(said.contains(if is_flag { &elsewhere } else { &unknown }), "{name}: {said}");
        }
    }
}

/// Asserts that a resumed run takes from `before`, the settings in its checkpoint, only those that it may take from
/// there. Without flags and a settings file, all other settings must keep their defaults.
fn assert_inherited(before: &Settings) {
    let Ok(resolved) = merge(&["gpt".into()], Some(before), None) else { return };
    // A command line may lack even the program's name.
    let nameless = merge(&[], Some(before), None).expect("it was taken");
    assert_eq!(nameless.settings, resolved.settings);
    let inherited = before.0.keys().map(String::as_str).filter(|name| !NOT_INHERITED.contains(name));
    let inherited: BTreeSet<_> = inherited.filter(|name| names().contains(*name)).collect();
    assert!(inherited.iter().all(|name| before.0[*name].is_string() || before.0[*name].is_number()));
    assert_changes_only(&resolved, &inherited);
    for (name, now) in &resolved.settings.0 {
        // The text of a setting that takes text is inherited unchanged.
        if let (Value::String(now), Some(Value::String(before))) = (now, before.0.get(name)) {
            assert!(now == before || NOT_INHERITED.contains(&name.as_str()), "{name}: {before:?} is now {now:?}");
        }
    }
    let Flags { config, set, resume, stop_after, print_config, .. } = resolved.flags;
    assert_eq!((config, set.len(), resume, stop_after, print_config), (None, 0, None, None, false));
}

/// Asserts that all merged settings have their default values, except for the settings listed in `names`.
fn assert_changes_only(resolved: &Resolved, names: &BTreeSet<&str>) {
    let default = &default().0;
    let now = &resolved.settings.0;
    for name in default.keys().chain(now.keys()).filter(|name| !names.contains(name.as_str())) {
        assert_eq!(now.get(name), default.get(name), "{name}, which no source sets");
    }
}

/// Asserts that settings, written as a settings file and read again, stay the same, and that a resumed run inherits
/// them.
fn assert_round_trips(resolved: &Resolved) {
    let text = resolved.settings.to_toml().expect("settings are numbers and texts");
    let printed = merge_file(&text).expect("it was taken before");
    assert_eq!(printed.settings, resolved.settings);
    assert_eq!(format!("{:?}", printed.flags.run), format!("{:?}", resolved.flags.run));
    let json = serde_json::to_value(&resolved.settings.0).expect("settings are numbers and texts");
    assert!(json.as_object().is_some_and(|all| all.values().all(|value| value.is_number() || value.is_string())));
    let inheriting = merge(&["gpt".into()], Some(&resolved.settings), None).expect("it was taken before");
    for (name, value) in &resolved.settings.0 {
        let inherited = !NOT_INHERITED.contains(&name.as_str());
        let expected = if inherited { Some(value) } else { default().0.get(name) };
        assert_eq!(inheriting.settings.0.get(name), expected, "{name}");
    }
}

/// Asserts that each setting has the value of its first source in this order: command-line flags and `--set`, the
/// settings file, and the settings of the resumed run.
fn assert_precedence(resolved: &Resolved, arguments: &[OsString], resumed: Option<&Settings>, file: Option<&str>) {
    let given = Flags::command().args_override_self(true).get_matches_from(arguments);
    let file = file.filter(|_| resolved.flags.config.is_some()).unwrap_or_default();
    let table: toml::Table = file.parse().expect("it was read before");
    let assigned: BTreeSet<_> =
        resolved.flags.set.iter().filter_map(|set| Some(set.split_once('=')?.0.trim())).collect();
    let by_flags = merge(arguments, None, Some("")).expect("more was taken");
    let by_file = merge_file(file).expect("more was taken");
    let by_resumed = merge(&["gpt".into()], resumed, None).expect("more was taken");
    for name in names() {
        let flag = given.value_source(name) == Some(ValueSource::CommandLine) || assigned.contains(name.as_str());
        let said = match (flag, table.contains_key(name)) {
            (true, _) => &by_flags,
            (false, true) => &by_file,
            (false, false) => &by_resumed,
        };
        assert_eq!(resolved.settings.0.get(name), said.settings.0.get(name), "{name}");
    }
}
