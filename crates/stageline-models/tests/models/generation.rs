//! Tests that generation with a KV cache gives the tokens that forward passes over the whole text give, for every cut
//! (partition of the model into stages).

use burn::tensor::{Device, TensorData};
use serde_json::json;
use stageline::{Pipeline, Recompute};
use stageline_hub::ModelFolder;
use stageline_models::{GenerationError, LanguageModel, Logits, Samples, Sampling, Tokens};

use crate::toy::{batch, configurations, logits, new, pipeline, plain, tokens};

const NEW: usize = 20;

/// Returns the 20 tokens that continue a prompt greedily. Each token comes from a forward pass over the whole text,
/// without a KV cache.
fn by_whole_forwards(pipeline: &mut Pipeline<Samples, Logits, Tokens>, prompt: &[u32]) -> Vec<u32> {
    let mut text = prompt.to_vec();
    for _ in 0..NEW {
        let numbers: Vec<_> = text.iter().map(|token| *token as i32).collect();
        let input = Tokens::from_data(TensorData::new(numbers, [1, text.len()]), &Device::flex());
        let logits = pipeline.infer((input, None)).unwrap().slice_dim(1, text.len() - 1..text.len());
        let logits: Vec<_> = logits.into_data().iter::<f32>().collect();
        let best = (0..logits.len()).reduce(|best, token| if logits[token] > logits[best] { token } else { best });
        text.push(best.unwrap() as u32);
    }
    text.split_off(prompt.len())
}

fn generated(model: &LanguageModel, cut: &str, sampling: Sampling) -> Vec<u32> {
    let mut pipeline = pipeline(model, cut, "1f1b", Recompute::Nothing);
    let before = logits(&mut pipeline);
    let tokens = model.generate(&mut pipeline, &[1, 20, 3], sampling).unwrap();
    let tokens = tokens.take(NEW).collect::<Result<_, _>>().unwrap();
    assert_eq!(logits(&mut pipeline), before, "a generation must leave nothing behind");
    tokens
}

#[test]
fn the_cache_gives_the_tokens_of_whole_forwards_for_every_cut() {
    let folder = tempfile::tempdir().unwrap();
    for config in configurations() {
        let model = new(folder.path(), &config);
        let expected = by_whole_forwards(&mut plain(&model), &[1, 20, 3]);
        let drawn = Sampling { temperature: 1.0, top_k: Some(9), top_p: Some(0.9), repetition_penalty: 1.1, seed: 4 };
        let drawn = |cut| generated(&model, cut, drawn);
        for cut in ["0", "0,4", "0,1,9"] {
            assert_eq!(generated(&model, cut, Sampling::GREEDY), expected, "{} {cut}", config["model_type"]);
            assert_eq!(drawn(cut), drawn("0"), "{} {cut}", config["model_type"]);
        }
    }
}

/// Tests that another pipeline of the same model may train and infer between two generated tokens. This must change
/// neither the generated tokens nor the results of the other pipeline.
#[test]
fn other_pipelines_of_the_model_may_run_between_two_tokens() {
    let folder = tempfile::tempdir().unwrap();
    for config in configurations() {
        let model = new(folder.path(), &config);
        let expected = by_whole_forwards(&mut plain(&model), &[1, 20, 3]);
        let used = |pipeline: &mut Pipeline<Samples, Logits, Tokens>| {
            // The inputs have 3 tokens, like the prompt, and 1 token, like a step of the generation.
            let inferred = [3, 1].map(|length| {
                let logits = pipeline.infer((tokens(1, 1, length), None)).unwrap().into_data();
                logits.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>()
            });
            drop(pipeline.step(batch(0)).unwrap());
            (inferred, logits(pipeline))
        };
        let alone = used(&mut plain(&model));
        let (mut generating, mut other) = (plain(&model), plain(&model));
        let mut found = Vec::new();
        let mut generation = model.generate(&mut generating, &[1, 20, 3], Sampling::GREEDY).unwrap();
        drop(other.infer((tokens(1, 1, 3), None)).unwrap());
        while found.len() < NEW {
            found.push(generation.next().unwrap().unwrap());
            if found.len() == 4 {
                assert!(used(&mut other) == alone, "{}", config["model_type"]);
            }
        }
        assert_eq!(found, expected, "{}", config["model_type"]);
    }
}

#[test]
fn a_generation_ends_at_the_last_position_and_refuses_wrong_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let model = new(folder.path(), &configurations()[0]);
    let mut pipeline = plain(&model);
    let mut generate = |prompt: &[u32]| {
        let tokens = model.generate(&mut pipeline, prompt, Sampling::GREEDY)?;
        Ok::<_, GenerationError>(tokens.map(Result::unwrap).count())
    };
    let mut other = plain(&model);
    let running = model.generate(&mut other, &[1], Sampling::GREEDY).unwrap();
    assert!(matches!(generate(&[1]), Err(GenerationError::Busy)));
    drop(running);
    // The model has 40 positions, so a prompt of 38 tokens leaves two. The last position still predicts a third token.
    assert_eq!(generate(&[2; 38]).unwrap(), 3);
    assert_eq!(generate(&[]).unwrap_err().to_string(), "the prompt is empty; give at least one token");
    let long = "the prompt has 41 tokens, and the model is made for 40; give a shorter one";
    assert_eq!(generate(&[2; 41]).unwrap_err().to_string(), long);
    let unknown =
        "the prompt has the token id 37, and the model knows only ids below 37; use the model's own tokenizer";
    assert_eq!(generate(&[37]).unwrap_err().to_string(), unknown);
}

#[test]
fn settings_of_generation_come_from_the_configuration_of_an_older_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = configurations()[0].clone();
    config["repetition_penalty"] = 1.3.into();
    config["no_repeat_ngram_size"] = 3.into();
    let model = new(folder.path(), &config);
    let settings = |model: &LanguageModel| {
        let Sampling { temperature, top_k, top_p, repetition_penalty, .. } = model.sampling(Sampling::GREEDY).unwrap();
        (temperature, top_k, top_p, repetition_penalty)
    };
    assert_eq!(
        (settings(&model), model.ignored_in_generation()),
        ((0.0, None, None, 1.3), vec!["no_repeat_ngram_size".to_owned()])
    );
    let place = folder.path().join("model");
    model.export(plain(&model).snapshot().unwrap(), &place).unwrap();
    for (fields, expected) in [
        (json!({}), (0.0, None, None, 1.0)),
        (json!({"temperature": 0.6, "top_k": 20, "top_p": 0.9}), (0.0, None, None, 1.0)),
        (json!({"do_sample": true}), (1.0, Some(50), None, 1.0)),
        (json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9}), (0.6, Some(20), Some(0.9), 1.0)),
        (
            json!({"do_sample": true, "top_k": null, "top_p": 1.0, "repetition_penalty": 1.1}),
            (1.0, Some(50), None, 1.1),
        ),
        (json!({"do_sample": true, "top_k": 0}), (1.0, None, None, 1.0)),
    ] {
        std::fs::write(place.join("generation_config.json"), fields.to_string()).unwrap();
        assert_eq!(settings(&LanguageModel::open(&place).unwrap()), expected, "{fields}");
    }
    assert_eq!(LanguageModel::open(&place).unwrap().max_new_tokens(), None);
    std::fs::write(place.join("generation_config.json"), r#"{"num_beams": 2, "max_new_tokens": 5}"#).unwrap();
    let model = LanguageModel::open(&place).unwrap();
    assert_eq!((model.ignored_in_generation(), model.max_new_tokens()), (vec!["num_beams".to_owned()], Some(5)));
}

#[test]
fn a_generation_ends_at_the_tokens_of_its_own_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("model");
    let mut config = configurations()[1].clone();
    config
        .as_object_mut()
        .unwrap()
        .extend(json!({"eos_token_id": 3, "dtype": "bfloat16"}).as_object().unwrap().clone());
    let model = new(folder.path(), &config);
    assert_eq!((model.end_of_text(), model.end_of_generation()), (vec![3], vec![3]));
    model.export(plain(&model).snapshot().unwrap(), &place).unwrap();
    // A new model is exported in f32, whatever `dtype` its configuration names.
    assert_eq!(ModelFolder::open(&place).unwrap().config().unwrap()["dtype"], "float32");
    let settings = r#"{"eos_token_id": [3, 5], "do_sample": true, "top_k": 7}"#;
    std::fs::write(place.join("generation_config.json"), settings).unwrap();
    let opened = LanguageModel::open(&place).unwrap();
    let new = LanguageModel::new(place.join("config.json"), 5).unwrap();
    for model in [opened, new] {
        assert_eq!((model.end_of_text(), model.end_of_generation()), (vec![3], vec![3, 5]));
        assert_eq!(model.sampling(Sampling::GREEDY).unwrap().top_k, Some(7));
    }
    std::fs::write(place.join("generation_config.json"), r#"{"do_sample": true, "top_p": "x"}"#).unwrap();
    let error = LanguageModel::open(&place).unwrap().sampling(Sampling::GREEDY).unwrap_err().to_string();
    assert!(
        error.contains("generation_config.json") && error.contains(r#"top_p "x": give a number from 0 to 1"#),
        "{error}"
    );
    std::fs::write(place.join("generation_config.json"), "{").unwrap();
    assert!(LanguageModel::new(place.join("config.json"), 5).is_err());
}
