//! Tests of the example `finetune`, run as a program.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use stageline_workspace::programs::{example, stdout_of};

/// Returns a command that runs the example `finetune` with the given flags in `folder`. Its token files are in the
/// folder `cache`.
fn command(folder: &Path, flags: &str) -> Command {
    let mut command = example("finetune");
    command.current_dir(folder).env("XDG_CACHE_HOME", folder.join("cache")).env("RUST_BACKTRACE", "0");
    command.args(flags.split_whitespace());
    command
}

/// Runs the example `finetune` with the given flags, which must succeed. Returns its stdout.
fn said(folder: &Path, flags: &str) -> String {
    stdout_of(&mut command(folder, flags))
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = |path: &Path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap());
    fs::read_dir(folder).unwrap().map(|entry| file(&entry.unwrap().path())).collect()
}

/// Writes a text and the configuration of a small GPT-2 into `folder`. Exports a new model into the folder `model`.
fn prepare(folder: &Path) {
    let config = json!({
        "model_type": "gpt2", "vocab_size": 256, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("notes.txt"), "The plan is a list of actions.\n".repeat(60)).unwrap();
    said(folder, "--init config.json --export model");
}

/// Tests that the conversion of a model opens neither its data nor its tokenizer. The data may be missing, and the
/// tokenizer damaged.
#[test]
fn a_conversion_reads_no_text_and_keeps_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    fs::write(folder.join("model/tokenizer.json"), "damaged").unwrap();
    let expected = contents(&folder.join("model"));
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["config.json", "model.safetensors", "tokenizer.json"]);
    for (copy, flags) in [
        ("without-data", "--stages 2"),
        ("without-steps", "--steps 0"),
        ("with-data", "--data notes.txt --steps 0 --stages 3"),
        ("missing-data", "--data nowhere.jsonl --steps 0 --stages 2 --schedule search"),
    ] {
        let said = said(folder, &format!("--model model --export {copy} {flags}"));
        assert!(said.contains("the model is not trained\n") && !said.contains("tokens in"), "{flags}: {said}");
        assert!(contents(&folder.join(copy)) == expected, "{flags}");
        assert!(!folder.join("cache").exists(), "{flags}: the text was tokenised");
    }
}

/// Tests which files a run of the example needs. A training fails if its data is missing or its tokenizer is damaged. A
/// run that only continues a prompt also fails if the tokenizer is damaged.
#[test]
fn a_training_reads_its_data_and_a_prompt_its_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let training = |data: &str| format!("--model model --data {data} --steps 1 --micro-batches 2 --micro-batch-size 1");
    let said = said(folder, &training("notes.txt"));
    assert!(said.contains("notes.txt: 1860 tokens in 1 documents\n") && said.contains("step 1/1: "), "{said}");
    assert!(folder.join("cache/stageline/tokens").exists());
    fs::write(folder.join("model/tokenizer.json"), "damaged").unwrap();
    let refused = |flags: &str, file: &str| {
        let output = command(folder, flags).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(file), "{flags}: {error}");
    };
    refused(&training("notes.txt"), "tokenizer.json");
    refused("--model model --steps 0 --prompt The", "tokenizer.json");
    fs::remove_file(folder.join("model/tokenizer.json")).unwrap();
    refused(&training("nowhere.jsonl"), "nowhere.jsonl");
}
