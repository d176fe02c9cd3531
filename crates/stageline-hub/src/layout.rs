//! The description of a model to write, without values: its weights files, and the names, dtypes and shapes of the
//! tensors in them ([`Layout`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::{Map, Value};

use crate::error::FolderError;
use crate::folder::ModelFolder;
use crate::names::{ADAPTER_WEIGHTS, SINGLE};
use crate::refusal::Refusal;
use crate::tensor::byte_len;

/// A description of a model's weights files: the names, dtypes and shapes of their tensors, but no values.
///
/// [`ModelFolder::layout`] returns the layout of an existing model, so that a trained copy has the same files.
/// [`Layout::single`] creates a layout with one file. [`Layout::write`] asks for the values and writes the files.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(crate) files: Vec<FileLayout>,
    /// The `metadata` object of the index `model.safetensors.index.json`, which is written beside the weights files;
    /// `None` if no index is written.
    pub(crate) index: Option<Map<String, Value>>,
    /// The canonical path of the model folder that this layout was read from; `None` for a layout that was not made
    /// from an existing model.
    pub(crate) source: Option<PathBuf>,
}

/// A weights file of a [`Layout`]: its name, its tensors and the `__metadata__` entries of its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// The name of the weights file in its model folder.
    pub name: String,
    /// The tensors of the weights file, in the order of their bytes in the file.
    pub tensors: Vec<TensorLayout>,
    /// The `__metadata__` entries of the weights file's header, which are strings. An example is `format: pt`, which
    /// the Transformers library requires.
    pub metadata: BTreeMap<String, String>,
}

/// A tensor of a [`Layout`]: its name, dtype and shape, without values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLayout {
    /// The name of a tensor in the weights file to write.
    pub name: String,
    /// The dtype of the tensor in the weights file to write.
    pub dtype: Dtype,
    /// The length of each dimension of a tensor in the weights file to write.
    pub shape: Vec<usize>,
}

impl Layout {
    /// Creates a layout with the single file `model.safetensors` and no index.
    ///
    /// The tensors are in the order of the safetensors crate: larger dtypes first, so that all tensors are aligned, and
    /// then by name.
    ///
    /// # Errors
    /// Returns [`FolderError::Refused`] if two tensors have the same name, a name is reserved, or a size is invalid.
    /// The size of each tensor, and of all tensors together, must be a whole number of bytes that does not overflow.
    pub fn single(tensors: impl IntoIterator<Item = TensorLayout>) -> Result<Self, FolderError> {
        Self::of_file(SINGLE, tensors)
    }

    /// Creates a layout with the single file `adapter_model.safetensors`, for the weights of an adapter.
    ///
    /// # Errors
    /// Returns [`FolderError::Refused`] in the same cases as [`single`](Self::single).
    pub fn adapter(tensors: impl IntoIterator<Item = TensorLayout>) -> Result<Self, FolderError> {
        Self::of_file(ADAPTER_WEIGHTS, tensors)
    }

    fn of_file(name: &str, tensors: impl IntoIterator<Item = TensorLayout>) -> Result<Self, FolderError> {
        let mut tensors: Vec<TensorLayout> = tensors.into_iter().collect();
        check(&tensors).map_err(|reason| FolderError::refused(Path::new(name), reason))?;
        sort(&mut tensors);
        let file = FileLayout { name: name.to_owned(), tensors, metadata: with_format(BTreeMap::new()) };
        Ok(Self { files: vec![file], index: None, source: None })
    }

    /// Whether this layout writes an adapter's weights (`adapter_model.safetensors`) and not a model's.
    pub(crate) fn is_adapter(&self) -> bool {
        self.files.iter().any(|file| file.name == ADAPTER_WEIGHTS)
    }

    /// Returns this layout's weights files in writing order, each with its name, tensors and `__metadata__` entries.
    pub fn files(&self) -> &[FileLayout] {
        &self.files
    }

    /// Returns the name, dtype and shape of each tensor in this layout, over all weights files, in writing order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorLayout> {
        self.files.iter().flat_map(|file| &file.tensors)
    }

    /// Changes the dtype that the tensor `name` will have in its weights file. Returns the changed layout. An unknown
    /// name is ignored.
    #[must_use]
    pub fn with_type(mut self, name: &str, dtype: Dtype) -> Self {
        let mut tensors = self.files.iter_mut().flat_map(|file| &mut file.tensors);
        if let Some(tensor) = tensors.find(|tensor| tensor.name == name && tensor.dtype != dtype) {
            tensor.dtype = dtype;
            self.forget_total();
        }
        self
    }

    /// Adds a tensor to the last weights file to write, or replaces the dtype and shape of the tensor with the same
    /// name, and returns the changed layout. The file's tensors are then sorted as by [`single`](Self::single): larger
    /// dtypes first, then by name.
    ///
    /// # Errors
    /// Returns [`FolderError::Refused`] in the same cases as [`single`](Self::single).
    pub fn with(mut self, tensor: TensorLayout) -> Result<Self, FolderError> {
        let has = |file: &FileLayout| file.tensors.iter().any(|other| other.name == tensor.name);
        let file = self.files.iter().position(has).or(self.files.len().checked_sub(1));
        let Some(file) = file.map(|index| &mut self.files[index]) else { return Self::single([tensor]) };
        match file.tensors.iter_mut().find(|other| other.name == tensor.name) {
            Some(other) => *other = tensor,
            None => file.tensors.push(tensor),
        }
        check(&file.tensors).map_err(|reason| FolderError::refused(Path::new(&file.name), reason))?;
        sort(&mut file.tensors);
        self.forget_total();
        Ok(self)
    }

    /// Leaves out the tensors for whose names `is_removed` returns true, and returns the changed layout. If the layout
    /// has an index, files that are left without tensors are removed as well.
    #[must_use]
    pub fn without(mut self, is_removed: impl Fn(&str) -> bool) -> Self {
        if self.tensors().any(|tensor| is_removed(&tensor.name)) {
            self.files.iter_mut().for_each(|file| file.tensors.retain(|tensor| !is_removed(&tensor.name)));
            self.files.retain(|file| self.index.is_none() || !file.tensors.is_empty());
            self.forget_total();
        }
        self
    }

    /// Removes `total_size` and `total_parameters` from the index's metadata after the layout has changed, because they
    /// are wrong then. [`write`](Self::write) adds the new `total_size`.
    fn forget_total(&mut self) {
        if let Some(metadata) = &mut self.index {
            metadata.remove("total_size");
            metadata.remove("total_parameters");
        }
    }

    /// Returns the total size in bytes of all tensors of the model, without the headers of the weights files.
    pub fn total_bytes(&self) -> u64 {
        let bytes = |tensor: &TensorLayout| byte_len(tensor.dtype, &tensor.shape).map_or(0, |bytes| bytes as u64);
        self.tensors().map(bytes).fold(0, u64::saturating_add)
    }
}

impl ModelFolder {
    /// Returns the layout of an open model: its files, and the names, dtypes and shapes of their tensors. With this
    /// layout, [`Layout::write`] writes a copy of the model with new values, but the same files, tensors and metadata.
    ///
    /// # Errors
    /// Returns [`FolderError::Read`] if the folder has been removed since it was opened.
    pub fn layout(&self) -> Result<Layout, FolderError> {
        let source = fs::canonicalize(self.path()).map_err(FolderError::read(self.path()))?;
        let files = self.files().iter().enumerate().map(|(index, file)| FileLayout {
            name: file.name.clone(),
            tensors: self
                .tensors_of(index)
                .into_iter()
                .map(|(name, info)| TensorLayout {
                    name: name.to_owned(),
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                })
                .collect(),
            metadata: with_format(file.metadata.clone()),
        });
        Ok(Layout { files: files.collect(), index: self.index().cloned(), source: Some(source) })
    }
}

/// Adds the entry `format: pt`, which the Transformers library requires, to the `__metadata__` entries of a weights
/// file's header. An existing `format` stays as it is.
fn with_format(mut metadata: BTreeMap<String, String>) -> BTreeMap<String, String> {
    metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
    metadata
}

/// Sorts the tensors of one weights file into the order of the safetensors crate: larger dtypes first, so that all
/// tensors are aligned. Tensors with the same dtype are sorted by name.
fn sort(tensors: &mut [TensorLayout]) {
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
}

/// Checks the tensors of one weights file. Their names must be unique and not reserved. Their sizes must be whole
/// numbers of bytes whose sum does not overflow.
fn check(tensors: &[TensorLayout]) -> Result<(), Refusal> {
    let mut names = BTreeSet::new();
    let mut total = 0usize;
    for TensorLayout { name, dtype, shape } in tensors {
        if name == "__metadata__" {
            return Err(Refusal::Reserved { tensor: name.clone() });
        }
        if !names.insert(name) {
            return Err(Refusal::Twice { tensor: name.clone() });
        }
        let sum = byte_len(*dtype, shape).and_then(|bytes| total.checked_add(bytes));
        total = sum.ok_or_else(|| Refusal::Size { tensor: name.clone(), dtype: *dtype, lengths: shape.clone() })?;
    }
    Ok(())
}
