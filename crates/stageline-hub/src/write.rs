//! Writes the weights of a model, tensor by tensor.

use std::error::Error;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::disk::{self, NewFile};
use crate::error::FolderError;
use crate::header;
use crate::index::Index;
use crate::layout::{FileLayout, Layout};
use crate::names::{ADAPTER, INDEX, SINGLE, WEIGHTS_ENDING};
use crate::refusal::Refusal;
use crate::values::{Target, Values};

/// The number of bytes that are collected in memory before they are written to a file.
const BUFFER: usize = 1 << 20;

/// An error of any type, which the caller's function may return instead of the values of a tensor to write.
type AnyError = Box<dyn Error + Send + Sync>;

impl Layout {
    /// Writes the weights files of the layout into `folder`, and the index of its tensors if the layout has one.
    /// Creates the folder if necessary.
    ///
    /// `values` is called once with the name of each tensor, in the order of [`Layout::tensors`]. Only one tensor is in
    /// memory at a time. `values` returns the tensor's values: a `Vec<f32>`, which is converted to the type of the
    /// tensor, or [`Values`].
    ///
    /// The files have temporary names until all of them are complete and synced. Then an old index is removed, the new
    /// files replace the old files with the same names, and the new index is written last. If the process is killed or
    /// the power fails in between, the folder has no index. So no program takes old and new files for one model. After
    /// an error in `values`, all files in the folder are as before.
    ///
    /// # Errors
    /// - [`FolderError::Refused`] if `folder` is the one that the layout was read from, or contains weights that some
    ///   programs would load instead of the new ones. The error is also returned if the values do not fit the shape or
    ///   the type of their tensor.
    /// - [`FolderError::Values`] if `values` returns an error, which is then the source.
    /// - [`FolderError::Write`] if the operating system refuses to write.
    pub fn write<'a, V, E>(
        &self,
        folder: impl AsRef<Path>,
        mut values: impl FnMut(&str) -> Result<V, E>,
    ) -> Result<(), FolderError>
    where
        V: Into<Values<'a>>,
        E: Into<AnyError>,
    {
        let folder = folder.as_ref();
        disk::create_folder(folder)?;
        self.check_target(folder)?;
        let mut values = |name: &str| values(name).map(Into::into).map_err(Into::into);
        let files: Result<Vec<NewFile>, _> =
            self.files.iter().map(|file| write_file(file, folder, &mut values)).collect();
        let files = files?;
        let index = self.write_index(folder)?;
        if remove(&folder.join(INDEX))? {
            disk::sync_folder(folder)?; // a power loss must not bring it back beside the new files
        }
        // The weights of an adapter mean nothing with the configuration of another one.
        if self.is_adapter() && remove(&folder.join(ADAPTER))? {
            disk::sync_folder(folder)?;
        }
        for file in files {
            file.publish()?;
        }
        disk::sync_folder(folder)?;
        if let Some(index) = index {
            index.publish()?;
            disk::sync_folder(folder)?;
        }
        Ok(())
    }

    /// Checks that the model with this layout may be written to `folder`. Returns an error if the layout was read from
    /// this folder. Returns an error also if the folder has other weights files, an index or an adapter. Some programs
    /// would load these instead of the new weights, or in addition to them.
    pub(crate) fn check_target(&self, folder: &Path) -> Result<(), FolderError> {
        let canonical = fs::canonicalize(folder).map_err(FolderError::read(folder))?;
        if self.source.as_ref() == Some(&canonical) {
            return Err(FolderError::refused(folder, Refusal::Source));
        }
        // This crate and the Transformers library prefer `model.safetensors` to an index; other readers may not.
        let replaced = |name: &str| self.files.iter().any(|file| file.name == name);
        let other_weights = if self.index.is_some() { SINGLE } else { INDEX };
        let adapter = (!self.is_adapter()).then_some(ADAPTER);
        let named = [Some(other_weights), adapter].into_iter().flatten();
        let named = named.filter(|name| disk::has(folder, name)).map(str::to_owned);
        let mut others = named.chain(weights_files(folder)?);
        match others.find(|name| !replaced(name)) {
            Some(file) => Err(FolderError::refused(folder, Refusal::OtherWeights { file })),
            None => Ok(()),
        }
    }

    /// Writes the index of the weights files to a temporary file in `folder`; returns `None` if the layout has no
    /// index.
    fn write_index(&self, folder: &Path) -> Result<Option<NewFile>, FolderError> {
        let Some(metadata) = &self.index else { return Ok(None) };
        let mut metadata = metadata.clone();
        metadata.entry("total_size").or_insert_with(|| self.total_bytes().into());
        let place = |file: &FileLayout| {
            let file_name = file.name.clone();
            file.tensors.iter().map(|tensor| (tensor.name.clone(), file_name.clone())).collect::<Vec<_>>()
        };
        let index = Index { metadata, weight_map: self.files.iter().flat_map(place).collect() };
        disk::write_json(folder, INDEX, &index).map(Some)
    }
}

/// Returns the sorted names of the entries of `folder` that end with `.safetensors`, such as a shard of an earlier
/// export, except for hidden ones. Some programs read all such files, even without an index.
fn weights_files(folder: &Path) -> Result<Vec<String>, FolderError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(FolderError::read(folder))? {
        let name = entry.map_err(FolderError::read(folder))?.file_name().to_string_lossy().into_owned();
        if name.ends_with(WEIGHTS_ENDING) && !name.starts_with('.') {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// Writes a weights file to a temporary file in `folder`, with the values that the function `values` returns for each
/// tensor.
fn write_file<'a>(
    file: &FileLayout,
    folder: &Path,
    values: &mut impl FnMut(&str) -> Result<Values<'a>, AnyError>,
) -> Result<NewFile, FolderError> {
    let path = &folder.join(&file.name);
    let header = header::bytes(file, path)?;
    NewFile::write(folder, &file.name, |out| {
        let mut out = BufWriter::with_capacity(BUFFER, out);
        out.write_all(&header).map_err(FolderError::write("write", path))?;
        for tensor in &file.tensors {
            let values = values(&tensor.name).map_err(|source| FolderError::Values {
                path: path.clone(),
                tensor: tensor.name.clone(),
                source,
            })?;
            Target { tensor, path }.write(&values, &mut out)?;
        }
        out.flush().map_err(FolderError::write("write", path))
    })
}

/// Removes the file at `path`. Returns true if the file was removed, and false if nothing was at the path.
fn remove(path: &Path) -> Result<bool, FolderError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true).map_err(FolderError::write("remove", path)),
    }
}
