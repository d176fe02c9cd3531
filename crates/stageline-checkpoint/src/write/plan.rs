//! Validates a checkpoint and assigns its tensors to files, before anything is written to disk.

use std::collections::BTreeMap;

use crate::error::CheckpointError;
use crate::format::checkpoint::Checkpoint;
use crate::format::finite::first_not_finite;
use crate::format::manifest::TensorEntry;
use crate::format::names::{RESERVED, optimizer_file, parameter_file};
use crate::format::tensor::{Tensor, byte_len};

/// A validated checkpoint that is ready to be written: its tensors grouped by file, and the manifest's entries for the
/// tensors.
pub(crate) struct Plan<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    /// The names and values of the tensors to write into each checkpoint file, by file name.
    pub(crate) files: BTreeMap<String, Vec<(&'a str, &'a Tensor)>>,
    pub(crate) parameters: BTreeMap<String, TensorEntry>,
    pub(crate) optimizer: BTreeMap<String, TensorEntry>,
}

impl<'a> Plan<'a> {
    /// Validates a checkpoint and assigns its tensors to files. Returns an error in these cases:
    ///
    /// - The progress is outside the limits of [`Progress`](crate::Progress).
    /// - A tensor has the reserved name `__metadata__`.
    /// - A tensor's number of bytes does not match its dtype and shape.
    /// - A tensor has an infinite or NaN value.
    pub(crate) fn new(checkpoint: &'a Checkpoint) -> Result<Self, CheckpointError> {
        checkpoint.progress.validate()?;
        let mut files = BTreeMap::new();
        let parameters = add(&mut files, &checkpoint.parameters, parameter_file)?;
        let optimizer = add(&mut files, &checkpoint.optimizer, optimizer_file)?;
        Ok(Self { checkpoint, files, parameters, optimizer })
    }
}

/// Adds a checkpoint's tensors to their files in `files`, and returns the manifest's entries for these tensors. Returns
/// an error for the first tensor that cannot be saved. `file_of` maps a tensor's name to the name of its file.
fn add<'a>(
    files: &mut BTreeMap<String, Vec<(&'a str, &'a Tensor)>>,
    tensors: &'a BTreeMap<String, Tensor>,
    file_of: fn(&str) -> String,
) -> Result<BTreeMap<String, TensorEntry>, CheckpointError> {
    let mut entries = BTreeMap::new();
    for (name, tensor) in tensors {
        validate(name, tensor)?;
        let file = file_of(name);
        entries.insert(name.clone(), TensorEntry::new(tensor, file.clone()));
        files.entry(file).or_default().push((name, tensor));
    }
    Ok(entries)
}

fn validate(name: &str, tensor: &Tensor) -> Result<(), CheckpointError> {
    let named = || name.to_owned();
    let expected = byte_len(tensor.dtype, &tensor.shape);
    if name == RESERVED {
        return Err(CheckpointError::Reserved { tensor: named() });
    }
    if expected != Some(tensor.bytes.len()) {
        let (dtype, shape, found) = (tensor.dtype, tensor.shape.clone(), tensor.bytes.len());
        return Err(CheckpointError::Length { tensor: named(), dtype, shape, found, expected });
    }
    match first_not_finite(tensor) {
        Some((index, value)) => Err(CheckpointError::NotFinite { tensor: named(), index, value }),
        None => Ok(()),
    }
}
