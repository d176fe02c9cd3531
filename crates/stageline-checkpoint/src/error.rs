//! What can go wrong, and the way out.

use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::checkpoint::Wrong;
use crate::damage::Damage;

/// Why a checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path names nothing.
    #[error("{} does not exist; give the path of a checkpoint, or of a folder of checkpoints", path.display())]
    PathNotFound {
        /// What was asked for.
        path: PathBuf,
    },
    /// The path cannot be looked at.
    #[error("cannot look into {}; make it readable", path.display())]
    Look {
        /// What was asked for.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The path is no folder, or a part of it is none.
    #[error("{} is not a folder; give the path of a checkpoint, or of a folder of checkpoints", path.display())]
    NotAFolder {
        /// What was asked for, or the part of it.
        path: PathBuf,
    },
    /// There is none yet.
    #[error("no checkpoint in {}; train with --checkpoint first", path.display())]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// A folder of other things.
    #[error(
        "{} is neither a checkpoint, which has a manifest.json, nor a folder of checkpoints, which have names such as \
         000001-step-100; give the path of one",
        path.display()
    )]
    Neither {
        /// The folder.
        path: PathBuf,
    },
    /// The format is not one that is known here.
    #[error(
        "{} was written by a newer stageline: its format is {found}, and {known} is the newest known here; resume with \
         that stageline",
        path.display()
    )]
    Newer {
        /// The manifest.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format that is known.
        known: u32,
    },
    /// A file of the checkpoint is not what was written.
    #[error("{} {damage}; {}", path.display(), way_out(damage, older.as_deref()))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Box<Damage>,
        /// The next older checkpoint beside this one, which has not been looked into.
        older: Option<PathBuf>,
    },
    /// Someone else writes into the folder.
    #[error("{} is in use by another run that writes checkpoints; end it, or give another folder", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder to write into cannot be: it, or a part of its path, is something else.
    #[error("{} is {found}; give the path of a folder, which is made if there is none", path.display())]
    InTheWay {
        /// The folder, or the part of its path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The operating system does not let it be written.
    #[error(
        "cannot {doing} {}; free space on its disk, or make the folder writable; earlier checkpoints are untouched",
        path.display()
    )]
    Write {
        /// What was being done.
        doing: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The new checkpoint is complete and has its name, but a power loss may remove it: the folder could not be synced,
    /// and the name could not be taken back. No old checkpoint is removed.
    #[error(
        "{} is complete, but a power loss may remove it: its folder cannot be synced; check the disk, then write \
         another checkpoint; earlier checkpoints are untouched",
        published.display()
    )]
    NotDurable {
        /// The checkpoint that is complete.
        published: PathBuf,
        /// What the operating system said when the folder was synced.
        source: io::Error,
        /// What the operating system said when the name was taken back.
        undo: io::Error,
    },
    /// The new one is written, but an old one stays.
    #[error(
        "{} is written, but cannot {doing} {}, which is old; make the folder writable, or keep more checkpoints",
        published.display(),
        path.display()
    )]
    Prune {
        /// The checkpoint that is complete.
        published: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// To which folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The sequence numbers are used up.
    #[error(
        "{} has the highest number that there is; move it out of the folder, or give another folder",
        path.display()
    )]
    LastNumber {
        /// The last checkpoint.
        path: PathBuf,
    },
    /// A tensor has not the bytes that its shape asks for.
    #[error(
        "the tensor `{tensor}` has {found} bytes, but {dtype} of the shape {shape:?} takes {}; give it all its \
         elements, and those alone",
        bytes(*expected)
    )]
    Length {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes that it has.
        found: usize,
        /// Bytes that it should have; `None` where they cannot be counted.
        expected: Option<usize>,
    },
    /// A tensor has a name that the format keeps to itself.
    #[error("no tensor can be named `{tensor}`: the format uses it; name it otherwise")]
    Reserved {
        /// The name.
        tensor: String,
    },
    /// A value is infinite or not a number.
    #[error(
        "the tensor `{tensor}` has {value} at index {index}; no checkpoint is written, and earlier ones stay: resume \
         from the latest with a lower learning rate, or with gradients clipped"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Which element, row by row.
        index: usize,
        /// What it is.
        value: f64,
    },
    /// The steps are more than can be.
    #[error("the steps are {steps}; they must not be more than {most}")]
    Steps {
        /// How many they are.
        steps: u64,
        /// The most.
        most: u64,
    },
    /// The steps of the optimizer are more than all steps.
    #[error(
        "the steps of the optimizer are {optimizer_steps}; they must not be more than all steps, which are {steps}"
    )]
    OptimizerSteps {
        /// Those of the optimizer.
        optimizer_steps: u64,
        /// All.
        steps: u64,
    },
    /// The loss scale is not a positive number.
    #[error("the loss scale is {scale}; it must be a positive number")]
    LossScale {
        /// What it is.
        scale: f64,
    },
    /// The header or the index of a file cannot be written.
    #[error(
        "cannot write {file} as safetensors: {reason}; spread its tensors over more groups, or shorten their names"
    )]
    Header {
        /// The file.
        file: String,
        /// Why not.
        reason: String,
    },
    /// The manifest could not be read back.
    #[error(
        "a manifest of {bytes} bytes would not be read back: {reason}; put less, and less deeply nested, into `run`"
    )]
    Manifest {
        /// Its bytes.
        bytes: usize,
        /// Why not.
        reason: String,
    },
    /// The thread that writes could not be started.
    #[error("cannot start the thread that writes checkpoints; raise the limit on threads (ulimit -u)")]
    Thread {
        /// What the operating system said.
        source: io::Error,
    },
    /// The thread that writes panicked.
    #[error("the thread that writes checkpoints panicked: {message}; resume from the latest checkpoint")]
    Panicked {
        /// What it said.
        message: String,
    },
}

impl CheckpointError {
    /// For `map_err`: what was being done to `path` when it could not be written.
    pub(crate) fn write(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { doing, path: path.to_path_buf(), source }
    }
}

impl From<Wrong> for CheckpointError {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Steps { steps, most } => Self::Steps { steps, most },
            Wrong::OptimizerSteps { optimizer_steps, steps } => Self::OptimizerSteps { optimizer_steps, steps },
            Wrong::LossScale { scale } => Self::LossScale { scale },
        }
    }
}

fn way_out(damage: &Damage, older: Option<&Path>) -> String {
    match older {
        _ if matches!(damage, Damage::Io(error) if error.kind() == io::ErrorKind::PermissionDenied) => {
            "make it and its folder readable".into()
        }
        Some(older) => format!("resume from an older one, such as {}", older.display()),
        None => "there is no older one beside it: restore it from a copy, or train anew".into(),
    }
}

fn bytes(expected: Option<usize>) -> String {
    expected.map_or_else(|| "more than can be counted, or a part of one".into(), |bytes| bytes.to_string())
}
