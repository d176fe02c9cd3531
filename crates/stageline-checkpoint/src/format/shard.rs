//! A tensor file in the safetensors format: [`Shard`] is a file to write, and [`read`] validates and parses the
//! contents of a file.
//!
//! The file consists of the header's length (8 bytes, little-endian), the header as JSON, and the tensors' bytes
//! without gaps.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::damage::Damage;
use crate::format::finite::first_not_finite;
use crate::format::manifest::TensorEntry;
use crate::format::tensor::Tensor;
use crate::printable::Printable;

/// The maximum length, in bytes, of a tensor file's header in the safetensors format.
pub(crate) const MOST_HEADER: u64 = 100_000_000;
/// The number of bytes at the start of a tensor file that hold the length of the file's header.
pub(crate) const LENGTH: u64 = 8;

/// The contents of a tensor file (safetensors) to write: the header and the tensors.
pub(crate) struct Shard<'a> {
    /// The start of a tensor file: the header's length (8 bytes), then the header as JSON.
    pub(crate) header: Vec<u8>,
    /// Tensors to write after the header of the tensor file, in this order.
    pub(crate) tensors: Vec<&'a Tensor>,
}

impl<'a> Shard<'a> {
    /// Creates a tensor file's contents from named tensors. The caller must have checked that each tensor's byte length
    /// matches its dtype and shape. The error is a message that says why the file cannot be written, for example
    /// because its header is too long.
    ///
    /// The tensors are in the order of the safetensors crate: larger dtypes first, so that all tensors are aligned,
    /// then by name.
    pub(crate) fn new(tensors: &[(&'a str, &'a Tensor)]) -> Result<Self, String> {
        let mut ordered = tensors.to_vec();
        ordered.sort_by(|(a, left), (b, right)| right.dtype.cmp(&left.dtype).then(a.cmp(b)));
        let mut infos = Vec::with_capacity(ordered.len());
        let mut offset = 0usize;
        for (name, tensor) in &ordered {
            let end = offset.checked_add(tensor.bytes.len()).ok_or("its tensors have too many bytes")?;
            let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (offset, end) };
            infos.push(((*name).to_owned(), info));
            offset = end;
        }
        // The Transformers library requires the entry `format: pt` in the header.
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), infos).map_err(|error| error.to_string())?;
        let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
        text.resize(text.len().next_multiple_of(8), b' ');
        if text.len() as u64 > MOST_HEADER {
            return Err(format!("its header has {} bytes; the limit is {MOST_HEADER}", text.len()));
        }
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.append(&mut text);
        Ok(Self { header, tensors: ordered.into_iter().map(|(_, tensor)| tensor).collect() })
    }
}

/// Parses a tensor file's contents and adds its tensors to `tensors`, by name. Returns an error if a value is infinite
/// or NaN, or if the file's tensors differ from `entries`, the manifest's entries for this file. After an error,
/// `tensors` may contain some of the tensors.
pub(crate) fn read(
    contents: Vec<u8>,
    entries: &[(&str, &TensorEntry)],
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<(), Damage> {
    let contents = Bytes::from(contents);
    let (metadata, data) = split(&contents)?;
    for &(name, TensorEntry { dtype, shape, .. }) in entries {
        let info = metadata.info(name).ok_or_else(|| Damage::Lacks { tensor: name.to_owned() })?;
        if (info.dtype, &info.shape) != (*dtype, shape) {
            let (found, expected) = (shown(info.dtype, &info.shape), shown(*dtype, shape));
            return Err(Damage::Differs { tensor: name.to_owned(), found, expected });
        }
        let bytes = data.slice(info.data_offsets.0..info.data_offsets.1);
        let tensor = Tensor::new(*dtype, shape.clone(), bytes);
        if let Some((index, value)) = first_not_finite(&tensor) {
            return Err(Damage::NotFinite { tensor: name.to_owned(), index, value });
        }
        tensors.insert(name.to_owned(), tensor);
    }
    let found = metadata.tensors().len();
    if found == entries.len() { Ok(()) } else { Err(Damage::Count { found, expected: entries.len() }) }
}

/// Splits the contents of a tensor file into the parsed header and the bytes of the tensors. Returns an error if the
/// header is invalid, or describes more or fewer bytes than follow it.
///
/// `SafeTensors::deserialize` is not used, because its sums overflow for malicious offsets and lengths.
fn split(contents: &Bytes) -> Result<(Metadata, Bytes), Damage> {
    let length = contents.first_chunk().map(|&length| u64::from_le_bytes(length));
    let length = length.ok_or_else(|| Damage::malformed("it is too short for a header"))?;
    let end = length.checked_add(LENGTH).filter(|&end| length <= MOST_HEADER && end <= contents.len() as u64);
    let end = end.ok_or_else(|| {
        Damage::malformed(format_args!("its header has {length} bytes, too many for the file or the format"))
    })? as usize;
    let header = &contents[LENGTH as usize..end];
    let metadata: Metadata = serde_json::from_slice(header).map_err(Damage::malformed)?;
    let data = contents.slice(end..);
    if metadata.data_len() != data.len() {
        let (covered, found) = (metadata.data_len(), data.len());
        return Err(Damage::malformed(format_args!(
            "its header describes {covered} bytes of tensors, but {found} follow it"
        )));
    }
    Ok((metadata, data))
}

fn shown(dtype: Dtype, shape: &[usize]) -> String {
    Printable::new(format!("{dtype} {shape:?}")).to_string()
}
