//! One safetensors file: its header, written and read.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::check::{LENGTH, MOST_HEADER};
use crate::damage::Damage;
use crate::finite::first_not_finite;
use crate::manifest::TensorEntry;
use crate::printable::Printable;
use crate::tensor::Tensor;

/// What comes before the tensors, and the tensors in the order of the file.
pub(crate) struct Shard<'a> {
    pub(crate) header: Vec<u8>,
    pub(crate) tensors: Vec<&'a Tensor>,
}

impl<'a> Shard<'a> {
    /// A file of these tensors, whose lengths were checked.
    ///
    /// The order is that of the safetensors crate: wider types first, so that all are aligned, then by name.
    pub(crate) fn of(tensors: &[(&'a str, &'a Tensor)]) -> Result<Self, String> {
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
        // Transformers asks for the format.
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), infos).map_err(|error| error.to_string())?;
        let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
        text.resize(text.len().next_multiple_of(8), b' ');
        if text.len() as u64 > MOST_HEADER {
            return Err(format!("its header has {} bytes, of which {MOST_HEADER} are the most", text.len()));
        }
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.append(&mut text);
        Ok(Self { header, tensors: ordered.into_iter().map(|(_, tensor)| tensor).collect() })
    }
}

/// Adds the tensors of a file to `tensors`. They must be those of `entries`, and finite.
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

/// The header and what comes after it, which the tensors fill without gaps.
///
/// Not by `SafeTensors::deserialize`, whose sum of hostile offsets and lengths overflows.
fn split(contents: &Bytes) -> Result<(Metadata, Bytes), Damage> {
    let length = contents.first_chunk().map(|&length| u64::from_le_bytes(length));
    let length = length.ok_or_else(|| Damage::form("it is too short for a header"))?;
    let end = length.checked_add(LENGTH).filter(|&end| length <= MOST_HEADER && end <= contents.len() as u64);
    let end = end.ok_or_else(|| Damage::form(format_args!("its header has {length} bytes")))? as usize;
    let header = &contents[LENGTH as usize..end];
    let metadata: Metadata = serde_json::from_slice(header).map_err(Damage::form)?;
    let data = contents.slice(end..);
    if metadata.data_len() != data.len() {
        let (covered, found) = (metadata.data_len(), data.len());
        return Err(Damage::form(format_args!("its header covers {covered} bytes of {found}")));
    }
    Ok((metadata, data))
}

fn shown(dtype: Dtype, shape: &[usize]) -> String {
    Printable::new(format!("{dtype} {shape:?}")).to_string()
}
