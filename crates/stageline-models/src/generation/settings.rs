//! Reads the settings of text generation in a model folder, and names those that this crate does not implement. The
//! settings are in `generation_config.json` or, in older folders without this file, in `config.json`.

use serde_json::Value;

use crate::generation::Sampling;
use crate::model::LanguageModel;

/// The settings of generation that this crate does not implement, although they change the text that the Transformers
/// library generates. Each entry is the name of a field, and the number that gives the field no effect. The values
/// `null`, `false` and an empty list have no effect either.
///
/// `temperature`, `top_k`, `top_p` and `do_sample` are not in the list, because [`Sampling`] has them.
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

/// The number of likeliest tokens that the Transformers library draws from by default.
const TOP_K: u64 = 50;

impl LanguageModel {
    /// Returns the settings of sampling that the model's folder asks for in its `generation_config.json`, or in
    /// `config.json` if it has no such file. All other settings are taken from `usual`.
    ///
    /// A folder asks for a repetition penalty if it sets `repetition_penalty`. It asks for a temperature, for top-k and
    /// for nucleus sampling (top-p) if `do_sample` is true. A field that is then missing or `null` has the default
    /// value of the Transformers library: a temperature of 1, the 50 likeliest tokens, and no nucleus sampling.
    pub fn sampling(&self, usual: Sampling) -> Sampling {
        let settings = self.generation_settings();
        let number = |name: &str| settings[name].as_f64();
        let sampling =
            Sampling { repetition_penalty: number("repetition_penalty").unwrap_or(usual.repetition_penalty), ..usual };
        if settings["do_sample"] != true {
            return sampling;
        }
        let top_k = settings["top_k"].as_u64().unwrap_or(TOP_K);
        Sampling {
            temperature: number("temperature").unwrap_or(1.0),
            top_k: usize::try_from(top_k).ok().filter(|top_k| *top_k > 0),
            top_p: number("top_p").filter(|top_p| *top_p < 1.0),
            ..sampling
        }
    }

    /// Returns the names of those generation settings of the model's folder that this crate does not implement. They
    /// change the text that the Transformers library generates. They are fields of the folder's
    /// `generation_config.json`, or of `config.json` in a folder without this file. A caller may warn of them.
    ///
    /// `sliding_window` of a Llama is one of them. The Transformers library ignores it in the attention of a Llama, but
    /// keeps only the keys and values of the window while it generates a text.
    pub fn ignored_in_generation(&self) -> Vec<String> {
        let fields = ignored(self.generation_settings());
        fields.into_iter().chain(ignored_window(self.config())).map(String::from).collect()
    }

    /// Returns the object with the settings of generation. As in the Transformers library, it is the configuration of
    /// the model if the folder has no `generation_config.json`.
    fn generation_settings(&self) -> &Value {
        self.generation_config().unwrap_or(self.config())
    }
}

/// Returns the name of the field with the sliding window if the model is a Llama and its `config.json` sets the field;
/// `None` for any other model.
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
