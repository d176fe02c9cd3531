//! The errors of reading and writing model folders: [`FolderError`].

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use safetensors::Dtype;
use stageline_checkpoint::Printable;

use crate::refusal::Refusal;
use crate::shown::{hint, path as shown, shape};

/// The largest number of bytes of a parser's message in an error message. A parser's message may quote the file.
const MOST_REASON: usize = 400;

/// Why a model folder cannot be read or written: the error of all functions of this crate.
///
/// `Display` is safe to print, whatever the folder contains: names and paths are shown as [`Printable`], and the
/// message has at most [`MOST_BYTES`](Self::MOST_BYTES). `Debug` adds the causes to the message, under the same rules.
/// The fields contain names and paths unchanged.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// Nothing exists at the path of the model folder.
    #[error(
        "{} does not exist; give the path of a folder with a model, such as one that `hf download NAME --local-dir DIR` makes",
        shown(path)
    )]
    PathNotFound {
        /// The path that the caller gave for the model folder. Nothing exists there.
        path: PathBuf,
    },
    /// Something other than a folder is at the path of the model folder.
    #[error("{} is not a folder; give the path of a folder with a model", shown(path))]
    NotAFolder {
        /// The path that the caller gave for the model folder. Something other than a folder is there.
        path: PathBuf,
    },
    /// The model folder contains no weights: neither `model.safetensors` nor an index of several weights files.
    #[error(
        "{} has neither model.safetensors.index.json nor model.safetensors; download the weights of the model into it",
        shown(path)
    )]
    NoWeights {
        /// The path of the model folder that was searched for weights.
        path: PathBuf,
    },
    /// The model folder contains only weights that PyTorch has pickled, which are not read because a pickle can run
    /// code.
    #[error(
        "{} has pickled weights, which are not read because a pickle can run code; convert them: load the model with \
         transformers, and call save_pretrained(FOLDER, safe_serialization=True)",
        shown(path)
    )]
    Pickled {
        /// The path of the file with pickled weights, such as `pytorch_model.bin`, in the model folder.
        path: PathBuf,
    },
    /// The model folder contains an adapter, such as LoRA, which the Transformers library would add to the weights.
    #[error(
        "{} belongs to an adapter, which is not added to the weights beside it; open it as an adapter of the model, from \
         a folder of its own, or merge it into the model (peft's merge_and_unload) and save that",
        shown(path)
    )]
    Adapter {
        /// The path of the adapter's configuration, `adapter_config.json`, in the model folder.
        path: PathBuf,
    },
    /// A file that the model folder must contain does not exist.
    #[error("{} is missing, but {reason}; download the whole model again", shown(path))]
    MissingFile {
        /// The path of the missing file in the model folder.
        path: PathBuf,
        /// Why the model folder must contain the missing file, such as "it describes the model".
        reason: &'static str,
    },
    /// The path of a file to read leads to something else: a folder, a device, a pipe or a socket.
    #[error("{} is not a file; replace it by a file, or remove it", shown(path))]
    NotAFile {
        /// The path where there is a folder, device, pipe or socket instead of a file.
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
        /// The path of the symbolic link that leads to nothing.
        path: PathBuf,
    },
    /// The operating system refuses to read a file or a folder of a model.
    #[error("cannot read {}; make it readable", shown(path))]
    Read {
        /// The path of the file or folder of a model that cannot be read.
        path: PathBuf,
        /// The error of the operating system when a file or folder of a model was read.
        source: io::Error,
    },
    /// A file is too long: a JSON file of the model folder, or a file that the caller reads with a limit.
    #[error("{} has {found} bytes, but such a file has at most {most}; download it again", shown(path))]
    TooLong {
        /// The path of the file that is too long to be read.
        path: PathBuf,
        /// The length in bytes of the file that is too long to be read.
        found: u64,
        /// The largest length in bytes that the file may have: this crate's limit for JSON files, or the limit that the
        /// caller of [`read_file`](crate::read_file) gave.
        most: u64,
    },
    /// A file of the model folder is not valid JSON or not valid safetensors, for example because it was cut short.
    #[error("{} is malformed: {}; download it again", shown(path), Printable::new(reason).at_most(MOST_REASON))]
    Malformed {
        /// The path of the file of a model folder that is not valid JSON or not valid safetensors.
        path: PathBuf,
        /// The error message of the parser, or another description of the fault in the file of the model folder. It may
        /// quote the file.
        reason: String,
    },
    /// The index of a model folder contains an invalid name of a weights file. The name might lead out of the folder,
    /// or does not end with `.safetensors`.
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
        /// The name of the tensor that the index of the model folder assigns to a file with an invalid name.
        tensor: String,
        /// The invalid name of a weights file in the model folder's index.
        file: String,
    },
    /// The index of a model folder lists a tensor for a weights file that does not contain the tensor.
    #[error(
        "{} lacks the tensor `{}`, which model.safetensors.index.json lists for it; download both files again",
        shown(path),
        Printable::new(tensor)
    )]
    NotInFile {
        /// The path of the weights file that lacks a tensor of the index.
        path: PathBuf,
        /// The name of the tensor that the index lists for the weights file, but that the file lacks.
        tensor: String,
    },
    /// A tensor name occurs in two weights files of the model folder.
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
    /// No weights file of the folder contains the tensor that the caller asked for. The message names the file that
    /// lists the tensors of the model.
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
    /// The shape of a tensor in a weights file differs from the shape that the caller expects.
    #[error(
        "{} has the tensor `{}` with the shape {}, but the model expects {}; check that config.json belongs to these \
         weights",
        shown(path),
        Printable::new(tensor),
        shape(found),
        shape(expected)
    )]
    Shape {
        /// The path of the weights file with the tensor whose shape differs from the expected one.
        path: PathBuf,
        /// The name of the tensor in a weights file whose shape differs from the expected one.
        tensor: String,
        /// The shape of the tensor in the weights file (the length of each dimension), which differs from the expected
        /// one.
        found: Vec<usize>,
        /// The shape that the caller expects for the tensor: the length of each dimension.
        expected: Vec<usize>,
    },
    /// The elements of a tensor cannot be returned as f32. Only the types F32, F16 and BF16 can be converted to f32.
    #[error(
        "the tensor `{}` of {} has the type {dtype}; only F32, F16 and BF16 are converted, so use the bytes as they are",
        Printable::new(tensor),
        shown(path)
    )]
    Dtype {
        /// The path of the weights file with a tensor that cannot be read as f32 because of its type.
        path: PathBuf,
        /// The name of the tensor that cannot be read as f32 because of its type.
        tensor: String,
        /// The type of the tensor's elements in the weights file. It is not F32, F16 or BF16, so it cannot be converted
        /// to f32.
        dtype: Dtype,
    },
    /// This crate refuses to write a model file or folder. For example, the model is read from this folder, or the
    /// values of a tensor do not fit its shape.
    #[error("{} is not written: {reason}", shown(path))]
    Refused {
        /// The path of the model file or model folder that was to be written.
        path: PathBuf,
        /// Why this crate refuses to write the model file or model folder.
        reason: Refusal,
    },
    /// The function that the caller passed to [`Layout::write`](crate::Layout::write) returned an error instead of the
    /// values of a tensor.
    #[error("{} is not written: no values for the tensor `{}`", shown(path), Printable::new(tensor))]
    Values {
        /// The path of the weights file that was to be written.
        path: PathBuf,
        /// The name of the tensor that got no values, because the function passed to
        /// [`Layout::write`](crate::Layout::write) returned an error.
        tensor: String,
        /// The error that the function passed to [`Layout::write`](crate::Layout::write) returned instead of the values
        /// of the tensor.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The operating system refuses to create, write, sync, rename or remove a file of a model.
    #[error("cannot {doing} {}; free space on its disk, or make the folder writable", shown(path))]
    Write {
        /// The failed operation on a file of a model, as a verb for the error message, such as "create".
        doing: &'static str,
        /// The path of the file or folder of a model that could not be created, written, synced, replaced or removed.
        path: PathBuf,
        /// The error of the operating system for the failed operation on a file or folder of a model.
        source: io::Error,
    },
}

impl FolderError {
    /// The largest length, in bytes, of the message of a [`FolderError`], as `Display` and as `Debug`.
    pub const MOST_BYTES: usize = 1_200;

    /// Returns a closure for `map_err` that converts an operating system's error to a [`FolderError::Read`] for `path`.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Read { path: path.to_path_buf(), source }
    }

    /// Returns a closure for `map_err` that converts an operating system's error to a [`FolderError::Write`] for
    /// `path`. `doing` is the operation that failed, as a verb.
    pub(crate) fn write(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { doing, path: path.to_path_buf(), source }
    }

    /// Makes a [`FolderError::Malformed`] for the file at `path`. `reason` says why the file is malformed. It may quote
    /// the file, so it is escaped and cut.
    pub(crate) fn malformed(path: &Path, reason: impl fmt::Display) -> Self {
        let reason = Printable::new(reason.to_string()).at_most(MOST_REASON).to_string();
        Self::Malformed { path: path.to_path_buf(), reason }
    }

    /// Makes a [`FolderError::Refused`] for the file or folder at `path`, which is not written because of `reason`.
    pub(crate) fn refused(path: &Path, reason: Refusal) -> Self {
        Self::Refused { path: path.to_path_buf(), reason }
    }
}

impl fmt::Debug for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Printable::with_causes(self).at_most(Self::MOST_BYTES))
    }
}
