//! The errors from opening and exporting a model ([`ModelError`]).

use std::fmt;
use std::path::{Path, PathBuf};

use stageline::checkpoint::Printable;
use stageline::{ModuleError, StepError};
use stageline_hub::FolderError;

/// The maximum length, in bytes, of a file path or a parameter's path in an error message about a model. A longer path
/// is truncated.
const MOST_PATH: usize = 500;

/// Maximum length, in bytes, of the `reason` in a [`ModelError::Config`] message. A reason may quote the configuration
/// file, so longer ones are truncated.
const MOST_REASON: usize = 400;

/// The error if a model cannot be opened or exported, or cannot load weights from PyTorch.
///
/// Messages about a model folder or a configuration are safe to print, as `Display` and as `Debug`, whatever the files
/// contain. In a message, names, paths and values are escaped ([`Printable`]). A message has at most
/// [`MOST_BYTES`](Self::MOST_BYTES) bytes. The fields contain names, paths and values unchanged.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A model folder or one of its files cannot be read or written. The value is the underlying error, which names the
    /// path and the reason.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A model's configuration (`config.json`) cannot be used: it is not valid JSON, or a field is missing or has a
    /// value that this crate does not support.
    #[error("{}: {}", shown(path), Printable::new(reason).at_most(MOST_REASON))]
    Config {
        /// The path of the model's configuration file that cannot be used.
        path: PathBuf,
        /// The reason why the model's configuration cannot be used, such as a missing or invalid field. The reason may
        /// quote the configuration.
        reason: String,
    },
    /// The `model_type` in the model's `config.json` is an architecture that this crate does not support. Open a model
    /// with one of the supported types instead.
    #[error(
        "{}: the model type `{}` is not known; known are {}",
        shown(path),
        Printable::new(found),
        known.join(", ")
    )]
    UnknownArchitecture {
        /// The path of the configuration file with the unknown `model_type`.
        path: PathBuf,
        /// The unknown `model_type` in the configuration.
        found: String,
        /// The supported values of `model_type`.
        known: &'static [&'static str],
    },
    /// The model folder contains tensors that its configuration does not describe. Check that `config.json` and the
    /// weights are of the same model.
    #[error(
        "{}: the configuration does not describe the tensor `{}`{}; are config.json and the weights of \
         one model?",
        shown(path),
        Printable::new(name),
        and_more(*more)
    )]
    UnexpectedTensor {
        /// The path of the weights file with the first tensor that the model's configuration does not describe.
        path: PathBuf,
        /// The name of the first tensor in the model folder that the model's configuration does not describe.
        name: String,
        /// The number of tensors, in addition to the tensor `name`, that the model's configuration does not describe.
        more: usize,
    },
    /// A parameter's tensor has an unsupported dtype. Parameters are read from F32, F16 and BF16 only, so convert the
    /// weights to one of these dtypes.
    #[error(
        "{}: the tensor `{}` has the type {}; parameters are read from F32, F16 and BF16",
        shown(path),
        Printable::new(name),
        Printable::new(dtype)
    )]
    Type {
        /// The path of the weights file that contains the tensor with the unsupported dtype.
        path: PathBuf,
        /// The name, in the weights file, of the tensor with the unsupported dtype.
        name: String,
        /// The tensor's unsupported dtype, such as `I64`.
        dtype: String,
    },
    /// The PyTorch weights contain no tensor for a parameter of the model, or one with a different shape. Map the
    /// tensor's name with [`TorchFormat::rename`](crate::TorchFormat::rename), or initialise the parameter with
    /// [`TorchWeights::draw`](crate::TorchWeights::draw).
    #[error("the parameter `{}`: {cause}; {}", Printable::new(parameter).at_most(MOST_PATH), ways_out(cause))]
    NotStored {
        /// The path, in the model, of the parameter without a suitable tensor, such as `blocks.3.linear.weight`.
        parameter: String,
        /// The reason why the parameter has no suitable tensor: the tensor is missing, or has a different shape.
        cause: Box<FolderError>,
    },
    /// The PyTorch weights contain tensors that do not correspond to any parameter of the model. Map their names with
    /// [`TorchFormat::rename`](crate::TorchFormat::rename), or select them with
    /// [`TorchWeights::keep`](crate::TorchWeights::keep) or
    /// [`TorchWeights::leave_out`](crate::TorchWeights::leave_out).
    #[error(
        "{}: the tensor `{}`{} is no parameter of the model; give the names of parameters with `rename`, \
         or select such tensors with `keep` or `leave_out`",
        shown(path),
        Printable::new(name),
        and_more(*more)
    )]
    NoParameter {
        /// The path of the weights file with the first tensor that corresponds to no parameter.
        path: PathBuf,
        /// The name, in the weights file, of the first tensor that corresponds to no parameter.
        name: String,
        /// The number of tensors, in addition to the tensor `name`, that correspond to no parameter.
        more: usize,
    },
    /// A parameter needs a tensor that [`TorchWeights::leave_out`](crate::TorchWeights::leave_out) excludes. To
    /// initialise the parameter instead, select it with [`TorchWeights::draw`](crate::TorchWeights::draw).
    #[error(
        "the tensor `{}` is left out, but it is the parameter `{}`; select it with `draw` if it shall have new values",
        Printable::new(name).at_most(MOST_PATH),
        Printable::new(parameter).at_most(MOST_PATH)
    )]
    LeftOut {
        /// The path, in the model, of the parameter whose tensor is excluded.
        parameter: String,
        /// The name of the excluded tensor.
        name: String,
    },
    /// A parameter of the model is quantised, but PyTorch weights are not. Quantise only after the weights are loaded,
    /// with [`Row::mapped`](stageline::Row::mapped), and dequantise before an export.
    #[error(
        "the parameter `{}` is quantised, which weights of PyTorch are not; quantise after the weights are loaded, with \
         `Row::mapped`, and dequantise before an export",
        Printable::new(parameter).at_most(MOST_PATH)
    )]
    Quantised {
        /// The path, in the model, of the quantised parameter.
        parameter: String,
    },
    /// The naming rules ([`TorchFormat`](crate::TorchFormat)) give a tied parameter, which the model uses in two
    /// places, two different tensor names. Map both to one name with
    /// [`TorchFormat::rename`](crate::TorchFormat::rename).
    #[error(
        "`{}` and `{}` are one tied parameter, but have the names `{}` and `{}` in PyTorch; give both one name with \
         `rename`, and select a second copy in the folder with `leave_out`",
        Printable::new(&parameters[0]).at_most(MOST_PATH),
        Printable::new(&parameters[1]).at_most(MOST_PATH),
        Printable::new(&names[0]).at_most(MOST_PATH),
        Printable::new(&names[1]).at_most(MOST_PATH)
    )]
    TiedNames {
        /// The paths, in the model, of the two places of the tied parameter.
        parameters: [String; 2],
        /// The tensor names that the naming rules give the two places.
        names: [String; 2],
    },
    /// The naming rules ([`TorchFormat`](crate::TorchFormat)) give two parameters the same PyTorch tensor name. Correct
    /// the arguments of [`TorchFormat::rename`](crate::TorchFormat::rename).
    #[error(
        "the parameters `{}` and `{}` both have the name `{}` in PyTorch; correct the names of `rename`",
        Printable::new(&parameters[0]).at_most(MOST_PATH),
        Printable::new(&parameters[1]).at_most(MOST_PATH),
        Printable::new(name).at_most(MOST_PATH)
    )]
    SameName {
        /// The tensor name in PyTorch that two parameters of the model would share.
        name: String,
        /// The paths, in the model, of the two parameters that would share a tensor name.
        parameters: [String; 2],
    },
    /// The rank of new LoRA adapters is 0 or larger than every dimension of the model's linear layers, or their alpha
    /// is 0 or not finite.
    #[error(
        "LoRA adapters with the rank {rank} and alpha {alpha}: give a rank from 1 to {most}, and a finite alpha other \
         than 0"
    )]
    LoraScale {
        /// The requested rank of the LoRA adapters. It must be from 1 to `most`.
        rank: usize,
        /// The alpha of the LoRA adapters: the product of an adapter's two matrices is multiplied by alpha / rank. It
        /// must be finite and not 0.
        alpha: f64,
        /// The largest valid rank of LoRA adapters for this model: the largest number of inputs or outputs of any of
        /// its linear layers.
        most: usize,
    },
    /// The names selected for new LoRA adapters match no linear layer of the model. Select some of the layers in
    /// `known`.
    #[error(
        "no linear layer is selected for LoRA adapters; the weights of linear layers are named like `{}`",
        known.first().map_or("", String::as_str)
    )]
    NoLinearLayer {
        /// The names, on the Hugging Face hub, of the weights of all linear layers that can have adapters.
        known: Vec<String>,
    },
    /// The folder of LoRA adapters contains no tensor. Use a folder that PEFT's `save_pretrained` wrote.
    #[error("{}: it has no adapters; give a folder that PEFT's save_pretrained wrote", shown(path))]
    EmptyAdapter {
        /// The path of the adapters' weights file, which contains no tensor.
        path: PathBuf,
    },
    /// The folder of LoRA adapters contains a tensor that belongs to no linear layer of the model's blocks. The
    /// adapters may be those of another model, or of the model's head or embeddings. PEFT can merge the latter into the
    /// weights.
    #[error(
        "{}: the tensor `{}`{} adapts no linear layer of the model's blocks; give adapters of this model, and \
         merge those of the head and of embeddings with PEFT (`merge_and_unload`)",
        shown(path),
        Printable::new(name),
        and_more(*more)
    )]
    NotAdapted {
        /// The path of the adapters' weights file with the tensor that belongs to no linear layer.
        path: PathBuf,
        /// The name, in the adapters' weights file, of the first tensor that belongs to no linear layer.
        name: String,
        /// The number of tensors, in addition to the tensor `name`, that belong to no linear layer.
        more: usize,
    },
    /// The model has no LoRA adapters to export. Add adapters before training, with `--lora RANK` or
    /// `LanguageModel::adapt`.
    #[error(
        "the model has no LoRA adapters to export; add some before the training (--lora RANK, or `LanguageModel::adapt`)"
    )]
    NoAdapters,
    /// The export's target folder is the folder from which the model, or a new model's configuration, was read. The
    /// export would overwrite files in use, so choose another folder.
    #[error("{}: the model was opened from this folder; give another one", shown(path))]
    OwnFolder {
        /// The path of the folder from which the model, or a new model's configuration, was read.
        path: PathBuf,
    },
    /// The modules passed to an export are not this model's layers: one is missing or has the wrong type. Pass the
    /// modules of a pipeline of this model. The value is the underlying error.
    #[error(transparent)]
    Modules(#[from] ModuleError),
    /// A pipeline failed, for example in a step or a snapshot; the value is the underlying error.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Returns the advice at the end of a [`ModelError::NotStored`] message, given the `cause`: a missing tensor, or one of
/// a different shape.
fn ways_out(cause: &FolderError) -> &'static str {
    match cause {
        FolderError::Shape { .. } => "select it with `draw` if it shall have new values",
        _ => "if the tensor has another name, give it with `rename`; select it with `draw` if it shall have new values",
    }
}

/// Returns the words that follow the first of several tensors in a message: how many others there are.
fn and_more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more)") }
}

impl ModelError {
    /// The maximum length, in bytes, of a message about a model folder or a configuration, as `Display` and as `Debug`.
    pub const MOST_BYTES: usize = FolderError::MOST_BYTES + 4 * MOST_PATH;
}

impl fmt::Debug for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(cause) => write!(f, "{cause:?}"),
            Self::Modules(cause) => write!(f, "{cause:?}"),
            Self::Step(cause) => write!(f, "{cause:?}"),
            _ => write!(f, "{self}"),
        }
    }
}

/// Formats a path for an error message about a model, escaped and truncated to 500 bytes.
fn shown(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one error of each kind that quotes text from files in its message. `text` is the quoted text. Tests
    /// check with these errors that the messages are safe to print.
    fn with(text: &str) -> Vec<ModelError> {
        let (path, text) = (PathBuf::from(text), text.to_owned());
        vec![
            ModelError::Folder(FolderError::FileNotFound { path: path.clone() }),
            ModelError::Config { path: path.clone(), reason: text.clone() },
            ModelError::UnknownArchitecture { path: path.clone(), found: text.clone(), known: crate::families::KNOWN },
            ModelError::UnexpectedTensor { path: path.clone(), name: text.clone(), more: usize::MAX },
            ModelError::Type { path: path.clone(), name: text.clone(), dtype: text.clone() },
            ModelError::NoParameter { path: path.clone(), name: text.clone(), more: usize::MAX },
            ModelError::OwnFolder { path },
        ]
    }

    #[test]
    fn hostile_text_in_messages_is_escaped_and_cut() {
        for error in with(&"\u{1b}[2J\u{202e}\n".repeat(1 << 16)) {
            for text in [error.to_string(), format!("{error:?}")] {
                assert!(text.len() <= ModelError::MOST_BYTES, "{} bytes: {text}", text.len());
                assert!(text.starts_with(r"\u{1b}[2J\u{202e}\n"), "{text}");
                assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text:?}");
            }
        }
    }

    #[test]
    fn hostile_names_of_parameters_and_tensors_are_escaped_and_cut() {
        let hostile = "\u{1b}[2J\u{202e}\n".repeat(1 << 16);
        let cause = FolderError::FileNotFound { path: PathBuf::from(&hostile) };
        for error in [
            ModelError::NotStored { parameter: hostile.clone(), cause: cause.into() },
            ModelError::LeftOut { parameter: hostile.clone(), name: hostile.clone() },
            ModelError::Quantised { parameter: hostile.clone() },
            ModelError::TiedNames {
                parameters: [(); 2].map(|()| hostile.clone()),
                names: [(); 2].map(|()| hostile.clone()),
            },
            ModelError::SameName { name: hostile.clone(), parameters: [hostile.clone(), hostile] },
        ] {
            for text in [error.to_string(), format!("{error:?}")] {
                assert!(text.len() <= ModelError::MOST_BYTES, "{} bytes: {text}", text.len());
                assert!(text.contains(r"\u{1b}[2J\u{202e}\n"), "{text}");
                assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text:?}");
            }
        }
    }

    #[test]
    fn plain_text_in_messages_is_unchanged() {
        for error in with("config.json") {
            let (text, debug) = (error.to_string(), format!("{error:?}"));
            assert!(text.starts_with("config.json") && !text.contains("..."), "{text}");
            assert_eq!(debug, text);
        }
        let reason = "hidden_act \"relu\": these models have silu".to_owned();
        let error = ModelError::Config { path: "m/config.json".into(), reason };
        assert_eq!(error.to_string(), "m/config.json: hidden_act \"relu\": these models have silu");
    }
}
