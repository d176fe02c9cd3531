//! Tests of the example `finetune`, run as a program.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
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
        "model_type": "gpt2", "vocab_size": 256, "n_embd": 96, "n_layer": 3, "n_head": 2, "n_positions": 32,
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
    let folders = "--model model --steps 0 --export out --export-adapter model/../out";
    refused(folders, "--export and --export-adapter need a folder each");
    let missing = "--model model --steps 0 --export new/out --export-adapter ./new/out";
    refused(missing, "--export and --export-adapter need a folder each");
    fs::remove_file(folder.join("model/tokenizer.json")).unwrap();
    refused(&training("nowhere.jsonl"), "nowhere.jsonl");
}

/// Tests a training of LoRA adapters that stops and resumes on another number of stages, by epochs. The flags of the
/// first run come from the checkpoint.
#[test]
fn adapters_resume_to_the_same_bytes_and_are_merged_without_training() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let training =
        "--model model --data notes.txt --lora 2 --epochs 0.5 --micro-batches 2 --micro-batch-size 2 --context 16";
    let whole = said(folder, &format!("{training} --stages 1 --export-adapter whole --export merged"));
    // 1,767 tokens are for training, which are 110 windows of 16.
    assert!(whole.contains("14 steps of 4 samples are 0.51 epochs of 110 samples\n"), "{whole}");
    // An adapter of rank 2 has two parameters for each input and output of its linear layer. The layers of a block have
    // (96 + 288) + (96 + 96) + 2 (96 + 384) inputs and outputs.
    assert!(whole.contains("\n9216 of 372576 parameters are trained\n"), "{whole}");
    let stopped = said(folder, &format!("{training} --checkpoint kept --stop-after 6 --export merged-early"));
    assert!(stopped.contains("--export has no effect: this run has not ended the training\n"), "{stopped}");
    assert!(stopped.starts_with("gpt2: 3 blocks of width 96, 2 heads, a vocabulary of 256 tokens, 32 positions, "));
    // A checkpoint holds the adapters, norms, biases and positions, and the resumed run reads the weights again.
    let checkpoint = fs::read_dir(folder.join("kept")).unwrap().map(|entry| entry.unwrap().path());
    let index = checkpoint.filter(|path| path.is_dir()).max().unwrap().join("model.safetensors.index.json");
    let index: Value = serde_json::from_slice(&fs::read(index).unwrap()).unwrap();
    let small = 3 * (4 * 96 + 288 + 96 + 384 + 96) + 2 * 96 + 32 * 96;
    assert_eq!(index["metadata"]["total_size"], (9216 + small) * size_of::<f32>());
    said(folder, "--init config.json --seed 5 --export other");
    let error = command(folder, "--resume kept --model other").output().unwrap().stderr;
    let error = String::from_utf8(error).unwrap();
    let expected = "is frozen, and its values in the model are not those of the checkpoint";
    assert!(error.contains(expected) && error.contains("blocks.0.") && error.contains("and 3 more"), "{error}");
    let config = fs::read(folder.join("model/config.json")).unwrap();
    let mut with_more_heads: Value = serde_json::from_slice(&config).unwrap();
    with_more_heads["n_head"] = json!(3); // the number of heads changes no shape
    fs::write(folder.join("model/config.json"), with_more_heads.to_string()).unwrap();
    for flags in ["--resume kept", "--resume kept --steps 0 --export changed"] {
        let error = String::from_utf8(command(folder, flags).output().unwrap().stderr).unwrap();
        let expected = "give the former config.json and LoRA flags, or start a new run";
        assert!(error.contains("the model was \"gpt2 with the configuration ") && error.contains(expected), "{error}");
    }
    fs::write(folder.join("model/config.json"), config).unwrap();
    said(folder, "--resume kept --stages 3 --schedule zb-h1 --export-adapter resumed");
    let [resumed, expected] = ["resumed", "whole"].map(|name| contents(&folder.join(name)));
    assert!(resumed == expected && expected.len() == 2);
    let alone = said(folder, "--model model --adapter whole --steps 0 --stages 2 --export merged-later");
    assert!(!folder.join("merged-early").exists() && alone.contains("the model is not trained\n"));
    let [later, merged, base] = ["merged-later", "merged", "model"].map(|name| contents(&folder.join(name)));
    assert!(later == merged && merged != base);
    for (flags, expected) in [
        ("--lora 2", "--lora and --adapter exclude each other: give one of them"),
        (
            "--rslora",
            "--rslora is for new adapters, and the folder of --adapter decides what its adapters are: leave --rslora out",
        ),
    ] {
        let flags = format!("--model model --adapter whole --steps 0 {flags}");
        let error = String::from_utf8(command(folder, &flags).output().unwrap().stderr).unwrap();
        assert!(error.contains(expected), "{error}");
    }
}

/// Tests the flag `--eval-data`: a training is evaluated on a text of its own. A resumed training may be evaluated on
/// another text, which changes no trained parameter.
#[test]
fn a_training_is_evaluated_on_data_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    fs::write(folder.join("a.txt"), "Every micro-batch visits all stages.\n".repeat(20)).unwrap();
    fs::write(folder.join("b.txt"), "0123456789".repeat(30)).unwrap();
    let training = "--model model --data notes.txt --micro-batches 2 --micro-batch-size 2 --context 16 --steps 2";
    let whole = said(folder, &format!("{training} --eval-data a.txt"));
    assert!(whole.contains("notes.txt: 1860 tokens in 1 documents\na.txt: 740 tokens in 1 documents\n"), "{whole}");
    let losses = |said: &str| {
        let lines = said.lines().filter_map(|line| line.strip_prefix("validation: loss "));
        lines.map(|line| line.split(',').next().unwrap().parse::<f64>().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(losses(&whole).len(), 2);
    let stopped = said(folder, &format!("{training} --eval-data a.txt --checkpoint kept --stop-after 1"));
    let resumed = said(folder, "--resume kept --eval-data b.txt");
    assert!(resumed.contains("b.txt: 300 tokens in 1 documents\n"), "{resumed}");
    assert_eq!(losses(&stopped)[0], losses(&whole)[0]);
    assert!(losses(&resumed).len() == 2 && losses(&resumed)[1] != losses(&whole)[1]);
    let hash = |said: &str| said[said.find("sha256 ").unwrap()..].lines().next().unwrap().to_owned();
    assert_eq!(hash(&resumed), hash(&whole), "the data for evaluation changes no parameter");
}

/// Tests that `--show-samples` prints samples, and marks the parts of a sample that are trained on.
#[test]
fn samples_are_shown_with_what_is_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    fs::write(folder.join("pairs.jsonl"), "{\"prompt\": \"1 + 1 = \", \"completion\": \"2\"}\n".repeat(3)).unwrap();
    let shown = said(folder, "--model model --data pairs.jsonl --show-samples 1");
    let expected = "sample 0: 18 tokens in 2 documents, 2 are trained on\n  1 + 1 = «2»\n  1 + 1 = «2»\n";
    assert!(shown.ends_with(expected), "{shown}");
}
