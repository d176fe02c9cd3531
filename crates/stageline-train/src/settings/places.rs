//! Checks that the files and folders that a run writes replace no file of the run ([`check_places`]).

use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use clap::{ArgMatches, Command};

use super::setting::takes_path;
use crate::outputs::paths::is_pipe_or_device;

/// The `--help` headings of the flags whose paths a run writes to.
const WRITTEN: [&str; 2] = ["Outputs", "Checkpoints"];

/// Names of the values of flags whose paths are folders.
const FOLDERS: [&str; 2] = ["FOLDER", "DIR"];

/// Names of the settings with the training data and the data for evaluation. All files in a folder of data are read.
const DATA: [&str; 2] = ["data", "eval_data"];

/// The path that one flag gives.
struct Place<'a> {
    flag: String,
    given: &'a Path,
    /// The normalised path, which is equal for all spellings of a path to the same file.
    place: PathBuf,
    /// Whether the run writes to the path.
    is_written: bool,
    /// Whether the flag's value is a folder.
    is_folder: bool,
    /// Whether the run reads training data or evaluation data from the path.
    is_data: bool,
}

/// Checks that the run's outputs replace no other file that its flags name, such as the training data. Warns of outputs
/// in a folder of training or evaluation data, because a run that reads them as data cannot resume.
///
/// # Errors
/// Returns an error that names both flags.
pub fn check_places(command: &Command, matches: &ArgMatches) -> Result<()> {
    let places = places_of(command, matches);
    for (index, one) in places.iter().enumerate() {
        // Two flags may name one folder, because a run may resume from the folder to which it writes checkpoints.
        let is_replaced = |other: &&Place| {
            one.place == other.place && (one.is_written || other.is_written) && !(one.is_folder && other.is_folder)
        };
        if let Some(other) = places[..index].iter().find(is_replaced).filter(|_| !one.given.is_dir()) {
            bail!("{} and {} are both {}: give each a file of its own", other.flag, one.flag, one.given.display());
        }
    }
    for output in places.iter().filter(|output| output.is_written) {
        for other in places.iter().filter(|other| other.is_data) {
            let (flag, given, other_flag) = (&output.flag, output.given.display(), &other.flag);
            if is_visible_in(&output.place, &other.place) {
                tracing::warn!(
                    "{flag} {given} is in the folder of {other_flag}: if a later run reads it as data, that run cannot resume this one"
                );
            }
        }
    }
    Ok(())
}

/// Whether two paths lead to the same file or folder, however they are written. The file or folder need not exist yet.
pub fn is_same_place(one: &Path, other: &Path) -> bool {
    place(one) == place(other)
}

/// Returns all paths that the flags give, except those of devices, such as `/dev/null`, and pipes, which may be shared.
fn places_of<'a>(command: &Command, matches: &'a ArgMatches) -> Vec<Place<'a>> {
    let mut places = Vec::new();
    for flag in command.get_arguments().filter(|flag| takes_path(flag)) {
        let (id, heading) = (flag.get_id().as_str(), flag.get_help_heading());
        let is_written = heading.is_some_and(|heading| WRITTEN.contains(&heading)) && id != "resume";
        let paths = matches.try_get_many::<PathBuf>(id).ok().flatten().unwrap_or_default();
        places.extend(paths.filter(|path| !is_pipe_or_device(path)).map(|given| Place {
            flag: format!("--{}", flag.get_long().unwrap_or(id)),
            given,
            place: place(given),
            is_written,
            is_folder: flag.get_value_names().into_iter().flatten().any(|name| FOLDERS.contains(&name.as_str())),
            is_data: DATA.contains(&id),
        }));
    }
    places
}

/// Whether `path` is the folder `folder` or in it, and neither `path` nor a folder between them is hidden. Hidden
/// entries of a folder of data are not read.
fn is_visible_in(path: &Path, folder: &Path) -> bool {
    let Ok(rest) = path.strip_prefix(folder) else { return false };
    let is_hidden = |part: Component| part.as_os_str().as_encoded_bytes().starts_with(b".");
    folder.is_dir() && !rest.components().any(is_hidden)
}

/// Normalises a path, so that different spellings of a path to the same file are equal: the canonical path of the
/// nearest existing ancestor, followed by the rest.
fn place(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = |ancestor: &Path| Some(ancestor.canonicalize().ok()?.join(whole.strip_prefix(ancestor).ok()?));
    whole.ancestors().find_map(known).unwrap_or_else(|| whole.clone())
}

#[cfg(test)]
mod tests {
    use clap::{Args, Parser};

    use super::*;
    use crate::settings::flags::TrainingFlags;

    /// The flags of a program with training data and an output of its own.
    #[derive(Parser)]
    struct Own {
        #[arg(long)]
        data: Option<PathBuf>,
        #[arg(long)]
        init: Option<PathBuf>,
        #[arg(long, help_heading = "Outputs")]
        export: Option<PathBuf>,
    }

    fn checked(flags: &str) -> Result<(), String> {
        let command = TrainingFlags::augment_args(<Own as clap::CommandFactory>::command());
        let words = ["train"].into_iter().chain(flags.split_whitespace());
        let matches = command.clone().try_get_matches_from(words).unwrap();
        check_places(&command, &matches).map_err(|error| error.to_string())
    }

    #[test]
    fn outputs_replace_no_other_file_of_the_run() {
        for (flags, expected) in [
            ("--log a --report a", "--log and --report are both a: give each a file of its own"),
            ("--trace a --log b --report ./a", "are both ./a"),
            ("--data a.txt --log ./a.txt", "--data and --log are both ./a.txt"),
            ("--config a.toml --report a.toml", "--config and --report are both a.toml"),
            ("--trace a.json --init a.json", "--init and --trace are both a.json"),
            ("--export a --log a", "--export and --log are both a"),
        ] {
            let refused = checked(flags).err().unwrap_or_default();
            assert!(refused.contains(expected), "{flags}: {refused}");
        }
        for allowed in [
            "--log a --trace b --report c",
            "--resume kept --checkpoint kept",
            "--tensorboard a --checkpoint a",
            "--data a --init a",
        ] {
            assert_eq!(checked(allowed), Ok(()), "{allowed}");
        }
        #[cfg(unix)]
        assert_eq!(checked("--log /dev/null --trace /dev/null"), Ok(()));
    }

    #[test]
    fn visible_paths_in_a_folder_of_data_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let within = |path: &str| is_visible_in(&folder.path().join(path), folder.path());
        assert!(within("") && within("out") && within("new/out"));
        assert!(!within(".out") && !within(".new/out") && !within("new/.out"));
        let text = folder.path().join("text");
        assert!(!is_visible_in(&folder.path().join("out"), &text) && !is_visible_in(&text, &text));
    }
}
