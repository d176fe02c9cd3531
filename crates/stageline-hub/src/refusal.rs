//! The reasons why this crate does not write a file or folder of a model: [`Refusal`].

use std::fmt;

use safetensors::Dtype;
use stageline_checkpoint::Printable;

use crate::shown::shape;

/// The reason why this crate does not write a file or folder of a model, although the operating system would permit it.
///
/// `Display` and `Debug` give the same text. Control characters in it are escaped, as in the text of a
/// [`FolderError`](crate::FolderError).
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The model would be written into the folder that it is read from, whose files may still be mapped into memory.
    /// Give another folder.
    #[error("the model is read from this folder; give another folder")]
    Source,
    /// The file to write is one of the files that the model is read from. Give another file.
    #[error("the model is read from this file; give another file")]
    SourceFile,
    /// The target folder already contains a weights file, an index or an adapter that the new model does not replace.
    /// Some programs would load it instead of the new weights, or in addition to them.
    #[error(
        "the folder has `{}`, with which some readers would not get the new weights; remove it, or give another folder",
        Printable::new(file)
    )]
    OtherWeights {
        /// The name of a weights file, index or adapter that the target folder already contains. Some programs would
        /// load it instead of the new weights, or in addition to them.
        file: String,
    },
    /// The target folder already contains a companion (a file beside the weights, such as `generation_config.json`)
    /// that the new model lacks. Programs would use it with the new weights.
    #[error(
        "the folder has `{}`, which the new model lacks, and programs would use it with the new weights; remove it, give \
         another folder, or copy it to the model's folder if it belongs to the model",
        Printable::new(file)
    )]
    OtherCompanion {
        /// The name of the companion, such as `generation_config.json`, that the target folder already contains and the
        /// new model lacks.
        file: String,
    },
    /// The path of the folder to write the model to, or the path of one of its parents, is not a folder but something
    /// else, such as a file.
    #[error("a file is there, and a folder is needed; give another path, or move the file")]
    NotAFolder,
    /// The target folder of the model contains a subfolder with the name of a file to write. A file cannot replace a
    /// folder.
    #[error(
        "the folder has a folder `{}`, which a file cannot replace; remove it, or give another folder",
        Printable::new(file)
    )]
    FolderInTheWay {
        /// The name of the file to write, which is already the name of a subfolder of the target folder.
        file: String,
    },
    /// Something other than a regular file (a folder, a device, a pipe or a socket) is at the path of the file to
    /// write, or the path has no file name.
    #[error("it is not a regular file; give the path of a file")]
    NotAFile,
    /// The folder that is to contain the file to write does not exist.
    #[error("its folder does not exist; create the folder, or give another path")]
    NoFolder,
    /// Two tensors of the model to write have the same name.
    #[error("two tensors have the name `{}`; rename one of them", Printable::new(tensor))]
    Twice {
        /// The name that two tensors of the model to write share.
        tensor: String,
    },
    /// A tensor of the model to write has the name `__metadata__`, which the safetensors format reserves.
    #[error("no tensor can be named `{}`: the format reserves this name; rename the tensor", Printable::new(tensor))]
    Reserved {
        /// The reserved name of the tensor to write, `__metadata__`.
        tensor: String,
    },
    /// The size of a tensor to write, or of all tensors of a weights file, overflows or is not a whole number of bytes.
    #[error(
        "the tensor `{}` of type {dtype} and shape {} has a size that overflows or is not a whole number of bytes; \
         correct the shape",
        Printable::new(tensor),
        shape(lengths)
    )]
    Size {
        /// The name of the first tensor with an invalid size. Its own size, or the total with the tensors before it in
        /// its file, overflows or is not a whole number of bytes.
        tensor: String,
        /// The dtype of the tensor whose size is invalid.
        dtype: Dtype,
        /// The shape (the length of each dimension) of the tensor whose size is invalid.
        lengths: Vec<usize>,
    },
    /// The header of the weights file to write would exceed the length limit of the safetensors format. Divide the
    /// tensors among several files.
    #[error("its header would have {bytes} bytes, but the limit is {most}; divide the tensors among several files")]
    Header {
        /// The length in bytes that the header of the weights file would have, which is too large.
        bytes: usize,
        /// The maximum length in bytes of a header in the safetensors format.
        most: u64,
    },
    /// A tensor to write got too few or too many values, from the function passed to
    /// [`Layout::write`](crate::Layout::write) or through [`TensorFile::push`](crate::TensorFile::push).
    #[error(
        "the tensor `{}` of shape {} takes {expected} {unit}, but got {found}; return one value for each element",
        Printable::new(tensor),
        shape(lengths)
    )]
    Length {
        /// The name of the tensor to write that got too few or too many values.
        tensor: String,
        /// The shape (the length of each dimension) of the tensor to write that got too few or too many values.
        lengths: Vec<usize>,
        /// Unit of `expected` and `found`: "values" if the caller gave f32 values, or "bytes" if it gave bytes in the
        /// tensor's dtype.
        unit: &'static str,
        /// The number of f32 values or bytes that the tensor needs, according to its shape and dtype. It is
        /// `usize::MAX` if the number overflows or is not whole.
        expected: usize,
        /// The number of f32 values or bytes that the tensor got, which differs from the `expected` number.
        found: usize,
    },
    /// The function passed to [`Layout::write`](crate::Layout::write) returned f32 values for a tensor whose dtype is
    /// not F32, F16 or BF16. Return the tensor's bytes instead, because f32 values are converted only to these dtypes.
    #[error(
        "the tensor `{}` has the type {dtype}, to which f32 values are not converted (only to F32, F16 and BF16); \
         return its bytes instead",
        Printable::new(tensor)
    )]
    Dtype {
        /// The name of the tensor to write that got f32 values instead of bytes.
        tensor: String,
        /// The dtype of the tensor to write. It is not F32, F16 or BF16, so f32 values cannot be converted to it.
        dtype: Dtype,
    },
    /// A finite f32 value of a tensor to write would overflow: it would become infinite in the tensor's dtype. Write
    /// the tensor with a dtype of larger range.
    #[error(
        "the value {value:e} of the tensor `{}`, at index {index}, would be infinite in {dtype}; write the tensor in a \
         type with a larger range",
        Printable::new(tensor)
    )]
    Overflow {
        /// The name of the tensor to write that has a value too large for its dtype.
        tensor: String,
        /// The dtype of the tensor to write, which cannot represent the value.
        dtype: Dtype,
        /// The zero-based index, in row-major order, of the value that would become infinite in the dtype of the tensor
        /// to write.
        index: usize,
        /// The f32 value that would become infinite in the dtype of the tensor to write.
        value: f32,
    },
    /// The model's configuration, which was to be written to `config.json`, is not a JSON object.
    #[error("the configuration is not a JSON object; pass an object")]
    NotAnObject,
    /// The contents of a file to write cannot be converted to JSON. The file is an index, a weights file (whose header
    /// is JSON) or a configuration.
    #[error("it has no JSON form: {}", Printable::new(reason))]
    Json {
        /// The JSON library's error message, which says why the contents of the file cannot be converted to JSON.
        reason: String,
    },
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
