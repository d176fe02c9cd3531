//! Copies and writes the files of a model folder other than the weights.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::disk::{self, NewFile};
use crate::error::FolderError;
use crate::names::{ADAPTER, COMPANIONS, CONFIG, TEMPLATE_ENDING, TEMPLATES};
use crate::refusal::Refusal;

/// Copies the files that describe a model and its tokenizer from the model folder `from` to the folder `to`. Creates
/// `to` if necessary. Returns the names of the copied files relative to `from`, with `/` between their parts.
///
/// The following files are copied if they are present: `config.json`, `generation_config.json`, `tokenizer.json`,
/// `tokenizer_config.json`, `special_tokens_map.json`, `vocab.json`, `vocab.txt`, `merges.txt`, `tokenizer.model`,
/// `spiece.model`, `sentencepiece.bpe.model`, `tekken.json`, `added_tokens.json`, `chat_template.jinja`,
/// `chat_template.json`, and the files in `additional_chat_templates` whose names end with `.jinja`. A file with the
/// same name in `to` is replaced.
///
/// # Errors
/// - An error that names the file if a file cannot be read or written.
/// - [`FolderError::Refused`] with [`Refusal::Source`] if both folders are the same.
/// - [`FolderError::Refused`] with [`Refusal::OtherCompanion`] if `to` contains one of these files and `from` lacks it.
///   The file `config.json` is an exception, because [`write_config`] may replace it.
/// - [`FolderError::Refused`] with [`Refusal::NotAFolder`] if `from` has chat templates, but
///   `additional_chat_templates` in `to` is not a folder.
pub fn copy_companions(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Vec<String>, FolderError> {
    let (from, to) = (from.as_ref(), to.as_ref());
    disk::create_folder(to)?;
    if is_same(from, to)? {
        return Err(FolderError::refused(to, Refusal::Source));
    }
    let companions = present(from)?;
    check_target(&companions, to)?;
    let templates = to.join(TEMPLATES);
    let has_templates = has_templates(&companions);
    if has_templates {
        disk::create_folder(&templates)?;
    }
    for name in &companions {
        let mut old = open(from, name)?;
        let path = to.join(name);
        let copy = |new: &mut fs::File| io::copy(&mut old, new).map(drop).map_err(FolderError::write("write", &path));
        NewFile::write(to, name, copy)?.publish()?;
    }
    if has_templates {
        disk::sync_folder(&templates)?;
    }
    disk::sync_folder(to)?;
    Ok(companions)
}

/// Checks that the files `companions` (files beside the weights, such as `tokenizer.json`) may be copied to the folder
/// `to`. Returns an error if `to` contains a companion that is not among them (except `config.json`), or if its
/// `additional_chat_templates` is not a folder.
pub(crate) fn check_target(companions: &[String], to: &Path) -> Result<(), FolderError> {
    let templates = to.join(TEMPLATES);
    if has_templates(companions) && disk::has(to, TEMPLATES) && !templates.is_dir() {
        return Err(FolderError::refused(&templates, Refusal::NotAFolder));
    }
    let other = present(to)?.into_iter().find(|name| *name != CONFIG && !companions.contains(name));
    other.map_or(Ok(()), |file| Err(FolderError::refused(to, Refusal::OtherCompanion { file })))
}

/// Whether one of the companions is an additional chat template, a file in `additional_chat_templates`.
fn has_templates(companions: &[String]) -> bool {
    companions.iter().any(|name| name.starts_with(TEMPLATES))
}

/// Whether two paths lead to the same file or folder, through symbolic links or, on Unix, hard links. Returns an error
/// if nothing exists at one of the paths.
pub(crate) fn is_same(a: &Path, b: &Path) -> Result<bool, FolderError> {
    let real = |path: &Path| fs::canonicalize(path).map_err(FolderError::read(path));
    Ok(real(a)? == real(b)? || is_one_inode(a, b)?)
}

/// Whether two paths lead to the same inode, as hard links do.
#[cfg(unix)]
fn is_one_inode(a: &Path, b: &Path) -> Result<bool, FolderError> {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &Path| match fs::metadata(path) {
        Ok(metadata) => Ok((metadata.dev(), metadata.ino())),
        Err(error) => Err(FolderError::read(path)(error)),
    };
    Ok(inode(a)? == inode(b)?)
}

#[cfg(not(unix))]
fn is_one_inode(_: &Path, _: &Path) -> Result<bool, FolderError> {
    Ok(false)
}

/// Returns the names of the companions (files beside the weights, such as `tokenizer.json`) in a model folder, with `/`
/// between their components. A broken link counts too.
pub(crate) fn present(folder: &Path) -> Result<Vec<String>, FolderError> {
    let mut found: Vec<_> = COMPANIONS.into_iter().filter(|name| disk::has(folder, name)).map(str::to_owned).collect();
    found.extend(templates(folder)?);
    Ok(found)
}

/// Returns the names of a model folder's additional chat templates, sorted. These are the files that the Transformers
/// library reads.
fn templates(folder: &Path) -> Result<Vec<String>, FolderError> {
    let path = folder.join(TEMPLATES);
    // The Transformers library also ignores `additional_chat_templates` if it is not a folder.
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&path).map_err(FolderError::read(&path))? {
        let entry = entry.map_err(FolderError::read(&path))?;
        let Ok(name) = entry.file_name().into_string() else {
            return Err(FolderError::malformed(&entry.path(), "its name is not Unicode"));
        };
        if name.ends_with(TEMPLATE_ENDING) {
            found.push(format!("{TEMPLATES}/{name}"));
        }
    }
    found.sort();
    Ok(found)
}

/// Opens the companion `name` (a file beside the weights, such as `tokenizer.json`) in a model folder for reading.
/// Links are followed.
///
/// # Errors
/// - [`FolderError::MissingFile`] if nothing is at the path, or a link there has no target.
/// - [`FolderError::NotAFile`] if a folder, a device, a pipe or a socket is there.
/// - [`FolderError::Read`] if the operating system cannot open the file.
pub(crate) fn open(folder: &Path, name: &str) -> Result<fs::File, FolderError> {
    disk::open(&folder.join(name), "a link in the folder leads to it")
}

/// Writes `config`, a model's configuration as a JSON object, to the `config.json` of the model folder `folder`.
/// Replaces an existing file, and creates the folder if necessary.
///
/// # Errors
/// - [`FolderError::Refused`] if `config` is not a JSON object.
/// - [`FolderError::Write`] if the operating system cannot write.
pub fn write_config(folder: impl AsRef<Path>, config: &Value) -> Result<(), FolderError> {
    write_object(folder.as_ref(), CONFIG, config)
}

/// Writes `config`, an adapter's configuration as a JSON object, to the `adapter_config.json` of the adapter folder
/// `folder`. Replaces an existing file, and creates the folder if necessary.
///
/// # Errors
/// Returns the same errors as [`write_config`].
pub fn write_adapter_config(folder: impl AsRef<Path>, config: &Value) -> Result<(), FolderError> {
    write_object(folder.as_ref(), ADAPTER, config)
}

fn write_object(folder: &Path, name: &str, object: &Value) -> Result<(), FolderError> {
    if !object.is_object() {
        return Err(FolderError::refused(&folder.join(name), Refusal::NotAnObject));
    }
    disk::create_folder(folder)?;
    disk::write_json(folder, name, object)?.publish()?;
    disk::sync_folder(folder)
}
