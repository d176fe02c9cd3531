//! Fuzzes the reading of model folders: the input replaces one file of a valid folder (its configuration, its index or
//! its weights), which is then opened, read and written again.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use stageline_hub::{Dtype, FolderError, ModelFolder, TensorView, Values};
use tempfile::TempDir;

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
/// The name of the weights file in a model folder without an index.
const SINGLE: &str = "model.safetensors";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// The byte that separates the header of a weights file from its data in a fuzz input.
const BORDER: u8 = b'|';

const CONFIG_TEXT: &str = r#"{"model_type": "llama", "hidden_size": 2}"#;
const INDEX_TEXT: &str = r#"{"metadata": {"total_size": 32}, "weight_map": {
  "h.0.weight": "model-00001-of-00002.safetensors",
  "h.1.weight": "model-00001-of-00002.safetensors",
  "lm_head.weight": "model-00002-of-00002.safetensors",
  "positions": "model-00002-of-00002.safetensors"
}}"#;
const HEADERS: [&str; 2] = [
    r#"{"__metadata__":{"format":"pt"},
"h.0.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
"h.1.weight":{"dtype":"F16","shape":[2],"data_offsets":[8,12]}}"#,
    r#"{"positions":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},
"lm_head.weight":{"dtype":"BF16","shape":[1,2],"data_offsets":[16,20]}}"#,
];
/// The data (the bytes of the tensors) of the two weights files of a valid model folder. All values are finite.
const DATA: [&[u8]; 2] = [b"\0\0\xc0\x3f\0\0\0\xc0\0\x3c\0\xc0", b"\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x80\x3f\x40\xc0"];

/// The contents of a model folder's files, by the files' names.
type Files = BTreeMap<&'static str, Vec<u8>>;

/// Opens and reads the model folder that a fuzz input describes. Asserts that the contents are read correctly, or that
/// the error names the faulty file.
///
/// The first byte chooses one file of a valid folder, and the rest of the input replaces this file:
///
/// - 0 for the configuration, and 1 for the index.
/// - 2 and 3 for the two weights files, and 4 for the weights file of a folder without an index. The rest is the file's
///   header, a separator byte and the data. The right header length is added.
/// - 5, 6 and 7 for the same files as 2, 3 and 4. The rest is the whole file, header length included.
pub fn model_folder(bytes: &[u8]) {
    let Some((&part, contents)) = bytes.split_first().filter(|_| bytes.len() <= LIMIT) else { return };
    let mut files = valid().clone();
    let replaced = match part.wrapping_sub(b'0') % 8 {
        0 => CONFIG,
        1 => INDEX,
        2 | 5 => SHARDS[0],
        3 | 6 => SHARDS[1],
        _ => {
            files.retain(|name, _| *name == CONFIG);
            SINGLE
        }
    };
    let is_divided = matches!(part.wrapping_sub(b'0') % 8, 2..=4);
    files.insert(replaced, if is_divided { weights(contents) } else { contents.to_vec() });
    let root = folder(&files);
    match ModelFolder::open(root.path()) {
        Ok(folder) => {
            assert_read(&folder, &files);
            assert_round_trips(&folder, &files);
        }
        Err(error) => {
            assert_shown(&error);
            assert_refused(&error, root.path(), replaced);
        }
    }
}

/// Returns the files of a valid model folder, which has an index.
fn valid() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        let shard = |i: usize| (SHARDS[i], file(HEADERS[i].as_bytes(), DATA[i]));
        let files = Files::from([(CONFIG, CONFIG_TEXT.into()), (INDEX, INDEX_TEXT.into()), shard(0), shard(1)]);
        let root = folder(&files);
        assert_read(&ModelFolder::open(root.path()).expect("it is valid"), &files);
        files
    })
}

fn folder(files: &Files) -> TempDir {
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let root = root.expect("temporary folders can be made");
    for (name, contents) in files {
        fs::write(root.path().join(name), contents).expect("files can be made");
    }
    root
}

/// Returns a weights file with the given header and data. The right header length is added.
fn file(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// Returns a weights file made from `contents`, in which a separator byte divides the header from the data. Without a
/// separator byte, the file has no data.
fn weights(contents: &[u8]) -> Vec<u8> {
    let mut parts = contents.splitn(2, |&byte| byte == BORDER);
    file(parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// Asserts that the messages of an error about a model folder, and of its causes, are short and have no control
/// characters.
fn assert_shown(error: &FolderError) {
    let mut texts = vec![error.to_string(), format!("{error:?}")];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    for text in texts {
        assert!(!text.is_empty() && text.len() <= FolderError::MOST_BYTES, "{} bytes: {text}", text.len());
        assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text:?}");
    }
}

/// Asserts that the error of a rejected model folder names a file at fault. This is the file that the fuzz input
/// replaced. If it replaced the index (the list of weights files), it may also be a file named there.
fn assert_refused(error: &FolderError, root: &Path, replaced: &str) {
    let is_index = replaced == INDEX;
    match error {
        FolderError::Malformed { path, .. } => assert_eq!(path, &root.join(replaced), "{error}"),
        FolderError::MissingFile { path, .. } => {
            assert!(is_index && path.parent() == Some(root) && !path.exists(), "{error}");
        }
        // A name can be too long for the file system.
        FolderError::Read { path, .. } => assert!(is_index && path.parent() == Some(root), "{error}"),
        FolderError::FileName { path, .. } => assert!(is_index && path == &root.join(INDEX), "{error}"),
        FolderError::NotInFile { path, .. } => {
            assert!(is_index && path.is_file() || path == &root.join(replaced), "{error}");
        }
        FolderError::Twice { path, first, second, .. } => {
            assert_eq!((path.as_path(), first.as_str(), second.as_str()), (root, SHARDS[0], SHARDS[1]));
            assert!(SHARDS.contains(&replaced), "{error}");
        }
        other => panic!("{other}"),
    }
}

/// Asserts that an opened model folder has its configuration, all tensors of its index, and every byte of its weights
/// files.
fn assert_read(folder: &ModelFolder, files: &Files) {
    let json = |name| serde_json::from_slice::<Value>(&files[name]).expect("it was read");
    let config = folder.config().expect("the folder has a configuration");
    assert_eq!(config, &json(CONFIG));
    assert!(config.is_object());
    let tensors: BTreeMap<_, _> = folder.tensors().collect();
    let mut names = BTreeSet::from([SINGLE.to_owned()]);
    if files.contains_key(INDEX) {
        let index = json(INDEX);
        let places = index["weight_map"].as_object().expect("it was read");
        assert!(places.iter().all(|(name, file)| *file == tensors[name.as_str()].file));
        names = places.values().map(|file| file.as_str().expect("it was read").to_owned()).collect();
    }
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for name in &names {
        let contents = &files[name.as_str()];
        let header = u64::from_le_bytes(*contents.first_chunk().expect("it has a length")) as usize;
        left.insert(name, contents.len() - 8 - header);
    }
    for (name, info) in tensors {
        let tensor = folder.expect(name, &info.shape).expect("it is listed");
        assert_eq!((tensor.name, tensor.dtype, tensor.shape), (name, info.dtype, info.shape.as_slice()));
        let left = left.get_mut(info.file.as_str()).expect("it is a file of the model");
        *left = left.checked_sub(tensor.bytes.len()).expect("there are as many bytes");
        assert_converted(&tensor);
        let wrong = [folder.expect(name, &[7, 7, 7]).err(), folder.tensor(&format!("{name}?")).err()];
        wrong.iter().flatten().for_each(assert_shown);
    }
    assert!(left.values().all(|&bytes| bytes == 0), "{left:?}");
}

/// Asserts that a tensor of a model folder has as many bytes as its shape and type need. If it has 16-bit or 32-bit
/// floats, they must be converted to f32 exactly.
fn assert_converted(tensor: &TensorView) {
    let elements = tensor.shape.iter().map(|&length| length as u128);
    let elements = if tensor.shape.contains(&0) { 0 } else { elements.product() };
    assert_eq!(tensor.bytes.len() as u128 * 8, elements * tensor.dtype.bitsize() as u128);
    let is_float = matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
    match tensor.to_f32() {
        Ok(values) => {
            assert!(is_float && values.len() as u128 == elements);
            let bits = || values.iter().flat_map(|value| value.to_le_bytes());
            assert!(tensor.dtype != Dtype::F32 || bits().eq(tensor.bytes.iter().copied()));
        }
        Err(error) => {
            assert!(!is_float && matches!(error, FolderError::Dtype { .. }), "{error}");
            assert_shown(&error);
        }
    }
}

/// Asserts that a model folder, written again with its own layout and read back, has the same tensors.
fn assert_round_trips(folder: &ModelFolder, files: &Files) {
    let copy = self::folder(&Files::from([(CONFIG, files[CONFIG].clone())]));
    let layout = folder.layout().expect("the folder exists");
    let values = |name: &str| {
        let tensor = folder.tensor(name)?;
        Ok::<_, FolderError>(tensor.to_f32().map_or_else(|_| tensor.into(), Values::F32))
    };
    layout.write(copy.path(), values).expect("it was read");
    let again = ModelFolder::open(copy.path()).expect("it was written");
    assert!(again.tensors().eq(folder.tensors()));
    for (name, _) in folder.tensors() {
        let [old, new] = [folder, &again].map(|folder| folder.tensor(name).expect("it is listed"));
        let has_nan = || old.to_f32().is_ok_and(|values| values.iter().any(|value| value.is_nan()));
        assert!(old.bytes == new.bytes || has_nan(), "{name:?}: {:?} is now {:?}", old.bytes, new.bytes);
    }
}
