//! Runs the GPT example with small settings in a temporary folder, and reads its output, checkpoints and logs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::programs::{example, stdout_of};

/// The flags for a small model, which every run of the GPT example in a test gets before its other flags.
const SMALL: &str = "--layers 2 --width 16 --context 16 --micro-batch-size 2 --micro-batches 4 --stages 2 --sample 0";

/// A temporary folder for a test with a text to train on, into which runs of the GPT example write their files.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..2000).map(|line| format!("line {line} of {}\n", line * line % 97)).collect();
        fs::write(folder.path().join("text"), text).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a command that runs the GPT example with the given flags. An `@` at the start of a word stands for the
    /// test's folder.
    pub fn command(&self, flags: &str) -> Command {
        let mut command = example("gpt");
        command.env("RUST_BACKTRACE", "0");
        let data = if flags.contains("--data ") { "" } else { "--data @text" };
        command.args(self.words(&format!("{SMALL} {data} {flags}")));
        command
    }

    /// Splits flags into words, and replaces `@` at the start of a word by the path of the test's folder.
    pub fn words(&self, flags: &str) -> Vec<String> {
        let word = |word: &str| match word.strip_prefix('@') {
            Some(name) => self.path(name).display().to_string(),
            None => word.to_owned(),
        };
        flags.split_whitespace().map(word).collect()
    }

    /// Runs the GPT example with the given flags to its end, and returns its output.
    pub fn run(&self, flags: &str) -> Output {
        self.command(flags).output().unwrap()
    }

    /// Runs the GPT example with the given flags, which must succeed, and returns its stdout.
    pub fn said(&self, flags: &str) -> String {
        stdout_of(&mut self.command(flags))
    }

    /// Runs the GPT example, which must fail without a panic, and returns its stderr with `@` in place of the test's
    /// folder.
    pub fn refused(&self, flags: &str) -> String {
        let output = self.run(flags);
        assert!(!output.status.success(), "{flags}");
        assert!(output.status.code().is_some_and(|code| code != 101), "{flags}: a panic");
        self.shown(&output)
    }

    /// Returns the stderr of a run of the GPT example, with `@` in place of the test's folder.
    pub fn shown(&self, output: &Output) -> String {
        let here = format!("{}/", self.0.path().display());
        String::from_utf8_lossy(&output.stderr).replace(&here, "@")
    }

    /// Returns the path of the checkpoint that a run of the GPT example wrote after `steps` steps, with `@` in place of
    /// the test's folder.
    pub fn checkpoint(&self, folder: &str, steps: usize) -> String {
        let ending = format!("-step-{steps}");
        let mut all =
            fs::read_dir(self.path(folder)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        all.find(|name| name.ends_with(&ending)).map(|name| format!("@{folder}/{name}")).unwrap()
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Changes the manifest (JSON description) of a checkpoint by `change`, and gives the manifest a valid seal (checksum)
/// again.
pub fn reseal(checkpoint: &Path, change: impl FnOnce(&mut Value)) {
    let manifest = checkpoint.join("manifest.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    value.as_object_mut().unwrap().remove("sha256").unwrap();
    change(&mut value);
    let object = serde_json::to_string_pretty(&value).unwrap();
    let body = object.strip_suffix("\n}").unwrap();
    fs::write(&manifest, format!("{body},\n  \"sha256\": \"{}\"\n}}\n", sha256(body.as_bytes()))).unwrap();
}

/// Returns the hash of all parameters from the text that a run of the GPT example prints at its end.
pub fn hash(said: &str) -> &str {
    said.lines().find_map(|line| Some(line.split_once("parameters, sha256 ")?.1)).unwrap()
}

/// Returns the number of training steps up to the last one in a training's log (the JSON-lines file that it writes).
/// This includes the steps before a resume. Returns 0 if there is no log.
pub fn steps_in(log: &Path) -> usize {
    let text = fs::read_to_string(log).unwrap_or_default();
    let step = |line: &str| serde_json::from_str::<Value>(line).ok()?["step"].as_u64();
    text.lines().filter_map(step).max().map_or(0, |step| step as usize + 1)
}

/// Waits until the log (JSON-lines file) of a training run has `steps` training steps, and panics if the run ends
/// before that.
pub fn wait_for_lines(log: &Path, steps: usize, child: &mut Child) {
    while steps_in(log) < steps {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(2)); // leaves the core to the run
    }
}
