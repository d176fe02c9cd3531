//! The errors of opening and exporting a model ([`ModelError`]).

use std::path::PathBuf;

use stageline::{ModuleError, StepError};
use stageline_hub::FolderError;

/// The reason why a model cannot be opened or exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A model folder or one of its files cannot be read or written; the field is the cause.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The configuration (`config.json`) cannot be read, or its fields do not fit its model family.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The path of the configuration file that cannot be used.
        path: PathBuf,
        /// The reason why the configuration cannot be used, such as the field that is missing or wrong.
        reason: String,
    },
    /// The `model_type` of the configuration is an architecture that this crate does not know.
    #[error("{}: the model type `{found}` is not known; known are {}", path.display(), known.join(", "))]
    UnknownArchitecture {
        /// The path of the configuration file with the unknown `model_type`.
        path: PathBuf,
        /// The unknown `model_type` in the configuration.
        found: String,
        /// The values of `model_type` that this crate knows.
        known: &'static [&'static str],
    },
    /// The model folder has tensors that the configuration does not describe.
    #[error(
        "{}: the configuration does not describe the tensor `{name}` (and {more} more); are config.json and the weights of \
         one model?",
        path.display()
    )]
    UnexpectedTensor {
        /// The path of the weights file with the first tensor that the configuration does not describe.
        path: PathBuf,
        /// The name of the first tensor that the configuration does not describe.
        name: String,
        /// The number of further tensors, beside the first, that the configuration does not describe.
        more: usize,
    },
    /// The tensor of a parameter has an element type other than F32, F16 and BF16.
    #[error("{}: the tensor `{name}` has the type {dtype}; parameters are read from F32, F16 and BF16", path.display())]
    Type {
        /// The path of the weights file with the tensor of an unsupported type.
        path: PathBuf,
        /// The name in the weights file of the tensor of an unsupported type.
        name: String,
        /// The unsupported type of the tensor's elements, such as `I64`.
        dtype: String,
    },
    /// The model cannot be exported to the folder that it was opened from, because the files there are in use.
    #[error("{}: the model was opened from this folder; give another one", path.display())]
    OwnFolder {
        /// The path of the folder that the model was opened from.
        path: PathBuf,
    },
    /// The modules of a pipeline are not the layers of this model, because one is missing or has another type; the
    /// field is the cause.
    #[error(transparent)]
    Modules(#[from] ModuleError),
    /// A pipeline failed, for example in a step or a snapshot; the field is the cause.
    #[error(transparent)]
    Step(#[from] StepError),
}
