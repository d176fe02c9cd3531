//! The errors of opening and exporting a model ([`ModelError`]).

use std::path::PathBuf;

use stageline::{ModuleError, StepError};
use stageline_hub::FolderError;

/// The reason why a model cannot be opened or exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The folder or one of its files cannot be read or written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The configuration cannot be read as that of its model family.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The path of the configuration.
        path: PathBuf,
        /// The reason, with the field that is missing or wrong.
        reason: String,
    },
    /// The configuration is of an architecture that this crate does not know.
    #[error("{}: the model type `{found}` is not known; known are {}", path.display(), known.join(", "))]
    UnknownArchitecture {
        /// The path of the configuration.
        path: PathBuf,
        /// The model type of the configuration.
        found: String,
        /// The model types that are known.
        known: &'static [&'static str],
    },
    /// The folder has tensors that the configuration does not describe.
    #[error(
        "{}: the configuration does not describe the tensor `{name}` (and {more} more); are config.json and the weights of \
         one model?",
        path.display()
    )]
    UnexpectedTensor {
        /// The path of the file with the tensor.
        path: PathBuf,
        /// The name of the first tensor that is not described.
        name: String,
        /// The number of further tensors that are not described.
        more: usize,
    },
    /// A tensor has a type that cannot be a parameter.
    #[error("{}: the tensor `{name}` has the type {dtype}; parameters are read from F32, F16 and BF16", path.display())]
    Type {
        /// The path of the file with the tensor.
        path: PathBuf,
        /// The name of the tensor.
        name: String,
        /// The type of the tensor's elements.
        dtype: String,
    },
    /// The modules of a pipeline cannot be taken.
    #[error(transparent)]
    Modules(#[from] ModuleError),
    /// The pipeline has ended.
    #[error(transparent)]
    Step(#[from] StepError),
}
