//! Which tensors go into which file.

use std::collections::BTreeMap;

use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;
use crate::finite::first_not_finite;
use crate::manifest::TensorEntry;
use crate::names::{RESERVED, optimizer_file, parameter_file};
use crate::tensor::{Tensor, byte_len};

/// A checkpoint that can be written, and where.
pub(crate) struct Plan<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) files: BTreeMap<String, Vec<(&'a str, &'a Tensor)>>,
    pub(crate) parameters: BTreeMap<String, TensorEntry>,
    pub(crate) optimizer: BTreeMap<String, TensorEntry>,
}

impl<'a> Plan<'a> {
    /// Looks at everything that could be wrong before anything is touched.
    pub(crate) fn of(checkpoint: &'a Checkpoint) -> Result<Self, CheckpointError> {
        if let Some(wrong) = checkpoint.progress.wrong() {
            return Err(wrong.into());
        }
        let mut files = BTreeMap::new();
        let parameters = add(&mut files, &checkpoint.parameters, parameter_file)?;
        let optimizer = add(&mut files, &checkpoint.optimizer, optimizer_file)?;
        Ok(Self { checkpoint, files, parameters, optimizer })
    }
}

fn add<'a>(
    files: &mut BTreeMap<String, Vec<(&'a str, &'a Tensor)>>,
    tensors: &'a BTreeMap<String, Tensor>,
    file_of: fn(&str) -> String,
) -> Result<BTreeMap<String, TensorEntry>, CheckpointError> {
    let mut entries = BTreeMap::new();
    for (name, tensor) in tensors {
        check(name, tensor)?;
        let file = file_of(name);
        entries.insert(name.clone(), TensorEntry::of(tensor, file.clone()));
        files.entry(file).or_default().push((name, tensor));
    }
    Ok(entries)
}

fn check(name: &str, tensor: &Tensor) -> Result<(), CheckpointError> {
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
