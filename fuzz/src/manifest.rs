//! Fuzzes the reading of checkpoints: the input replaces one file of an undamaged checkpoint (its manifest with or
//! without a valid seal, its tensors or its index), which is then opened and read.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};
use stageline_checkpoint::{
    Checkpoint, CheckpointError, Damage, Dtype, FrozenTensor, LossScale, Manifest, Progress, Saved, Store, Tensor,
};
use tempfile::TempDir;

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

const MANIFEST: &str = "manifest.json";
const INDEX: &str = "model.safetensors.index.json";
/// The name of the checkpoint's tensor file that a fuzz input replaces. This file has optimizer state. A file with
/// parameters would also have to agree with the file `model.safetensors.index.json`, which lists all parameters.
const TENSORS: &str = "optimizer/head.safetensors";
const OLDER: &str = "000001-step-1";
const LATEST: &str = "000002-step-7";

/// The byte that separates two parts of a fuzz input: a manifest from its tensor file, or a tensor file's header from
/// its data.
const BORDER: u8 = b'|';
/// The placeholder in a fuzz input for the size in bytes of the tensor file.
const BYTES: &str = "?bytes";
/// The placeholder in a fuzz input for the SHA-256 of the tensor file.
const SHA256: &str = "?sha256";

/// The text before the digits of a manifest's seal (its SHA-256).
const BEFORE: &str = ",\n  \"sha256\": \"";
/// The text after the digits of a manifest's seal (its SHA-256).
const AFTER: &str = "\"\n}\n";

/// The contents of a checkpoint's files, by the files' names.
type Files = BTreeMap<String, Vec<u8>>;

/// Opens and reads the checkpoint that a fuzz input describes. Asserts that the result is right, or that the error
/// names the damaged file.
///
/// The first byte chooses the meaning of the rest. It is 0 for a manifest, 1 for a manifest that gets a valid seal, 2
/// for a tensor file, and 3 for an index. With 1, a tensor file may follow the manifest. With 2 and 3, the manifest
/// gets the right size and hash of the replaced file. All other files are undamaged.
pub fn manifest(bytes: &[u8]) {
    let Some((&part, contents)) = bytes.split_first().filter(|_| bytes.len() <= LIMIT) else { return };
    let mut files = sound().clone();
    match part.wrapping_sub(b'0') % 4 {
        0 => _ = files.insert(MANIFEST.to_owned(), contents.to_vec()),
        1 => seal(&mut files, contents),
        2 => replace(&mut files, TENSORS, &tensors(contents)),
        _ => replace(&mut files, INDEX, contents),
    }
    let root = folder();
    fs::create_dir(root.path().join(OLDER)).expect("folders can be made");
    let latest = root.path().join(LATEST);
    for (name, contents) in &files {
        let path = latest.join(name);
        fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("folders can be made");
        fs::write(path, contents).expect("files can be made");
    }
    let saved = match Saved::open(root.path()) {
        Ok(saved) => saved,
        Err(error) => return assert_error(&error, root.path(), &files),
    };
    assert_eq!(saved.path(), latest);
    assert_manifest(saved.manifest(), &files);
    match saved.read() {
        Ok(checkpoint) => {
            assert_read(&checkpoint, saved.manifest(), &files);
            assert_round_trips(&checkpoint, &root.path().join("again"));
        }
        Err(error) => assert_error(&error, root.path(), &files),
    }
}

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary folders can be made")
}

/// Returns the files of an undamaged checkpoint, whose tensors have many element types and shapes.
fn sound() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        let of = |dtype, shape: &[usize], bytes: &[u8]| Tensor::new(dtype, shape.to_vec(), bytes.to_vec().into());
        let parameters = [("blocks.0.w", of(Dtype::F32, &[2], &[0; 8])), ("head.w", of(Dtype::BF16, &[1, 2], &[0; 4]))];
        let optimizer = [
            ("head.w/c", of(Dtype::C64, &[1], &[0; 8])),
            ("head.w/d", of(Dtype::F64, &[], &[0; 8])),
            ("head.w/e", of(Dtype::F32, &[0, 3], &[])),
            ("head.w/f", of(Dtype::F4, &[2], &[0])),
            ("head.w/h", of(Dtype::F16, &[2], &[0; 4])),
            ("head.w/t", of(Dtype::I64, &[], &[7, 0, 0, 0, 0, 0, 0, 0])),
        ];
        let checkpoint = Checkpoint {
            progress: Progress {
                steps: 7,
                optimizer_steps: 7,
                loss_scale: Some(LossScale { scale: 1.0, good_steps: 7 }),
            },
            run: BTreeMap::from([("seed".to_owned(), 7.into())]),
            parameters: parameters.map(|(name, tensor)| (name.to_owned(), tensor)).into(),
            optimizer: optimizer.map(|(name, tensor)| (name.to_owned(), tensor)).into(),
            frozen: BTreeMap::from([("blocks.0.base".to_owned(), FrozenTensor::of(&of(Dtype::U8, &[1], &[0])))]),
        };
        let root = folder();
        let mut store = Store::open(root.path(), NonZero::<usize>::MIN).expect("folders can be made");
        let path = store.save(&checkpoint).expect("it can be written");
        let saved = Saved::open(&path).expect("it was written");
        assert_eq!(saved.read().expect("it was written"), checkpoint);
        let listed = saved.manifest().files.iter().map(|file| file.name.clone());
        let contents = |name: &String| fs::read(path.join(name)).expect("it was read before");
        let files: Files = listed.chain([MANIFEST.to_owned()]).map(|name| (name.clone(), contents(&name))).collect();
        for name in [TENSORS, INDEX] {
            let mut same = files.clone();
            replace(&mut same, name, &files[name]);
            assert_eq!(same, files, "what is replaced by itself stays");
        }
        files
    })
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a JSON object as text with a seal, its SHA-256, added as the last field.
fn sealed(object: &[u8]) -> Vec<u8> {
    let object = object.trim_ascii_end();
    let body = object.strip_suffix(b"}").unwrap_or(object).trim_ascii_end();
    [body, BEFORE.as_bytes(), sha256(body).as_bytes(), AFTER.as_bytes()].concat()
}

/// Whether a manifest ends with a valid seal (its SHA-256).
fn is_sealed(manifest: &[u8]) -> bool {
    let body = manifest.len().checked_sub(BEFORE.len() + 64 + AFTER.len()).map(|length| &manifest[..length]);
    body.is_some_and(|body| [body, BEFORE.as_bytes(), sha256(body).as_bytes(), AFTER.as_bytes()].concat() == manifest)
}

/// Returns a tensor file made from `contents`, in which a separator byte divides the header from the data. The right
/// header length is added. Without a separator byte, `contents` are returned unchanged.
fn tensors(contents: &[u8]) -> Vec<u8> {
    match contents.iter().position(|&byte| byte == BORDER) {
        Some(length) => [&(length as u64).to_le_bytes(), &contents[..length], &contents[length + 1..]].concat(),
        None => contents.to_vec(),
    }
}

/// Takes a manifest from `contents`, gives it a valid seal (its SHA-256), and replaces the manifest in `files` by it.
/// If `contents` has a separator byte, the bytes after it replace the tensor file.
fn seal(files: &mut Files, contents: &[u8]) {
    let mut parts = contents.splitn(2, |&byte| byte == BORDER);
    let object = parts.next().unwrap_or_default();
    if let Some(contents) = parts.next() {
        files.insert(TENSORS.to_owned(), tensors(contents));
    }
    let tensors = &files[TENSORS];
    let object = match str::from_utf8(object) {
        Ok(text) => text.replace(BYTES, &tensors.len().to_string()).replace(SHA256, &sha256(tensors)).into_bytes(),
        Err(_) => object.to_vec(),
    };
    files.insert(MANIFEST.to_owned(), sealed(&object));
}

/// Replaces a file of the checkpoint in `files`, and the file's size and hash in the manifest.
fn replace(files: &mut Files, name: &str, contents: &[u8]) {
    let entry = |file: &[u8]| format!("\"bytes\": {},\n      \"sha256\": \"{}\"", file.len(), sha256(file));
    let manifest = str::from_utf8(&files[MANIFEST]).expect("it is JSON");
    let (object, _) = manifest.rsplit_once(BEFORE).expect("it is sealed");
    assert!(object.contains(&entry(&files[name])), "{object}");
    let object = object.replace(&entry(&files[name]), &entry(contents)) + "\n}";
    files.insert(MANIFEST.to_owned(), sealed(object.as_bytes()));
    files.insert(name.to_owned(), contents.to_vec());
}

/// Asserts that the error of opening a checkpoint names a file of the latest checkpoint. An error about damage must
/// also name the older checkpoint.
fn assert_error(error: &CheckpointError, root: &Path, files: &Files) {
    let latest = root.join(LATEST);
    match error {
        CheckpointError::Damaged { path, damage, older } => {
            let inside = path.strip_prefix(&latest).expect("it lies in the checkpoint");
            assert!(inside.components().all(|part| matches!(part, Component::Normal(_))), "{error}");
            assert!(is_sealed(&files[MANIFEST]) || inside == Path::new(MANIFEST), "{error}");
            assert!(!matches!(**damage, Damage::Memory { .. } | Damage::Io(_)), "the files are small: {error}");
            assert_eq!(older, &Some(root.join(OLDER)));
            assert!(error.to_string().starts_with(&format!("{} {damage}; ", path.display())));
        }
        CheckpointError::Newer { path, found, known } => {
            assert_eq!((path, known), (&latest.join(MANIFEST), &1));
            assert!(*found > 1 && is_sealed(&files[MANIFEST]), "{error}");
        }
        other => panic!("{other}"),
    }
}

/// Asserts that an accepted manifest has a valid seal (its SHA-256), and that the files that it lists are large enough
/// for their tensors.
fn assert_manifest(manifest: &Manifest, files: &Files) {
    assert!(is_sealed(&files[MANIFEST]));
    assert_eq!(manifest.version, 1);
    assert!(manifest.progress.steps <= 1 << 53 && manifest.progress.optimizer_steps <= manifest.progress.steps);
    let scale = manifest.progress.loss_scale.map_or(1.0, |scale| scale.scale);
    assert!(scale.is_finite() && scale > 0.0);
    let listed: BTreeMap<&str, u64> = manifest.files.iter().map(|file| (file.name.as_str(), file.bytes)).collect();
    assert_eq!(listed.len(), manifest.files.len());
    assert!(listed.iter().all(|(&name, &bytes)| files[name].len() as u64 == bytes));
    assert!(!listed.contains_key(MANIFEST) && listed.contains_key(INDEX));
    let mut left = listed;
    for entry in manifest.parameters.values().chain(manifest.optimizer.values()) {
        let elements = entry.shape.iter().try_fold(1, |product: u64, &length| product.checked_mul(length as u64));
        let bits = elements.and_then(|elements| elements.checked_mul(entry.dtype.bitsize() as u64));
        let left = left.get_mut(entry.file.as_str()).expect("it is listed");
        *left = left.checked_sub(bits.expect("they can be counted") / 8).expect("there are as many bytes");
    }
}

/// Asserts that a checkpoint has every tensor that its manifest lists, and every byte of its files.
fn assert_read(checkpoint: &Checkpoint, manifest: &Manifest, files: &Files) {
    assert!(manifest.files.iter().all(|file| sha256(&files[&file.name]) == file.sha256));
    assert_eq!((checkpoint.progress, &checkpoint.run), (manifest.progress, &manifest.run));
    for (tensors, entries) in
        [(&checkpoint.parameters, &manifest.parameters), (&checkpoint.optimizer, &manifest.optimizer)]
    {
        assert!(tensors.keys().eq(entries.keys()));
        for (tensor, entry) in tensors.values().zip(entries.values()) {
            assert_eq!((tensor.dtype, &tensor.shape), (entry.dtype, &entry.shape));
            let elements: usize = tensor.shape.iter().product();
            assert_eq!(tensor.bytes.len() * 8, elements * tensor.dtype.bitsize());
        }
    }
    for file in manifest.files.iter().filter(|file| file.name != INDEX) {
        let contents = &files[&file.name];
        let header = u64::from_le_bytes(*contents.first_chunk().expect("it has a header")) as usize;
        let parameters = manifest.parameters.iter().map(|(name, entry)| (entry, &checkpoint.parameters[name]));
        let optimizer = manifest.optimizer.iter().map(|(name, entry)| (entry, &checkpoint.optimizer[name]));
        let tensors = parameters.chain(optimizer).filter(|(entry, _)| entry.file == file.name);
        assert_eq!(8 + header + tensors.map(|(_, tensor)| tensor.bytes.len()).sum::<usize>(), contents.len());
    }
}

/// Asserts that a checkpoint, written again and read back, is the same.
fn assert_round_trips(checkpoint: &Checkpoint, root: &Path) {
    let mut store = Store::open(root, NonZero::<usize>::MIN).expect("folders can be made");
    let path: PathBuf = match store.save(checkpoint) {
        Ok(path) => path,
        // Some floats are written with one more level of nesting than they were read with, which can exceed the
        // parser's limit on nesting.
        Err(CheckpointError::Manifest { reason, .. }) if reason.contains("recursion limit") => return,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(&Saved::open(&path).and_then(|saved| saved.read()).expect("it was written"), checkpoint);
}
