//! Maps a weights file of a model into memory and parses its safetensors header.
//!
//! A weights file has three parts: the header's length (8 bytes, little-endian), the header as JSON, and the tensors'
//! bytes without gaps.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::disk;
use crate::error::FolderError;

/// The maximum length in bytes of a header in the safetensors format.
pub(crate) const MOST_HEADER: u64 = 100_000_000;
/// The number of bytes at the start of a safetensors file that hold the length of the header.
pub(crate) const LENGTH: usize = 8;

/// The first bytes of a Git LFS pointer, a small file that Git leaves in place of a large one if its extension LFS is
/// missing.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// A safetensors file that is mapped into memory, with the `__metadata__` entries of its header.
pub(crate) struct WeightsFile {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The `__metadata__` entries of a weights file's header, which are strings. An example is `format: pt`, which
    /// names the framework that wrote the file.
    pub(crate) metadata: BTreeMap<String, String>,
    map: Mmap,
    /// Byte offset of the tensors in the weights file, right after the header.
    start: usize,
}

/// A weights file of a model, with the name and description (dtype, shape and offsets) of each tensor in it. The
/// tensors are in the order of their bytes in the file.
pub(crate) type Parsed = (WeightsFile, Vec<(String, TensorInfo)>);

impl WeightsFile {
    /// Maps the weights file `name` in `folder` into memory and parses its header. If the file is missing, the error
    /// quotes `reason`, which says why the folder must have it.
    pub(crate) fn open(folder: &Path, name: &str, reason: &'static str) -> Result<Parsed, FolderError> {
        let path = folder.join(name);
        let file = disk::open(&path, reason)?;
        // SAFETY: The file is mapped for reading only. No reference is kept to bytes that this crate changes: files are
        // replaced by renaming, which leaves a mapped file as it is. The crate's documentation tells callers that other
        // programs must not change the files either.
        let map = unsafe { Mmap::map(&file) }.map_err(FolderError::read(&path))?;
        let (start, header) = parse(&map).map_err(|reason| FolderError::malformed(&path, reason))?;
        let tensors = in_order(&header);
        let metadata = header.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone())).collect();
        Ok((Self { name: name.to_owned(), path, metadata, map, start }, tensors))
    }

    /// Returns a tensor's bytes in the mapped weights file. `offsets` is the tensor's byte range according to the
    /// file's header, counted from the end of the header.
    pub(crate) fn bytes(&self, offsets: &Range<usize>) -> &[u8] {
        &self.map[self.start..][offsets.clone()]
    }

    /// Lets the operating system drop a tensor's memory pages, to free host memory. They are read from the weights file
    /// again when needed. `offsets` is the tensor's byte range according to the file's header.
    pub(crate) fn release(&self, offsets: &Range<usize>) {
        #[cfg(unix)]
        {
            // SAFETY: The mapping is of a file and is never written to, so dropped pages have the same bytes when they
            // are read again.
            let advised = unsafe {
                self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, self.start + offsets.start, offsets.len())
            };
            // The call is only a hint to save memory, so an error does no harm.
            drop(advised);
        }
    }
}

/// Parses the header of a weights file, given all bytes of the file. Returns the tensors' byte offset in the file, and
/// the header. The error is a message if the header is invalid, or if the tensors do not fill the rest of the file
/// without gaps.
///
/// `SafeTensors::read_metadata` cannot be used here, because its sums overflow for some invalid offsets.
fn parse(bytes: &[u8]) -> Result<(usize, Metadata), String> {
    if bytes.starts_with(LFS_POINTER) {
        return Err("it is a pointer of Git LFS and not the weights; run `git lfs pull` in the folder".to_owned());
    }
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
        return Err(format!("it has {} bytes, too few for a safetensors header; it may be cut short", bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MOST_HEADER || length > rest.len() as u64 {
        return Err(format!(
            "its safetensors header has {length} bytes, too many for the {} bytes after the length, or for the format \
             (at most {MOST_HEADER}); the file may be cut short",
            rest.len()
        ));
    }
    let (header, data) = rest.split_at(length as usize);
    let header: Metadata =
        serde_json::from_slice(header).map_err(|error| format!("its safetensors header is invalid: {error}"))?;
    if header.data_len() != data.len() {
        let (covered, found) = (header.data_len(), data.len());
        return Err(format!("its header describes {covered} bytes of tensors, but {found} follow it"));
    }
    Ok((bytes.len() - data.len(), header))
}

/// Returns the header's tensors in the order of their bytes in the file. Empty tensors at the same offset are sorted by
/// name, because the parsed header does not keep their order.
fn in_order(header: &Metadata) -> Vec<(String, TensorInfo)> {
    let tensors: HashMap<String, &TensorInfo> = header.tensors();
    let mut tensors: Vec<_> = tensors.into_iter().map(|(name, info)| (name, info.clone())).collect();
    tensors.sort_by(|(a, left), (b, right)| left.data_offsets.cmp(&right.data_offsets).then_with(|| a.cmp(b)));
    tensors
}
