//! A checkpoint for tests to tamper with, whose hashes are corrected afterwards.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::toy;

/// A checkpoint on disk that a test changes on purpose, and the text of its manifest without the seal (its SHA-256).
pub struct Target {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    pub manifest: Value,
}

impl Target {
    pub fn new() -> Self {
        let (dir, path) = toy::two();
        let mut manifest: Value = serde_json::from_slice(&fs::read(path.join("manifest.json")).unwrap()).unwrap();
        manifest.as_object_mut().unwrap().remove("sha256").unwrap();
        Self { _dir: dir, path, manifest }
    }

    /// Writes a JSON object as the manifest of a test's checkpoint, and adds a correct seal (the SHA-256 of its text).
    pub fn seal(&self, object: &str) {
        let body = object.strip_suffix("\n}").unwrap();
        let text = format!("{body},\n  \"sha256\": \"{}\"\n}}\n", sha256(body.as_bytes()));
        fs::write(self.path.join("manifest.json"), text).unwrap();
    }

    /// Writes `contents` into a file of a test's checkpoint. The manifest gets the size and the hash of the contents.
    pub fn put(&mut self, name: &str, contents: &[u8]) {
        fs::write(self.path.join(name), contents).unwrap();
        let files = self.manifest["files"].as_array_mut().unwrap();
        let entry = files.iter_mut().find(|entry| entry["name"] == name).unwrap();
        (entry["bytes"], entry["sha256"]) = (contents.len().into(), sha256(contents).into());
        self.seal(&pretty(&self.manifest));
    }

    /// Opens a checkpoint that a test has damaged. Returns the part of the error message that says what is wrong with
    /// `file`. If the message has another form, or there is no error, the result begins with `unexpected`.
    pub fn damage(&self, file: &str) -> String {
        let message = toy::read(&self.path).err().map(|error| error.to_string()).unwrap_or_default();
        let start = format!("{} ", self.path.join(file).display());
        let end = format!(
            "; resume from an older checkpoint, such as {}",
            self.path.with_file_name("000001-step-10").display()
        );
        let damage = message.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
        damage.map_or_else(|| format!("unexpected: {message}"), ToString::to_string)
    }
}

pub fn pretty(object: &Value) -> String {
    serde_json::to_string_pretty(object).unwrap()
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of a safetensors file with the given header and four bytes of tensors.
pub fn shard(header: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, &[0; 4]].concat()
}
