//! The errors of reading and writing model folders: [`FolderError`].

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use safetensors::Dtype;
use stageline_checkpoint::Printable;

use crate::refusal::Refusal;
use crate::shown::{hint, path as shown, shape};

/// Length limit, in bytes, for a quoted parser message, such as a JSON error, in an error message about a model folder;
/// a longer one is truncated.
const MOST_REASON: usize = 400;

/// The error of all functions of this crate: why a model folder cannot be read or written.
///
/// `Display` is safe to print, whatever the folder contains: names and paths are shown as [`Printable`], and the
/// message has at most [`MOST_BYTES`](Self::MOST_BYTES). `Debug` adds the causes to the message, under the same rules.
/// The fields contain names and paths unchanged.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// Nothing exists at the path of the model folder. Give the path of a folder with a model or adapters, such as one that
    /// `hf download NAME --local-dir DIR` creates.
    #[error(
        "{} does not exist; give the path of a folder with a model or adapters, such as one that `hf download NAME \
         --local-dir DIR` makes",
        shown(path)
    )]
    PathNotFound {
        /// The path that the caller gave for the model folder. Nothing exists there.
        path: PathBuf,
    },
    /// Something other than a folder is at the path of the model folder. Give the path of a folder with a model.
    #[error("{} is not a folder; give the path of a folder with a model", shown(path))]
    NotAFolder {
        /// The path that the caller gave for the model folder. Something other than a folder is there.
        path: PathBuf,
    },
    /// The model folder contains no weights: neither `model.safetensors` nor an index of several weights files.
    /// Download the model's weights into the folder.
    #[error(
        "{} has neither model.safetensors.index.json nor model.safetensors; download the weights of the model into it",
        shown(path)
    )]
    NoWeights {
        /// The path of the model folder that was searched for weights.
        path: PathBuf,
    },
    /// The model folder contains only weights that PyTorch has pickled, which are not read because a pickle can run
    /// code. Convert them to safetensors with transformers' `save_pretrained(FOLDER, safe_serialization=True)`.
    #[error(
        "{} has pickled weights, which are not read because a pickle can run code; convert them: load the model with \
         transformers, and call save_pretrained(FOLDER, safe_serialization=True)",
        shown(path)
    )]
    Pickled {
        /// The path of the file with pickled weights, such as `pytorch_model.bin`, in the model folder.
        path: PathBuf,
    },
    /// The model folder contains an adapter, such as LoRA, which this crate does not apply to the weights. Open the
    /// adapter from a folder of its own with [`ModelFolder::open_adapter`](crate::ModelFolder::open_adapter), or merge
    /// it into the model.
    #[error(
        "{} belongs to an adapter, which is not added to the weights beside it; open it as an adapter of the model, from \
         a folder of its own, or merge it into the model (peft's merge_and_unload) and save that",
        shown(path)
    )]
    Adapter {
        /// The path of the adapter configuration, `adapter_config.json`, in the model folder.
        path: PathBuf,
    },
    /// A file that the model folder must contain does not exist. Download the whole folder again.
    #[error("{} is missing, but {reason}; download the whole folder again", shown(path))]
    MissingFile {
        /// The path of the missing file in the model folder.
        path: PathBuf,
        /// The reason why the model folder must contain the missing file, such as "it describes the model".
        reason: &'static str,
    },
    /// Something other than a file (a folder, a device, a pipe or a socket) is at the path of a file to read. Replace
    /// it by a file, or remove it.
    #[error("{} is not a file; replace it by a file, or remove it", shown(path))]
    NotAFile {
        /// Path of the folder, device, pipe or socket that is in a file's place.
        path: PathBuf,
    },
    /// A file that [`read_file`](crate::read_file) was to read does not exist.
    #[error("{} does not exist; give the path of a file", shown(path))]
    FileNotFound {
        /// The path of the file that was to be read. Nothing exists there.
        path: PathBuf,
    },
    /// The path of a file to read or to write is a symbolic link to something that does not exist.
    #[error("{} is a link to a file that does not exist; restore that file, or remove the link", shown(path))]
    DanglingLink {
        /// The path of the symbolic link whose target does not exist.
        path: PathBuf,
    },
    /// The operating system cannot read a file or folder of a model, for example for lack of permission. Make it
    /// readable.
    #[error("cannot read {}; make it readable", shown(path))]
    Read {
        /// The path of the file or folder of a model that cannot be read.
        path: PathBuf,
        /// The operating system's error from reading a file or folder of a model.
        source: io::Error,
    },
    /// A file exceeds its length limit: a JSON file of the model folder, or a file that the caller reads with a limit.
    #[error("{} has {found} bytes, but such a file has at most {most}; download it again", shown(path))]
    TooLong {
        /// The path of the file that is too long to be read.
        path: PathBuf,
        /// The length in bytes of the file that is too long to be read.
        found: u64,
        /// The maximum length in bytes of the file: this crate's limit for JSON files, or the limit that the caller of
        /// [`read_file`](crate::read_file) gave.
        most: u64,
    },
    /// A file of the model folder is not valid JSON or not valid safetensors, for example because it was truncated.
    /// Correct the file, or download it again.
    #[error("{} is malformed: {}; correct it, or download it again", shown(path), Printable::new(reason).at_most(MOST_REASON))]
    Malformed {
        /// The path of the file of a model folder that is not valid JSON or not valid safetensors.
        path: PathBuf,
        /// The parser's error message, or another description of what is wrong with the file. It may quote the file.
        reason: String,
    },
    /// The index of a model folder contains an invalid weights file name. The name might lead out of the folder, or
    /// does not end with `.safetensors`.
    #[error(
        "{} names the file `{}` for the tensor `{}`, which is not a plain name that ends with .safetensors; download \
         the index again",
        shown(path),
        Printable::new(file),
        Printable::new(tensor)
    )]
    FileName {
        /// The path of the index with the invalid file name: the model folder's `model.safetensors.index.json`.
        path: PathBuf,
        /// The name of the tensor that the index assigns to a weights file with an invalid name.
        tensor: String,
        /// The invalid weights file name in the model folder's index.
        file: String,
    },
    /// The model folder's index lists a tensor for a weights file that does not contain it. Download both files again.
    #[error(
        "{} lacks the tensor `{}`, which model.safetensors.index.json lists for it; download both files again",
        shown(path),
        Printable::new(tensor)
    )]
    NotInFile {
        /// The path of the weights file that lacks a tensor that the index lists for it.
        path: PathBuf,
        /// The name of the tensor that the index lists for the weights file, but that the file does not contain.
        tensor: String,
    },
    /// Two weights files of the model folder have a tensor with the same name. Download the model again.
    #[error(
        "{} has the tensor `{}` twice, in `{}` and in `{}`; download the model again",
        shown(path),
        Printable::new(tensor),
        Printable::new(first),
        Printable::new(second)
    )]
    Twice {
        /// The path of the model folder where two weights files contain a tensor with the same name.
        path: PathBuf,
        /// The name of the tensor that occurs in two weights files of the folder.
        tensor: String,
        /// The name of the first of the two weights files that contain the tensor.
        first: String,
        /// The name of the second of the two weights files that contain the tensor.
        second: String,
    },
    /// No weights file of the model folder contains the tensor that the caller asked for.
    #[error("{} has no tensor `{}`; {}", shown(path), Printable::new(tensor), hint(similar))]
    MissingTensor {
        /// The path of the file that was searched for the tensor: the folder's only weights file, or the folder's
        /// index.
        path: PathBuf,
        /// The name of the tensor that the caller asked for, and that no weights file of the folder contains.
        tensor: String,
        /// The tensor names in the folder that are most similar to the missing name: at most three, the most similar
        /// first.
        similar: Vec<String>,
    },
    /// The shape of a tensor in a weights file differs from the shape that the caller expects. Check that the
    /// configuration belongs to these weights; that of adapters is in `adapter_config.json`, and in the `config.json`
    /// of their model.
    #[error(
        "{} has the tensor `{}` with the shape {}, but the model expects {}; check that config.json (and \
         adapter_config.json, for adapters) belongs to these weights",
        shown(path),
        Printable::new(tensor),
        shape(found),
        shape(expected)
    )]
    Shape {
        /// The path of the weights file that contains the tensor with the unexpected shape.
        path: PathBuf,
        /// The name of the tensor whose shape in the weights file differs from the expected one.
        tensor: String,
        /// The tensor's shape (the length of each dimension) in the weights file, which differs from the expected one.
        found: Vec<usize>,
        /// The shape (the length of each dimension) that the caller expects for the tensor.
        expected: Vec<usize>,
    },
    /// A tensor cannot be read as f32, because its dtype is not F32, F16 or BF16. Use the tensor's bytes instead.
    #[error(
        "the tensor `{}` of {} has the type {dtype}; only F32, F16 and BF16 are converted, so use the bytes as they are",
        Printable::new(tensor),
        shown(path)
    )]
    Dtype {
        /// The path of the weights file with the tensor that cannot be read as f32 because of its dtype.
        path: PathBuf,
        /// The name of the tensor that cannot be read as f32 because of its dtype.
        tensor: String,
        /// The tensor's dtype in the weights file. It is not F32, F16 or BF16, so the tensor cannot be converted to
        /// f32.
        dtype: Dtype,
    },
    /// This crate does not write a model file or folder, although the operating system would permit it. For example,
    /// the model is read from this folder, or the values of a tensor do not fit its shape.
    #[error("{} is not written: {reason}", shown(path))]
    Refused {
        /// The path of the model file or model folder that was to be written.
        path: PathBuf,
        /// The reason why this crate does not write the model file or model folder.
        reason: Refusal,
    },
    /// The function that the caller passed to [`Layout::write`](crate::Layout::write) returned an error instead of a
    /// tensor's values.
    #[error("{} is not written: no values for the tensor `{}`", shown(path), Printable::new(tensor))]
    Values {
        /// The path of the weights file that was to be written.
        path: PathBuf,
        /// The name of the tensor that got no values, because the function passed to
        /// [`Layout::write`](crate::Layout::write) returned an error.
        tensor: String,
        /// The error that the function passed to [`Layout::write`](crate::Layout::write) returned instead of the
        /// tensor's values.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The operating system cannot create, write, sync, rename or remove a file of a model. Free disk space, or make
    /// the folder writable.
    #[error("cannot {doing} {}; free space on its disk, or make the folder writable", shown(path))]
    Write {
        /// The failed operation on a file of a model, as a verb for the error message, such as "create".
        doing: &'static str,
        /// The path of the file or folder of a model that could not be created, written, synced, replaced or removed.
        path: PathBuf,
        /// The operating system's error from the failed operation on a file or folder of a model.
        source: io::Error,
    },
}

impl FolderError {
    /// The maximum length, in bytes, of the message of a [`FolderError`], both as `Display` and as `Debug`.
    pub const MOST_BYTES: usize = 1_200;

    /// Returns a closure for `map_err` that converts an operating system's error to a [`FolderError::Read`] for `path`.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Read { path: path.to_path_buf(), source }
    }

    /// Returns a closure for `map_err` that converts an operating system's error to a [`FolderError::Write`] for
    /// `path`. `doing` is the failed operation as a verb, such as "sync".
    pub(crate) fn write(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { doing, path: path.to_path_buf(), source }
    }

    /// Creates a [`FolderError::Malformed`] for the file at `path`. `reason` says why the file is malformed. It may
    /// quote the file, so it is escaped and truncated.
    pub(crate) fn malformed(path: &Path, reason: impl fmt::Display) -> Self {
        let reason = Printable::new(reason.to_string()).at_most(MOST_REASON).to_string();
        Self::Malformed { path: path.to_path_buf(), reason }
    }

    /// Creates a [`FolderError::Refused`] for the file or folder at `path`, which is not written because of `reason`.
    pub(crate) fn refused(path: &Path, reason: Refusal) -> Self {
        Self::Refused { path: path.to_path_buf(), reason }
    }
}

impl fmt::Debug for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Printable::with_causes(self).at_most(Self::MOST_BYTES))
    }
}
