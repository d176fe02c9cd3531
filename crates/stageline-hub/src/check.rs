//! Checks, before a training run or another long computation, that its results can be written: [`check_export`] and
//! [`check_file`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{self, NewFile, or_here};
use crate::error::FolderError;
use crate::folder::ModelFolder;
use crate::layout::Layout;
use crate::names::{ADAPTER, CONFIG, INDEX};
use crate::other_files::{self, is_same};
use crate::refusal::Refusal;

/// Checks, before training starts, that the trained model can be exported from the model folder `from` to the folder
/// `to`. The export writes weights with the given `layout` ([`Layout::write`]), and copies the other files of `from`,
/// such as the tokenizer ([`copy_companions`](crate::copy_companions)).
///
/// The check creates a file in `to`, and `to` itself if necessary, and removes again what it created. Nothing else is
/// changed.
///
/// # Errors
/// - [`FolderError::Refused`] if `to` is the folder that the model is read from, or is not a folder. This error is also
///   returned if `to` contains weights that some programs would load instead of the new ones, or a subfolder with the
///   name of a file to write. It is also returned if `to` contains a companion (a file beside the weights, such as
///   `tokenizer.json`) that `from` lacks.
/// - [`FolderError::MissingFile`], [`FolderError::NotAFile`] or [`FolderError::Read`] if a companion cannot be read.
/// - [`FolderError::Malformed`] if the name of a chat template is not Unicode.
/// - [`FolderError::Write`] if the operating system cannot create the folder or a file in it.
pub fn check_export(layout: &Layout, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), FolderError> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let companions = other_files::present(from)?;
    companions.iter().try_for_each(|name| other_files::open(from, name).map(drop))?;
    let _trial = Trial::create(to)?;
    if is_same(from, to)? {
        return Err(FolderError::refused(to, Refusal::Source));
    }
    other_files::check_target(&companions, to)?;
    check(layout, &companions, to)
}

/// Checks, before training starts, that weights with the given `layout` can be written to the folder `to`
/// ([`Layout::write`]), without files beside them. Creates and removes files as [`check_export`] does.
///
/// # Errors
/// Returns [`FolderError::Refused`] and [`FolderError::Write`] in the same cases as [`check_export`].
pub fn check_weights(layout: &Layout, to: impl AsRef<Path>) -> Result<(), FolderError> {
    let _trial = Trial::create(to.as_ref())?;
    check(layout, &[], to.as_ref())
}

/// Checks that weights files with the given `layout` and the files `companions` can be written to the existing folder
/// `to`. Creates a file in the folder and removes it again.
///
/// # Errors
/// Returns an error in each of these cases:
/// - The folder is the one that the layout was read from.
/// - The folder has weights that some programs would load instead of the new ones.
/// - The folder has a subfolder with the name of a file to write.
/// - The operating system cannot create a file.
fn check(layout: &Layout, companions: &[String], to: &Path) -> Result<(), FolderError> {
    layout.check_target(to)?;
    let weights = layout.files().iter().map(|file| file.name.as_str());
    let mut written = weights.chain(companions.iter().map(String::as_str)).chain([CONFIG, INDEX, ADAPTER]);
    let is_folder = |name: &str| fs::symlink_metadata(to.join(name)).is_ok_and(|metadata| metadata.is_dir());
    if let Some(file) = written.find(|name| is_folder(name)) {
        return Err(FolderError::refused(to, Refusal::FolderInTheWay { file: file.to_owned() }));
    }
    NewFile::write(to, CONFIG, |_| Ok(())).map(drop)
}

/// Checks, before a long computation, that its result can be written to the file at `path`. The file may be new, or an
/// existing regular file to overwrite. `model` is the open model folder that the computation reads, if any. The files
/// of this folder must not be overwritten.
///
/// A new file is created and removed again. The contents of an existing file do not change, but a temporary file is
/// created beside it and removed again.
///
/// # Errors
/// - [`FolderError::Refused`] if the folder of the file does not exist, or something other than a regular file is at
///   the path. This error is also returned if the file is one of the model's files.
/// - [`FolderError::DanglingLink`] if the path is a symbolic link to something that does not exist.
/// - [`FolderError::Write`] if the operating system cannot write the file.
/// - [`FolderError::Read`] or [`FolderError::Malformed`] if the chat templates of the model cannot be listed.
pub fn check_file(path: impl AsRef<Path>, model: Option<&ModelFolder>) -> Result<(), FolderError> {
    let path = path.as_ref();
    let refused = |reason| Err(FolderError::refused(path, reason));
    let Some(folder) = path.parent().map(or_here) else { return refused(Refusal::NotAFile) };
    if !folder.is_dir() {
        return refused(Refusal::NoFolder);
    }
    let is_read = match model {
        Some(model) => is_of(model, path)?,
        None => false,
    };
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => refused(Refusal::NotAFile),
        Ok(_) if is_read => refused(Refusal::SourceFile),
        Ok(_) => {
            drop(OpenOptions::new().write(true).open(path).map_err(FolderError::write("write", path))?);
            NewFile::create(&disk::replaced(path)?).map(drop)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
            Err(FolderError::DanglingLink { path: path.to_path_buf() })
        }
        Err(_) => {
            drop(File::create_new(path).map_err(FolderError::write("create", path))?);
            fs::remove_file(path).map_err(FolderError::write("remove", path))
        }
    }
}

/// Whether the file at `path` is one of the files in the folder of the open `model`: a weights file, the index, or a
/// companion (a file beside the weights, such as `tokenizer.json`).
fn is_of(model: &ModelFolder, path: &Path) -> Result<bool, FolderError> {
    let companions = other_files::present(model.path())?;
    let weights = model.files().iter().map(|file| file.name.as_str());
    let mut names = weights.chain(companions.iter().map(String::as_str)).chain([INDEX]);
    Ok(names.any(|name| is_same(&model.path().join(name), path).unwrap_or(false)))
}

/// The target folder of an export, which a check creates as a trial. It is removed again on drop. `created` lists the
/// folders that did not exist before: the folder and its missing parents.
struct Trial {
    created: Vec<PathBuf>,
}

impl Trial {
    /// Creates the folder at `path` and its missing parents, which are removed again when this value is dropped.
    fn create(path: &Path) -> Result<Self, FolderError> {
        let missing = |path: &&Path| fs::symlink_metadata(or_here(path)).is_err();
        let created: Vec<PathBuf> = path.ancestors().take_while(missing).map(Path::to_path_buf).collect();
        let existing = path.ancestors().nth(created.len()).map(or_here);
        if let Some(existing) = existing.filter(|existing| !existing.is_dir()) {
            return Err(FolderError::refused(existing, Refusal::NotAFolder));
        }
        let trial = Self { created };
        fs::create_dir_all(path).map_err(FolderError::write("create the folder", path))?;
        Ok(trial)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // The error is ignored: a folder that another program has put something into cannot be removed and stays.
        self.created.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}
