//! Copies and writes the files that belong to a model besides its weights.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::disk::{self, NewFile};
use crate::error::FolderError;
use crate::names::{COMPANIONS, CONFIG};
use crate::refusal::Refusal;

/// Copies the files that describe a model and its tokenizer from the model folder `from` to the folder `to`. Creates
/// `to` if necessary. Returns the names of the copied files.
///
/// The following files are copied if they are present: `config.json`, `generation_config.json`, `tokenizer.json`,
/// `tokenizer_config.json`, `special_tokens_map.json`, `vocab.json`, `vocab.txt`, `merges.txt`, `tokenizer.model`,
/// `spiece.model`, `sentencepiece.bpe.model`, `tekken.json`, `added_tokens.json`, `chat_template.jinja` and
/// `chat_template.json`. A file of the same name in `to` is replaced.
///
/// # Errors
/// Returns an error that names the file if a file cannot be read or written, or if both folders are the same.
pub fn copy_companions(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Vec<&'static str>, FolderError> {
    let (from, to) = (from.as_ref(), to.as_ref());
    fs::create_dir_all(to).map_err(FolderError::write("create the folder", to))?;
    if is_same(from, to)? {
        return Err(FolderError::refused(to, Refusal::Source));
    }
    let present = present(from);
    for name in &present {
        let mut old = open(from, name)?;
        let path = to.join(name);
        let copy = |new: &mut fs::File| io::copy(&mut old, new).map(drop).map_err(FolderError::write("write", &path));
        NewFile::write(to, name, copy)?.publish()?;
    }
    disk::sync_folder(to)?;
    Ok(present)
}

/// Whether two paths lead to the same file or folder. Returns an error if nothing exists at one of the paths.
pub(crate) fn is_same(a: &Path, b: &Path) -> Result<bool, FolderError> {
    let real = |path: &Path| fs::canonicalize(path).map_err(FolderError::read(path));
    Ok(real(a)? == real(b)?)
}

/// Returns the names of the companions (files beside the weights, such as `tokenizer.json`) in a model folder. A broken
/// link counts too.
pub(crate) fn present(folder: &Path) -> Vec<&'static str> {
    COMPANIONS.into_iter().filter(|name| disk::has(folder, name)).collect()
}

/// Opens a companion of a model folder: a file beside the weights, such as `tokenizer.json`. It must be a regular file
/// or a link to one.
pub(crate) fn open(folder: &Path, name: &str) -> Result<fs::File, FolderError> {
    disk::open(&folder.join(name), "a link in the folder leads to it")
}

/// Writes the `config.json` of a model folder, and replaces an old one. Creates the folder if necessary.
///
/// # Errors
/// - [`FolderError::Refused`] if `config` is not an object.
/// - [`FolderError::Write`] if the operating system refuses to write.
pub fn write_config(folder: impl AsRef<Path>, config: &Value) -> Result<(), FolderError> {
    let folder = folder.as_ref();
    if !config.is_object() {
        return Err(FolderError::refused(&folder.join(CONFIG), Refusal::NotAnObject));
    }
    fs::create_dir_all(folder).map_err(FolderError::write("create the folder", folder))?;
    disk::write_json(folder, CONFIG, config)?.publish()?;
    disk::sync_folder(folder)
}
