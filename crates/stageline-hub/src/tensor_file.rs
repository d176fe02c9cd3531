//! Writes a single tensor to a file in parts, so that the whole tensor is never in memory ([`TensorFile`]).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::disk::{self, NewFile};
use crate::error::FolderError;
use crate::header;
use crate::layout::{Layout, TensorLayout};
use crate::values::Target;

/// The size in bytes of the buffer that collects a tensor's values before they are written to the file.
const BUFFER: usize = 1 << 20;

/// A new safetensors file with one F32 tensor, whose values are written in consecutive parts. The whole tensor is never
/// in memory.
///
/// The file has a temporary name in its folder until [`TensorFile::finish`], which replaces an existing file. If
/// `finish` is not called, the new file is removed, and an existing file stays as it is.
pub struct TensorFile {
    path: PathBuf,
    tensor: TensorLayout,
    out: BufWriter<File>,
    /// Deletes the temporary output file on drop, unless it was renamed to its final path. Declared after `out`, so
    /// that the file is closed first.
    new: NewFile,
    /// The number of values that have been written to the tensor so far.
    written: usize,
}

impl TensorFile {
    /// Creates a safetensors file that [`finish`](Self::finish) moves to `path`. If `path` is a symbolic link to an
    /// existing file, the new file replaces that file. Writes the header for one tensor with the given `name` and
    /// `shape` (the length of each dimension).
    ///
    /// # Errors
    /// - [`FolderError::Refused`] if the name is `__metadata__`, which the safetensors format reserves, or if the
    ///   tensor's size in bytes overflows. The error is also returned if something other than a regular file is at the
    ///   path.
    /// - [`FolderError::DanglingLink`] if the path is a symbolic link to something that does not exist.
    /// - [`FolderError::Read`] if the operating system cannot resolve the path.
    /// - [`FolderError::Write`] if the operating system cannot write the file.
    pub fn create(path: impl AsRef<Path>, name: &str, shape: &[usize]) -> Result<Self, FolderError> {
        let path = path.as_ref();
        let tensor = TensorLayout { name: name.to_owned(), dtype: Dtype::F32, shape: shape.to_vec() };
        let layout = Layout::single([tensor.clone()])?;
        let header = header::bytes(&layout.files()[0], path)?;
        let (new, file) = NewFile::create(&disk::replaced(path)?)?;
        let out = BufWriter::with_capacity(BUFFER, file);
        let mut file = Self { path: path.to_path_buf(), tensor, out, new, written: 0 };
        file.put(&header)?;
        Ok(file)
    }

    /// Writes the next values of the file's tensor, in row-major order. A call may write any number of values.
    ///
    /// # Errors
    /// Returns [`FolderError::Write`] if the operating system cannot write.
    pub fn push(&mut self, values: impl IntoIterator<Item = f32>) -> Result<(), FolderError> {
        for value in values {
            self.put(&value.to_le_bytes())?;
            self.written += 1;
        }
        Ok(())
    }

    /// Completes the safetensors file, syncs it to disk and renames it to its final path.
    ///
    /// # Errors
    /// - [`FolderError::Refused`] if fewer or more values were written than the tensor has.
    /// - [`FolderError::Write`] if the operating system cannot write.
    pub fn finish(mut self) -> Result<(), FolderError> {
        let target = Target { tensor: &self.tensor, path: &self.path };
        target.check("values", Some(self.tensor.shape.iter().product()), self.written)?;
        let written = self.out.flush().and_then(|()| self.out.get_ref().sync_all());
        written.map_err(FolderError::write("write", &self.path))?;
        self.new.publish()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), FolderError> {
        self.out.write_all(bytes).map_err(FolderError::write("write", &self.path))
    }
}
