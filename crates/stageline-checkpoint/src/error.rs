//! What can go wrong, and the way out.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use safetensors::Dtype;

use crate::checkpoint::Wrong;
use crate::damage::Damage;
use crate::printable::{Printable, number};

/// The most bytes of a path in a message.
const MOST_PATH: usize = 600;
/// The most bytes of each path in a message with two.
const MOST_OF_TWO: usize = 300;
/// The most bytes of a reason that has text from elsewhere in it.
const MOST_REASON: usize = 500;

/// Why a checkpoint cannot be read or written.
///
/// `Display` is safe to print, whatever the checkpoint contains: names and paths are shown as [`Printable`], and the
/// message has at most [`MOST_BYTES`](Self::MOST_BYTES). `Debug` is the message with its causes, under the same rules.
/// The fields have names and paths as they are.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path names nothing.
    #[error("{} does not exist; give the path of a checkpoint, or of a folder of checkpoints", alone(path))]
    PathNotFound {
        /// What was asked for.
        path: PathBuf,
    },
    /// The path cannot be looked at.
    #[error("cannot look into {}; make it readable", alone(path))]
    Look {
        /// What was asked for.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The path is no folder, or a part of it is none.
    #[error("{} is not a folder; give the path of a checkpoint, or of a folder of checkpoints", alone(path))]
    NotAFolder {
        /// What was asked for, or the part of it.
        path: PathBuf,
    },
    /// There is none yet.
    #[error("no checkpoint in {}; train with --checkpoint first", alone(path))]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// A folder of other things.
    #[error(
        "{} is neither a checkpoint, which has a manifest.json, nor a folder of checkpoints, which have names such as \
         000001-step-100; give the path of one",
        alone(path)
    )]
    Neither {
        /// The folder.
        path: PathBuf,
    },
    /// The format is not one that is known here.
    #[error(
        "{} was written by a newer stageline: its format is {found}, and {known} is the newest known here; resume with \
         that stageline",
        alone(path)
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
    #[error("{} {damage}; {}", one_of_two(path), way_out(damage, older.as_deref()))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Box<Damage>,
        /// The next older checkpoint beside this one, which has not been looked into.
        older: Option<PathBuf>,
    },
    /// Someone else writes into the folder.
    #[error("{} is in use by another run that writes checkpoints; end it, or give another folder", alone(path))]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder to write into cannot be: it, or a part of its path, is something else.
    #[error("{} is {found}; give the path of a folder, which is made if there is none", alone(path))]
    InTheWay {
        /// The folder, or the part of its path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The operating system does not let it be written.
    #[error(
        "cannot {doing} {}; free space on its disk, or make the folder writable; earlier checkpoints are untouched",
        alone(path)
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
        alone(published)
    )]
    NotDurable {
        /// The checkpoint that is complete.
        published: PathBuf,
        /// The error of the operating system when the folder was synced.
        source: io::Error,
        /// The error of the operating system when the name was taken back.
        undo: io::Error,
    },
    /// The new one is written, but an old one stays.
    #[error(
        "{} is written, but cannot {doing} {}, which is old; make the folder writable, or keep more checkpoints",
        one_of_two(published),
        one_of_two(path)
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
    #[error("{} has the highest number that there is; move it out of the folder, or give another folder", alone(path))]
    LastNumber {
        /// The last checkpoint.
        path: PathBuf,
    },
    /// A tensor has not the bytes that its shape asks for.
    #[error(
        "the tensor `{}` has {found} bytes, but {dtype} of the shape {} takes {}; give it all its elements, and those \
         alone",
        Printable::new(tensor),
        Printable::new(format!("{shape:?}")),
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
    #[error("no tensor can be named `{}`: the format uses it; name it otherwise", Printable::new(tensor))]
    Reserved {
        /// The name.
        tensor: String,
    },
    /// A value is infinite or not a number.
    #[error(
        "the tensor `{}` has {} at index {index}; no checkpoint is written, and earlier ones stay: resume from the \
         latest with a lower learning rate, or with gradients clipped",
        Printable::new(tensor),
        number(*value)
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
    #[error("the loss scale is {}; it must be a positive number", number(*scale))]
    LossScale {
        /// What it is.
        scale: f64,
    },
    /// The header or the index of a file cannot be written.
    #[error(
        "cannot write {} as safetensors: {}; spread its tensors over more groups, or shorten their names",
        Printable::new(file),
        Printable::new(reason).at_most(MOST_REASON)
    )]
    Header {
        /// The file.
        file: String,
        /// Why not.
        reason: String,
    },
    /// The manifest could not be read back.
    #[error(
        "a manifest of {bytes} bytes would not be read back: {}; put less, and less deeply nested, into `run`",
        Printable::new(reason).at_most(MOST_REASON)
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
    #[error(
        "the thread that writes checkpoints panicked: {}; resume from the latest checkpoint",
        Printable::new(message).at_most(MOST_REASON)
    )]
    Panicked {
        /// What it said.
        message: String,
    },
}

impl CheckpointError {
    /// The most bytes of a message, as `Display` and as `Debug` give it.
    pub const MOST_BYTES: usize = 1_000;

    /// For `map_err`: what was being done to `path` when it could not be written.
    pub(crate) fn write(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { doing, path: path.to_path_buf(), source }
    }
}

impl fmt::Debug for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        write!(f, "{}", Printable::new(text).at_most(Self::MOST_BYTES))
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

/// The only path of a message.
fn alone(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_PATH)
}

/// One of the two paths of a message.
fn one_of_two(path: &Path) -> Printable<'_> {
    Printable::new(path.to_string_lossy()).at_most(MOST_OF_TWO)
}

fn way_out(damage: &Damage, older: Option<&Path>) -> String {
    match older {
        _ if matches!(damage, Damage::Io(error) if error.kind() == io::ErrorKind::PermissionDenied) => {
            "make it and its folder readable".into()
        }
        Some(older) => format!("resume from an older one, such as {}", one_of_two(older)),
        None => "there is no older one beside it: restore it from a copy, or train anew".into(),
    }
}

fn bytes(expected: Option<usize>) -> String {
    expected.map_or_else(|| "more than can be counted, or a part of one".into(), |bytes| bytes.to_string())
}
