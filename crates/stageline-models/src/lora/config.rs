//! The `adapter_config.json` of the PEFT library ([`Config`]).

use std::path::Path;

use serde_json::{Value, json};

use crate::lora::scope::Scope;

/// The rank, the scale, the dropout and the layers of LoRA adapters, as `adapter_config.json` describes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub rank: usize,
    pub alpha: f64,
    /// Whether the scale is `alpha / √rank` (rsLoRA: Kalajdzievski, 2023,
    /// [arXiv:2312.03732](https://arxiv.org/abs/2312.03732)) instead of `alpha / rank`.
    pub stabilised: bool,
    /// The probability with which PEFT zeroes elements of an adapter's input in training. This crate does not apply it.
    pub dropout: f64,
    /// The layers that have adapters; all for new adapters.
    pub scope: Scope,
}

/// Fields of `adapter_config.json` that change what adapters compute, but are not implemented. A field is an error
/// unless it is missing, null, false, empty, or "none".
const NOT_IMPLEMENTED: [&str; 17] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "bias",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "monteclora_config",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
];

/// Prefixes of `init_lora_weights` values for which PEFT changes the model's own weights when it loads the adapters.
/// PEFT can convert such adapters to plain LoRA.
const CONVERTIBLE: [&str; 4] = ["pissa", "corda", "olora", "lora_ga"];

/// Allowed strings in the field `init_lora_weights`. With any other string, PEFT changes the model's own weights when
/// it loads the adapters, or freezes a part of them.
const KEEP_THE_BASE: [&str; 3] = ["gaussian", "orthogonal", "eva"];

impl Config {
    pub fn new(rank: usize, alpha: f64) -> Self {
        Self { rank, alpha, stabilised: false, dropout: 0.0, scope: Scope::default() }
    }

    /// Reads the adapters' rank, alpha and dropout from the contents of an `adapter_config.json`.
    ///
    /// # Errors
    /// Returns the reason as a string if a field is missing or invalid, or asks for a feature that is not implemented.
    pub fn read(config: &Value) -> Result<Self, String> {
        match config["peft_type"].as_str() {
            Some("LORA") => {}
            Some(other) => return Err(format!("peft_type {other:?}: only LORA is implemented")),
            None => return Err("it has no peft_type; LORA is the one that is implemented".into()),
        }
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty() || text == "none",
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        if let Some(field) = NOT_IMPLEMENTED.into_iter().find(|field| !is_off(&config[*field])) {
            return Err(format!(
                "{field} {}: it is not implemented; merge the adapter into the model with PEFT (merge_and_unload)",
                config[field]
            ));
        }
        let start = &config["init_lora_weights"];
        if let Some(name) = start.as_str().filter(|name| !KEEP_THE_BASE.contains(name)) {
            let way_out = match CONVERTIBLE.iter().any(|convertible| name.starts_with(convertible)) {
                true => "convert the adapter with PEFT (save_pretrained with path_initial_model_for_weight_conversion)",
                false => "merge the adapter into the model with PEFT (merge_and_unload)",
            };
            return Err(format!("init_lora_weights {start}: it is not implemented; {way_out}"));
        }
        let rank = config["r"].as_u64().and_then(|rank| usize::try_from(rank).ok()).filter(|rank| *rank > 0);
        let rank = rank.ok_or_else(|| format!("r {}: give the rank as a whole number from 1", config["r"]))?;
        let alpha = config["lora_alpha"].as_f64().filter(|alpha| alpha.is_finite());
        let alpha = alpha.ok_or_else(|| format!("lora_alpha {}: give a number", config["lora_alpha"]))?;
        let dropout = config["lora_dropout"].as_f64().unwrap_or(0.0);
        let stabilised = match &config["use_rslora"] {
            Value::Null => false,
            Value::Bool(stabilised) => *stabilised,
            other => return Err(format!("use_rslora {other}: give true or false")),
        };
        Ok(Self { rank, alpha, stabilised, dropout, scope: Scope::read(config) })
    }

    /// Returns the scale of an adapter: the factor by which the product of its two matrices is multiplied.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.stabilised { rank.sqrt() } else { rank }
    }

    /// Returns the contents of an `adapter_config.json` with these settings. `base` is the adapted model's folder;
    /// `None` if the model has none. `modules` are the names of the adapted linear layers. `is_transposed` says whether
    /// the model stores their weights as `[inputs, outputs]`, as GPT-2 does.
    pub fn write(&self, base: Option<&Path>, modules: &[String], is_transposed: bool) -> Value {
        json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base.map(Path::to_string_lossy),
            "r": self.rank, "lora_alpha": self.alpha, "use_rslora": self.stabilised, "lora_dropout": self.dropout,
            "target_modules": modules, "fan_in_fan_out": is_transposed, "bias": "none", "inference_mode": true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_that_of_the_papers() {
        let config = json!({"peft_type": "LORA", "r": 16, "lora_alpha": 32});
        assert_eq!(Config::read(&config).unwrap().scale(), 2.0);
        let stabilised = json!({"peft_type": "LORA", "r": 16, "lora_alpha": 32, "use_rslora": true});
        assert_eq!(Config::read(&stabilised).unwrap().scale(), 8.0);
    }

    #[test]
    fn what_is_not_implemented_is_refused_and_what_is_off_is_not() {
        let with = |field: &str, value: Value| {
            let mut config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.1});
            config[field] = value;
            Config::read(&config).map(|config| config.dropout)
        };
        let off = [json!(null), json!(false), json!([]), json!({}), json!("none")];
        for field in NOT_IMPLEMENTED {
            for value in &off {
                assert_eq!(with(field, value.clone()), Ok(0.1), "{field} {value}");
            }
            let reason = with(field, json!(["x"])).unwrap_err();
            assert!(reason.starts_with(&format!("{field} [\"x\"]: it is not implemented; ")), "{reason}");
        }
        for (field, value, reason) in [
            ("peft_type", json!("LOHA"), "peft_type \"LOHA\": only LORA is implemented"),
            ("peft_type", json!(null), "it has no peft_type; LORA is the one that is implemented"),
            (
                "init_lora_weights",
                json!("pissa_niter_4"),
                "init_lora_weights \"pissa_niter_4\": it is not implemented; convert the adapter with PEFT (save_pretrained \
                 with path_initial_model_for_weight_conversion)",
            ),
            (
                "init_lora_weights",
                json!("mica"),
                "init_lora_weights \"mica\": it is not implemented; merge the adapter into the model with PEFT \
                 (merge_and_unload)",
            ),
            ("r", json!(0), "r 0: give the rank as a whole number from 1"),
            ("r", json!("8"), "r \"8\": give the rank as a whole number from 1"),
            ("lora_alpha", json!(null), "lora_alpha null: give a number"),
            ("use_rslora", json!(1), "use_rslora 1: give true or false"),
        ] {
            assert_eq!(with(field, value), Err(reason.to_owned()));
        }
    }

    #[test]
    fn a_written_configuration_reads_as_the_same() {
        for config in [Config::new(8, 16.0), Config { stabilised: true, dropout: 0.05, ..Config::new(4, 1.5) }] {
            let written = config.write(Some(Path::new("base")), &["q_proj".into()], false);
            let read = Config::read(&written).unwrap();
            assert_eq!(read.scope.leaves_out("model.layers.0.self_attn.v_proj"), Some("target_modules"));
            assert_eq!(Config { scope: Scope::default(), ..read }, config);
        }
    }
}
