//! Whether a manifest is sound. Sizes, names and files follow from each other, so what does not fit is refused before a
//! file is touched or memory is asked for.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::damage::Damage;
use crate::hash;
use crate::manifest::{FileEntry, MOST_BYTES, Manifest, Refused, TensorEntry};
use crate::names::{INDEX, RESERVED, optimizer_file, parameter_file};
use crate::printable::Printable;
use crate::tensor::byte_len;

/// The most bytes of the header of a safetensors file, by its format.
pub(crate) const MOST_HEADER: u64 = 100_000_000;
/// Bytes of the length of that header.
pub(crate) const LENGTH: u64 = 8;

/// The manifest of a text, if it is sound.
pub(crate) fn sound(text: &[u8]) -> Result<Manifest, Refused> {
    let manifest = Manifest::from_text(text)?;
    check(&manifest).map_err(Refused::Damaged)?;
    Ok(manifest)
}

/// Whether a manifest can be one that was written.
fn check(manifest: &Manifest) -> Result<(), Damage> {
    if let Some(wrong) = manifest.progress.wrong() {
        return Err(wrong.into());
    }
    let mut tensors = BTreeMap::new();
    add(&mut tensors, &manifest.parameters, parameter_file)?;
    add(&mut tensors, &manifest.optimizer, optimizer_file)?;
    let mut listed = BTreeSet::new();
    for file in &manifest.files {
        if !listed.insert(file.name.as_str()) {
            return Err(Damage::Twice { file: file.name.clone() });
        }
        check_file(file, tensors.get(&file.name).copied())?;
    }
    let expected = tensors.keys().map(String::as_str).chain([INDEX]);
    match expected.into_iter().find(|&file| !listed.contains(file)) {
        Some(file) => Err(Damage::Unlisted { file: file.to_owned() }),
        None => Ok(()),
    }
}

/// Adds the bytes of `entries` to those of their files.
fn add(
    files: &mut BTreeMap<String, u64>,
    entries: &BTreeMap<String, TensorEntry>,
    file_of: fn(&str) -> String,
) -> Result<(), Damage> {
    for (tensor, TensorEntry { file, dtype, shape }) in entries {
        let expected = file_of(tensor);
        if tensor == RESERVED {
            return Err(Damage::form(format_args!("no tensor can be named `{RESERVED}`")));
        }
        if *file != expected {
            return Err(Damage::Place { tensor: tensor.clone(), found: file.clone(), expected });
        }
        let uncounted = || Damage::Shape { tensor: tensor.clone(), dtype: *dtype, shape: shape.clone() };
        let bytes = byte_len(*dtype, shape).ok_or_else(uncounted)? as u64;
        match files.entry(expected) {
            Entry::Vacant(none) => _ = none.insert(bytes),
            Entry::Occupied(mut sum) => *sum.get_mut() = sum.get().checked_add(bytes).ok_or_else(uncounted)?,
        }
    }
    Ok(())
}

/// Whether a file can have this size, with tensors of so many bytes in it.
fn check_file(FileEntry { name, bytes, sha256 }: &FileEntry, tensors: Option<u64>) -> Result<(), Damage> {
    let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if sha256.len() != hash::HEX || !sha256.bytes().all(hexadecimal) {
        let (name, sha256) = (Printable::new(name), Printable::new(sha256));
        return Err(Damage::form(format_args!("the SHA-256 of `{name}` is `{sha256}`")));
    }
    let fits = match tensors {
        None if name == INDEX => *bytes <= MOST_BYTES,
        None => return Err(Damage::Foreign { file: name.clone() }),
        Some(tensors) => header(*bytes, tensors).is_some(),
    };
    if fits { Ok(()) } else { Err(Damage::Total { file: name.clone(), found: *bytes, tensors: tensors.unwrap_or(0) }) }
}

/// Bytes of the header in a file of `bytes`, of which `tensors` are tensors.
fn header(bytes: u64, tensors: u64) -> Option<u64> {
    bytes.checked_sub(tensors)?.checked_sub(LENGTH).filter(|&header| header <= MOST_HEADER)
}
