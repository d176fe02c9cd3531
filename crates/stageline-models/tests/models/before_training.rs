//! Tests the checks before training: an export or an output file that could not be written is an error. Also tests that
//! messages about hostile configurations are safe to print.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stageline_models::{LanguageModel, ModelError};

use crate::toy::{configurations, new, plain};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_export_that_would_fail_is_refused_and_a_check_leaves_no_trace() {
    let root = tempfile::tempdir().unwrap();
    let (home, place) = (root.path().join("home"), root.path().join("a/model"));
    fs::create_dir(&home).unwrap();
    let model = new(&home, &configurations()[0]);
    model.check_export(&place).unwrap();
    assert_eq!(names(root.path()), ["home"]);
    model.export(plain(&model).snapshot().unwrap(), &place).unwrap();

    let opened = LanguageModel::open(&place).unwrap();
    opened.check_export(root.path().join("copy")).unwrap();
    let other = root.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("model.safetensors.index.json"), "{}").unwrap();
    for (model, own) in [(&model, &home), (&opened, &place)] {
        let error = model.check_export(own).unwrap_err();
        assert!(matches!(error, ModelError::OwnFolder { .. }), "{error}");
        let before: Vec<_> = names(own).iter().map(|name| fs::read(own.join(name)).unwrap()).collect();
        let error = model.export(plain(model).snapshot().unwrap(), own).unwrap_err();
        assert!(matches!(error, ModelError::OwnFolder { .. }), "{error}");
        assert_eq!(names(own).iter().map(|name| fs::read(own.join(name)).unwrap()).collect::<Vec<_>>(), before);
        let error = model.check_export(&other).unwrap_err();
        assert!(error.to_string().contains("has `model.safetensors.index.json`"), "{error}");
        assert!(model.export(plain(model).snapshot().unwrap(), &other).is_err());
    }
    assert_eq!(names(&other), ["model.safetensors.index.json"]);
}

#[test]
fn an_export_to_the_folder_of_another_model_is_refused_before_the_training() {
    let root = tempfile::tempdir().unwrap();
    let (place, other) = (root.path().join("model"), root.path().join("other"));
    let model = new(root.path(), &configurations()[0]);
    model.export(plain(&model).snapshot().unwrap(), &place).unwrap();
    let opened = LanguageModel::open(&place).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("generation_config.json"), "{}").unwrap();
    for model in [&model, &opened] {
        let error = model.check_export(&other).unwrap_err();
        assert!(error.to_string().contains("has `generation_config.json`, which the new model lacks"), "{error}");
    }
    assert_eq!(names(&other), ["generation_config.json"]);
}

#[test]
fn a_file_of_results_that_cannot_be_written_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join("model");
    let model = new(root.path(), &configurations()[0]);
    model.export(plain(&model).snapshot().unwrap(), &place).unwrap();
    let opened = LanguageModel::open(&place).unwrap();
    let before = names(root.path());
    for model in [&model, &opened] {
        model.check_output(root.path().join("logits")).unwrap();
        let error = model.check_output(root.path().join("nowhere/logits")).unwrap_err();
        assert!(error.to_string().contains("its folder does not exist"), "{error}");
    }
    let error = opened.check_output(place.join("model.safetensors")).unwrap_err();
    assert!(error.to_string().contains("the model is read from this file"), "{error}");
    assert_eq!(names(root.path()), before);
}

#[cfg(unix)]
#[test]
fn a_pipe_or_a_link_to_nothing_in_the_place_of_a_configuration_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let [pipe, link] = ["pipe.json", "link.json"].map(|name| root.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let message = |path: &Path| LanguageModel::new(path, 0).map(drop).unwrap_err().to_string();
    assert!(message(&pipe).contains("pipe.json is not a file"), "{}", message(&pipe));
    assert!(message(&link).contains("link.json is a link to a file that does not exist"), "{}", message(&link));
}

#[test]
fn messages_about_hostile_configurations_are_short_and_printable() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("config.json");
    let hostile = "\u{1b}[2J\u{202e}\n".repeat(100_000);
    let [gpt2, llama, _, _, qwen3]: [Value; 5] = configurations().try_into().unwrap();
    for (mut config, field, value) in [
        (gpt2, "activation_function", json!(hostile)),
        (llama.clone(), "model_type", json!(hostile)),
        (llama.clone(), "hidden_act", json!(hostile)),
        (llama.clone(), "hidden_size", json!(hostile)),
        (llama.clone(), "rope_scaling", json!({"rope_type": hostile})),
        (llama, "rope_parameters", json!({"type": hostile})),
        (qwen3, "layer_types", Value::from(vec![hostile.as_str(); 4])),
    ] {
        config[field] = value;
        fs::write(&path, config.to_string()).unwrap();
        let error = LanguageModel::new(&path, 0).map(drop).unwrap_err();
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(text.len() <= ModelError::MOST_BYTES, "{field}: {} bytes", text.len());
            assert!(text.contains("config.json") && text.contains(r"\u{1b}[2J\u{202e}"), "{field}: {text}");
            assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{field}: {text:?}");
        }
    }
}

/// Tests that a missing dropout field has the Transformers library's default: 0.1 for GPT-2, and 0 for Llama.
#[test]
fn a_gpt2_asks_for_dropout_unless_its_configuration_says_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = configurations()[0].clone();
    config["embd_pdrop"] = 0.0.into();
    config["attn_pdrop"] = 0.2.into();
    assert_eq!(new(folder.path(), &config).ignored_in_training(), ["resid_pdrop 0.1", "attn_pdrop 0.2"]);
    let mut llama = configurations()[1].clone();
    assert!(new(folder.path(), &llama).ignored_in_training().is_empty());
    llama["attention_dropout"] = 0.3.into();
    assert_eq!(new(folder.path(), &llama).ignored_in_training(), ["attention_dropout 0.3"]);
}
