//! Validates a manifest: its names, sizes and files must be consistent.
//!
//! An inconsistent manifest is an error here, before any file of its checkpoint is opened or memory is allocated for
//! the file.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::damage::Damage;
use crate::format::manifest::{FileEntry, MOST_BYTES, Manifest, ManifestError, TensorEntry};
use crate::format::names::{INDEX, RESERVED, optimizer_file, parameter_file};
use crate::format::seal;
use crate::format::shard::{LENGTH, MOST_HEADER};
use crate::format::tensor::byte_len;
use crate::printable::Printable;

/// Parses the contents of a checkpoint's manifest file. Returns an error if its seal is missing or wrong, if its format
/// is newer than this crate's, or if its names, sizes and files are inconsistent.
pub(crate) fn parse(text: &[u8]) -> Result<Manifest, ManifestError> {
    let manifest = Manifest::from_text(text)?;
    validate(&manifest).map_err(ManifestError::Damaged)?;
    Ok(manifest)
}

fn validate(manifest: &Manifest) -> Result<(), Damage> {
    manifest.progress.validate()?;
    let mut tensors = BTreeMap::new();
    add(&mut tensors, &manifest.parameters, parameter_file)?;
    add(&mut tensors, &manifest.optimizer, optimizer_file)?;
    if let Some(tensor) = manifest.frozen.keys().find(|tensor| manifest.parameters.contains_key(*tensor)) {
        let tensor = Printable::new(tensor);
        return Err(Damage::malformed(format_args!("`{tensor}` has values, and a hash in their place")));
    }
    let mut listed = BTreeSet::new();
    for file in &manifest.files {
        if !listed.insert(file.name.as_str()) {
            return Err(Damage::Twice { file: file.name.clone() });
        }
        validate_file(file, tensors.get(&file.name).copied())?;
    }
    let expected = tensors.keys().map(String::as_str).chain([INDEX]);
    match expected.into_iter().find(|&file| !listed.contains(file)) {
        Some(file) => Err(Damage::Unlisted { file: file.to_owned() }),
        None => Ok(()),
    }
}

/// Checks each tensor in the manifest's `entries` (name, file, size), and returns an error for the first invalid one.
/// Also adds the tensors' sizes in bytes to the totals by file in `files`. `file_of` computes a tensor's file from its
/// name.
fn add(
    files: &mut BTreeMap<String, u64>,
    entries: &BTreeMap<String, TensorEntry>,
    file_of: fn(&str) -> String,
) -> Result<(), Damage> {
    for (tensor, TensorEntry { file, dtype, shape }) in entries {
        let expected = file_of(tensor);
        if tensor == RESERVED {
            return Err(Damage::malformed(format_args!("no tensor can be named `{RESERVED}`")));
        }
        if *file != expected {
            return Err(Damage::Place { tensor: tensor.clone(), found: file.clone(), expected });
        }
        let invalid_shape = || Damage::Shape { tensor: tensor.clone(), dtype: *dtype, shape: shape.clone() };
        let bytes = byte_len(*dtype, shape).ok_or_else(invalid_shape)? as u64;
        match files.entry(expected) {
            Entry::Vacant(none) => _ = none.insert(bytes),
            Entry::Occupied(mut sum) => *sum.get_mut() = sum.get().checked_add(bytes).ok_or_else(invalid_shape)?,
        }
    }
    Ok(())
}

/// Checks a manifest's entry for a file: its SHA-256 must have 64 lowercase hexadecimal digits, and its length must be
/// possible for its tensors. `tensors` is their total size in bytes, or `None` for a file without tensors, which is an
/// error ([`Damage::Foreign`]) unless the file is the index.
fn validate_file(FileEntry { name, bytes, sha256 }: &FileEntry, tensors: Option<u64>) -> Result<(), Damage> {
    let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if sha256.len() != seal::HEX || !sha256.bytes().all(hexadecimal) {
        let (name, sha256) = (Printable::new(name), Printable::new(sha256));
        return Err(Damage::malformed(format_args!(
            "the SHA-256 of `{name}` is `{sha256}`, not 64 lowercase hexadecimal digits"
        )));
    }
    let fits = match tensors {
        None if name == INDEX => *bytes <= MOST_BYTES,
        None => return Err(Damage::Foreign { file: name.clone() }),
        Some(tensors) => has_header(*bytes, tensors),
    };
    if fits { Ok(()) } else { Err(Damage::Total { file: name.clone(), found: *bytes, tensors: tensors.unwrap_or(0) }) }
}

/// Whether a tensor file of `bytes` bytes can contain `tensors` bytes of tensors: the remaining bytes must be a valid
/// size for the header.
fn has_header(bytes: u64, tensors: u64) -> bool {
    let header = bytes.checked_sub(tensors).and_then(|rest| rest.checked_sub(LENGTH));
    header.is_some_and(|header| header <= MOST_HEADER)
}
