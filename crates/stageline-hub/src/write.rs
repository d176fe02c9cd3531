//! Writes the weights files of a model, one tensor at a time.

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

/// The size in bytes of the buffer that collects the data of a weights file before it is written to disk.
const BUFFER: usize = 1 << 20;

/// The boxed error type of [`Layout::write`]'s callback, which returns a tensor's values or such an error.
type AnyError = Box<dyn Error + Send + Sync>;

impl Layout {
    /// Writes the weights files of the layout into `folder`, and the index of its tensors if the layout has one.
    /// Creates the folder if necessary.
    ///
    /// `values` is called once with the name of each tensor, in the order of [`Layout::tensors`]. Only one tensor is in
    /// memory at a time. `values` returns the tensor's values: [`Values`], or a `Vec<f32>`, which is converted to the
    /// tensor's dtype.
    ///
    /// The files have temporary names until all of them are complete and synced to disk. Then an old index is removed,
    /// the new files replace the old files with the same names, and the new index is written last. If the process is
    /// killed or the power fails in between, the folder has no index, so no program mistakes a mix of old and new files
    /// for one model. If `values` returns an error, all files in the folder stay as they were.
    ///
    /// For an adapter, an old `adapter_config.json` is removed too, before the adapter's weights are replaced.
    ///
    /// # Errors
    /// - [`FolderError::Refused`] if `folder` is the one that the layout was read from, or contains weights that some
    ///   programs would load instead of the new ones. The error is also returned if the values do not fit the shape or
    ///   the dtype of their tensor.
    /// - [`FolderError::Values`] if `values` returns an error, which becomes the source of the [`FolderError`].
    /// - [`FolderError::Read`] if the operating system cannot list or resolve the folder.
    /// - [`FolderError::Write`] if the operating system cannot write.
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
            disk::sync_folder(folder)?; // a power loss must not bring the old index back beside the new files
        }
        // An old adapter configuration must not be combined with the new adapter's weights.
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

    /// Checks that a model with this layout may be written to `folder`. Returns an error if the layout was read from
    /// this folder. Also returns an error if the folder has other weights files, an index or an adapter that some
    /// programs would load instead of the new weights, or in addition to them.
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

/// Returns the sorted names of all `.safetensors` entries of `folder` except hidden ones, such as shards of an earlier
/// export, because some programs load all of them even without an index.
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

/// Writes a weights file under a temporary name in `folder`, with the values that the function `values` returns for
/// each tensor.
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

/// Removes the file at `path`. Returns true if a file was removed, and false if nothing was there.
fn remove(path: &Path) -> Result<bool, FolderError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true).map_err(FolderError::write("remove", path)),
    }
}
