//! A model folder (a model's `config.json` and its weights files) that is open for reading: [`ModelFolder`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde_json::{Map, Value};

use crate::disk;
use crate::error::FolderError;
use crate::index::Index;
use crate::names::{ADAPTER, ADAPTER_WEIGHTS, CONFIG, GENERATION_CONFIG, INDEX, PICKLED, PICKLED_ADAPTER, SINGLE};
use crate::similar::similar;
use crate::tensor::{TensorInfo, TensorView};
use crate::weights::WeightsFile;

/// The number of elements that are read at a time from each of two tensors when their values are compared.
const PART: usize = 1 << 20;

/// A model folder that is open for reading. Its weights files are mapped into memory, and their headers have been
/// checked.
pub struct ModelFolder {
    path: PathBuf,
    /// The contents of the model folder's `config.json`; `None` for a folder without this file.
    config: Option<Value>,
    /// The contents of the model folder's `generation_config.json`; `None` for a folder without this file.
    generation_config: Option<Value>,
    /// The `metadata` object of the model folder's index (`model.safetensors.index.json`); `None` for a folder without
    /// an index.
    index: Option<Map<String, Value>>,
    files: Vec<WeightsFile>,
    tensors: BTreeMap<String, Tensor>,
}

/// A tensor's dtype and shape, and the position of its bytes in the weights files.
struct Tensor {
    info: TensorInfo,
    /// Zero-based index, in `ModelFolder::files`, of the tensor's weights file.
    file: usize,
    /// The tensor's byte range in its weights file, counted from the end of the file's header.
    offsets: Range<usize>,
}

impl ModelFolder {
    /// Opens a model folder: reads its JSON files, maps its weights files into memory and checks their headers. The
    /// JSON files are the index and, if they exist, `config.json` and `generation_config.json`.
    ///
    /// The weights are in `model.safetensors`, or else in the files that the index `model.safetensors.index.json`
    /// names. If a folder has both, only `model.safetensors` is read, as in the Transformers library. A tensor in a
    /// named file that the index does not list is part of the model too.
    ///
    /// # Errors
    /// Returns an error that names the file and the reason in each of these cases:
    /// - A file is missing, unreadable, malformed or truncated.
    /// - The weights are pickled.
    /// - The folder has an adapter, such as LoRA.
    /// - The index names a file outside the folder, or a tensor that its file lacks.
    /// - Two files contain a tensor with the same name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FolderError> {
        let path = path.as_ref();
        require_folder(path)?;
        if disk::has(path, ADAPTER) {
            return Err(FolderError::Adapter { path: path.join(ADAPTER) });
        }
        let index = match disk::has(path, INDEX) && !disk::has(path, SINGLE) {
            true => Some(Index::read(&path.join(INDEX))?),
            false => require_single(path).map(|()| None)?,
        };
        let json = |name| {
            let read = || disk::read_json(&path.join(name), "a link in the folder leads to it").map(Value::Object);
            disk::has(path, name).then(read).transpose()
        };
        let (config, generation_config) = (json(CONFIG)?, json(GENERATION_CONFIG)?);
        let (names, reason) = match &index {
            Some(index) => (index.files(), "model.safetensors.index.json names it"),
            None => (vec![SINGLE], "it has the weights"),
        };
        let mut folder = Self {
            path: path.to_path_buf(),
            config,
            generation_config,
            index: None,
            files: Vec::with_capacity(names.len()),
            tensors: BTreeMap::new(),
        };
        for name in names {
            folder.add(name, reason)?;
        }
        if let Some(index) = index {
            folder.check(&index)?;
            folder.index = Some(index.metadata);
        }
        Ok(folder)
    }

    /// Opens an adapter folder, as the library PEFT writes it: `adapter_config.json`, which [`config`](Self::config)
    /// returns, and `adapter_model.safetensors`. The adapter's weights are mapped into memory, and only their header is
    /// read.
    ///
    /// # Errors
    /// Returns an error if the path does not lead to a folder. If one of the two files is missing or cannot be read,
    /// the error names the file. If the adapter has only pickled weights (`adapter_model.bin`), the error is
    /// [`FolderError::Pickled`].
    pub fn open_adapter(path: impl AsRef<Path>) -> Result<Self, FolderError> {
        let path = path.as_ref();
        require_folder(path)?;
        let config = disk::read_json(&path.join(ADAPTER), "it describes the adapter")?;
        if !disk::has(path, ADAPTER_WEIGHTS) && disk::has(path, PICKLED_ADAPTER) {
            return Err(FolderError::Pickled { path: path.join(PICKLED_ADAPTER) });
        }
        let mut folder = Self {
            path: path.to_path_buf(),
            config: Some(Value::Object(config)),
            generation_config: None,
            index: None,
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        folder.add(ADAPTER_WEIGHTS, "it has the weights of the adapter")?;
        Ok(folder)
    }

    /// Maps the weights file `name` into memory and adds its tensors to the model folder's. Returns an error if another
    /// weights file has a tensor with the same name. If the file is missing, the error quotes `reason`, which says why
    /// the folder must have it.
    fn add(&mut self, name: &str, reason: &'static str) -> Result<(), FolderError> {
        let (file, tensors) = WeightsFile::open(&self.path, name, reason)?;
        for (tensor, info) in tensors {
            match self.tensors.entry(tensor) {
                Entry::Vacant(entry) => {
                    _ = entry.insert(Tensor {
                        info: TensorInfo { dtype: info.dtype, shape: info.shape, file: name.to_owned() },
                        file: self.files.len(),
                        offsets: info.data_offsets.0..info.data_offsets.1,
                    })
                }
                Entry::Occupied(entry) => {
                    let (path, second) = (self.path.clone(), name.to_owned());
                    let (tensor, first) = (entry.key().clone(), entry.get().info.file.clone());
                    return Err(FolderError::Twice { path, tensor, first, second });
                }
            }
        }
        self.files.push(file);
        Ok(())
    }

    /// Checks that each tensor in the index is in the weights file that the index names for it.
    fn check(&self, index: &Index) -> Result<(), FolderError> {
        let is_there = |name: &str, file: &str| self.tensors.get(name).is_some_and(|tensor| tensor.info.file == file);
        match index.weight_map.iter().find(|(name, file)| !is_there(name, file)) {
            Some((name, file)) => Err(FolderError::NotInFile { path: self.path.join(file), tensor: name.clone() }),
            None => Ok(()),
        }
    }

    /// Returns the model folder's path, as the caller gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the contents of a model folder's `config.json`, which is a JSON object.
    ///
    /// # Errors
    /// Returns [`FolderError::MissingFile`] if the folder has no such file.
    pub fn config(&self) -> Result<&Value, FolderError> {
        let missing = || FolderError::MissingFile { path: self.path.join(CONFIG), reason: "it describes the model" };
        self.config.as_ref().ok_or_else(missing)
    }

    /// Returns the contents of a model folder's `generation_config.json`, which is a JSON object; `None` if the folder
    /// has no such file.
    pub fn generation_config(&self) -> Option<&Value> {
        self.generation_config.as_ref()
    }

    /// Returns the name, dtype, shape and weights file of each tensor in the model folder, ordered by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), &tensor.info))
    }

    /// Whether the model folder has a tensor with the name `name`.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the tensor with the name `name` from the model folder, without copying its bytes.
    ///
    /// # Errors
    /// Returns [`FolderError::MissingTensor`] if no weights file contains the tensor. The error contains the most
    /// similar tensor names, and the path of the index or of the only weights file.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, FolderError> {
        let Some((name, tensor)) = self.tensors.get_key_value(name) else {
            let similar = similar(name, self.tensors.keys().map(String::as_str));
            let listed = self.weights_name();
            return Err(FolderError::MissingTensor { path: self.path.join(listed), tensor: name.to_owned(), similar });
        };
        let file = &self.files[tensor.file];
        let TensorInfo { dtype, shape, .. } = &tensor.info;
        Ok(TensorView { name, dtype: *dtype, shape, bytes: file.bytes(&tensor.offsets), path: &file.path })
    }

    /// Lets the operating system drop a tensor's memory pages, to free host memory once the values have been copied.
    /// The tensor stays readable, because its pages are read from the file again when needed. An unknown name is
    /// ignored.
    pub fn release(&self, name: &str) {
        if let Some(tensor) = self.tensors.get(name) {
            self.files[tensor.file].release(&tensor.offsets);
        }
    }

    /// Whether two tensors of the model folder have the same shape, and the same values after conversion to f32. As in
    /// PyTorch, NaN differs from NaN. Only a part of each tensor is in memory at a time.
    ///
    /// # Errors
    /// - [`FolderError::MissingTensor`] if no weights file contains one of the tensors.
    /// - [`FolderError::Dtype`] if a tensor's dtype is not F32, F16 or BF16.
    pub fn has_same_values(&self, name: &str, other: &str) -> Result<bool, FolderError> {
        let shape = self.tensor(name)?.shape;
        if shape != self.tensor(other)?.shape {
            return Ok(false);
        }
        let elements: usize = shape.iter().product();
        for start in (0..elements).step_by(PART) {
            let part = start..elements.min(start + PART);
            if self.part(name, part.clone())? != self.part(other, part)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Converts a range of a tensor's elements to f32, then lets the operating system drop their memory pages, so that
    /// comparing large tensors needs little host memory.
    fn part(&self, name: &str, elements: Range<usize>) -> Result<Vec<f32>, FolderError> {
        let whole = self.tensor(name)?;
        let size = whole.dtype.bitsize() / 8;
        let bytes = elements.start * size..elements.end * size;
        let values = TensorView { bytes: &whole.bytes[bytes.clone()], ..whole }.to_f32();
        if let Some(tensor) = self.tensors.get(name) {
            let start = tensor.offsets.start;
            self.files[tensor.file].release(&(start + bytes.start..start + bytes.end));
        }
        values
    }

    /// Returns the tensor with the name `name` from the model folder, after a check that its shape is `shape`.
    ///
    /// # Errors
    /// - [`FolderError::MissingTensor`] if no weights file contains the tensor.
    /// - [`FolderError::Shape`] if the tensor has a different shape.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<TensorView<'_>, FolderError> {
        let tensor = self.tensor(name)?;
        if tensor.shape == shape {
            return Ok(tensor);
        }
        let (path, found, expected) = (tensor.path.to_path_buf(), tensor.shape.to_vec(), shape.to_vec());
        Err(FolderError::Shape { path, tensor: name.to_owned(), found, expected })
    }

    /// Returns the name of the file that defines the weights: `model.safetensors`, the index that lists the weights
    /// files, or `adapter_model.safetensors` of an adapter.
    pub fn weights_name(&self) -> &str {
        match self.files.as_slice() {
            [only] if self.index.is_none() => only.name.as_str(),
            _ => INDEX,
        }
    }

    /// Returns the weights files of the model, sorted by name.
    pub(crate) fn files(&self) -> &[WeightsFile] {
        &self.files
    }

    /// Returns the `metadata` object of the model folder's index (`model.safetensors.index.json`); `None` for a folder
    /// without an index.
    pub(crate) fn index(&self) -> Option<&Map<String, Value>> {
        self.index.as_ref()
    }

    /// Returns the name, dtype and shape of each tensor in a weights file, in the order of the tensors' bytes. `file`
    /// is the zero-based index of the weights file in `ModelFolder::files`.
    pub(crate) fn tensors_of(&self, file: usize) -> Vec<(&str, &TensorInfo)> {
        let mut tensors: Vec<_> = self.tensors.iter().filter(|(_, tensor)| tensor.file == file).collect();
        tensors.sort_by_key(|(_, tensor)| (tensor.offsets.start, tensor.offsets.end));
        tensors.into_iter().map(|(name, tensor)| (name.as_str(), &tensor.info)).collect()
    }
}

impl fmt::Debug for ModelFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, tensors) = (self.files.len(), self.tensors.len());
        f.debug_struct("ModelFolder")
            .field("path", &self.path)
            .field("files", &files)
            .field("tensors", &tensors)
            .finish()
    }
}

fn require_folder(path: &Path) -> Result<(), FolderError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(FolderError::NotAFolder { path: path.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(FolderError::PathNotFound { path: path.to_path_buf() })
        }
        Err(error) => Err(FolderError::read(path)(error)),
    }
}

/// Checks that the model folder at `path`, if it has no index, contains `model.safetensors`. If not, the error says
/// whether the folder has pickled weights or none at all.
fn require_single(path: &Path) -> Result<(), FolderError> {
    if disk::has(path, SINGLE) {
        return Ok(());
    }
    Err(match PICKLED.into_iter().find(|name| disk::has(path, name)) {
        Some(name) => FolderError::Pickled { path: path.join(name) },
        None => FolderError::NoWeights { path: path.to_path_buf() },
    })
}
