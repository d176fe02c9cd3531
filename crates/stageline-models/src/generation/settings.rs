//! Reads the generation settings of a model folder, and lists those that this crate does not implement. The settings
//! are in `generation_config.json` or, in older folders without this file, in `config.json`.

use std::path::PathBuf;

use serde_json::Value;

use crate::error::ModelError;
use crate::generation::Sampling;
use crate::model::LanguageModel;

/// Generation settings that change the text of the Transformers library but are not implemented here: each field's
/// name, and the value that turns it off. `null`, `false` and an empty list turn it off too.
///
/// `temperature`, `top_k`, `top_p`, `repetition_penalty` and `do_sample` are not listed, because [`Sampling`] covers
/// them.
const NOT_IMPLEMENTED: [(&str, f64); 24] = [
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("stop_strings", 0.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("dola_layers", 0.0),
    ("min_p", 0.0),
    ("top_h", 0.0),
    ("typical_p", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("bad_words_ids", 0.0),
    ("forced_bos_token_id", -1.0),
    ("forced_eos_token_id", -1.0),
    ("exponential_decay_length_penalty", 0.0),
    ("suppress_tokens", 0.0),
    ("begin_suppress_tokens", 0.0),
    ("sequence_bias", 0.0),
    ("guidance_scale", 1.0),
    ("watermarking_config", 0.0),
    ("token_healing", 0.0),
];

/// The Transformers library's default of `top_k`, the number of likeliest tokens to sample from.
const TOP_K: u64 = 50;

impl LanguageModel {
    /// Returns the sampling settings of the model folder's `generation_config.json` or, without this file, of
    /// `config.json`. Settings that the file does not decide are taken from `usual`.
    ///
    /// A `repetition_penalty` in the file is always used. Temperature, top-k and top-p are used only if `do_sample` is
    /// true; missing or `null` ones then have the Transformers library's defaults: temperature 1, top-k 50, and no
    /// top-p.
    ///
    /// # Errors
    /// Returns [`ModelError::Config`] if one of these settings, `max_new_tokens` or `eos_token_id` has a wrong type or
    /// an impossible value.
    pub fn sampling(&self, usual: Sampling) -> Result<Sampling, ModelError> {
        let settings = self.generation_settings();
        check(settings).map_err(|reason| ModelError::Config { path: self.generation_path(), reason })?;
        let number = |name: &str| settings[name].as_f64();
        let sampling =
            Sampling { repetition_penalty: number("repetition_penalty").unwrap_or(usual.repetition_penalty), ..usual };
        if settings["do_sample"] != true {
            return Ok(sampling);
        }
        let top_k = settings["top_k"].as_u64().unwrap_or(TOP_K);
        Ok(Sampling {
            temperature: number("temperature").unwrap_or(1.0),
            top_k: usize::try_from(top_k).ok().filter(|top_k| *top_k > 0),
            top_p: number("top_p").filter(|top_p| *top_p < 1.0),
            ..sampling
        })
    }

    /// Returns `max_new_tokens` of the model folder's generation settings: the number of tokens to generate. `None` if
    /// it is unset.
    pub fn max_new_tokens(&self) -> Option<usize> {
        self.generation_settings()["max_new_tokens"].as_u64().and_then(|tokens| usize::try_from(tokens).ok())
    }

    /// Returns the names of the model folder's generation settings that this crate ignores although they change the
    /// Transformers library's text, so that a caller can warn of them. They are fields of `generation_config.json` or,
    /// without this file, of `config.json`.
    ///
    /// A Llama's `sliding_window` is included: the Transformers library ignores it in attention, but applies it to the
    /// KV cache during generation.
    pub fn ignored_in_generation(&self) -> Vec<String> {
        let fields = ignored(self.generation_settings());
        fields.into_iter().chain(ignored_window(self.config())).map(String::from).collect()
    }

    /// Returns the JSON object with the generation settings: the contents of `generation_config.json` or, as in the
    /// Transformers library, of `config.json` if there is no such file.
    fn generation_settings(&self) -> &Value {
        self.generation_config().unwrap_or(self.config())
    }

    /// Returns the path of the file with the generation settings.
    fn generation_path(&self) -> PathBuf {
        match self.generation_config() {
            Some(_) => self.home().join("generation_config.json"),
            None => self.config_path().to_owned(),
        }
    }
}

/// Checks the types and values of the generation settings that are used; temperature, top-k and top-p are used only if
/// `do_sample` is true. A missing or `null` setting is allowed. The error is a message that names the setting and what
/// to give.
fn check(settings: &Value) -> Result<(), String> {
    let is_number = |value: &Value, allowed: fn(f64) -> bool| value.as_f64().is_some_and(allowed);
    let is_token = |value: &Value| value.is_i64() || value.is_u64();
    let samples = settings["do_sample"] == true;
    for (name, value) in settings.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let (is_allowed, allowed) = match name.as_str() {
            "do_sample" => (value.is_boolean(), "true or false"),
            "temperature" | "top_k" | "top_p" if !samples => continue,
            "temperature" => (is_number(value, |number| number >= 0.0), "a number of 0 or more"),
            "top_k" => (value.is_u64(), "a whole number from 0"),
            "top_p" => (is_number(value, |number| (0.0..=1.0).contains(&number)), "a number from 0 to 1"),
            "repetition_penalty" => (is_number(value, |number| number > 0.0), "a number above 0"),
            "max_new_tokens" => (value.as_u64().is_some_and(|tokens| tokens > 0), "a whole number from 1"),
            "eos_token_id" => {
                let tokens = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                (tokens.iter().all(is_token), "a token's id, or a list of them")
            }
            _ => continue,
        };
        if !is_allowed {
            return Err(format!("{name} {value}: give {allowed}"));
        }
    }
    Ok(())
}

/// Returns the field name `sliding_window` if the model is a Llama and its `config.json` sets this field; otherwise
/// `None`.
fn ignored_window(config: &Value) -> Option<&'static str> {
    let is_set = config["model_type"] == "llama" && !config["sliding_window"].is_null();
    is_set.then_some("sliding_window")
}

fn ignored(fields: &Value) -> Vec<&'static str> {
    let changes = |(name, neutral): &(&'static str, f64)| {
        let value = fields.get(name)?;
        let is_neutral = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Number(number) => number.as_f64() == Some(*neutral),
            Value::Array(values) => values.is_empty(),
            Value::Object(values) => values.is_empty(),
            _ => false,
        };
        (!is_neutral).then_some(*name)
    };
    NOT_IMPLEMENTED.iter().filter_map(changes).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_of_a_wrong_type_or_value_are_refused_by_name() {
        let allowed = json!({
            "do_sample": true, "temperature": 0.6, "top_k": 0, "top_p": 1, "repetition_penalty": 1.1,
            "max_new_tokens": null, "eos_token_id": [2, -1], "transformers_version": "5.24",
        });
        assert_eq!(check(&allowed), Ok(()));
        assert_eq!(check(&json!({"do_sample": false, "top_k": -1})), Ok(()), "nothing is sampled");
        for (name, value, allowed) in [
            ("do_sample", json!("yes"), "true or false"),
            ("temperature", json!("0.5"), "a number of 0 or more"),
            ("temperature", json!(-1), "a number of 0 or more"),
            ("top_k", json!(-1), "a whole number from 0"),
            ("top_p", json!(1.5), "a number from 0 to 1"),
            ("repetition_penalty", json!(0), "a number above 0"),
            ("max_new_tokens", json!(-3), "a whole number from 1"),
            ("eos_token_id", json!("a"), "a token's id, or a list of them"),
            ("eos_token_id", json!([2, "a"]), "a token's id, or a list of them"),
        ] {
            let mut settings = json!({"do_sample": true});
            settings[name] = value.clone();
            assert_eq!(check(&settings), Err(format!("{name} {value}: give {allowed}")));
        }
    }

    #[test]
    fn fields_that_change_a_generation_are_ignored_by_name() {
        let harmless = json!({
            "num_beams": 1, "typical_p": 1.0, "no_repeat_ngram_size": 0, "suppress_tokens": [], "min_length": null,
            "temperature": 0.7, "repetition_penalty": 1.1, "eos_token_id": [1, 2],
        });
        assert!(ignored(&harmless).is_empty());
        let changing =
            json!({"no_repeat_ngram_size": 3, "num_beams": 4, "bad_words_ids": [[5]], "forced_eos_token_id": 0});
        let expected = ["num_beams", "no_repeat_ngram_size", "bad_words_ids", "forced_eos_token_id"];
        assert_eq!(ignored(&changing), expected);
        let of_prompt = json!({"encoder_no_repeat_ngram_size": 2, "token_healing": true});
        assert_eq!(ignored(&of_prompt), ["encoder_no_repeat_ngram_size", "token_healing"]);
        assert!(ignored(&json!({"encoder_no_repeat_ngram_size": 0, "token_healing": false})).is_empty());
    }
}
