//! Rejects configurations with a field that changes what a model of any family computes, and that this crate does not
//! implement.

use serde_json::Value;

/// Checks `config`, the contents of a `config.json`, for fields and values that no model of this crate implements, such
/// as a quantisation. Returns an error that names the first such field. Without this check, the model would compute
/// something else than in the Transformers library.
pub fn check(config: &Value) -> Result<(), String> {
    let is_set = |name: &str| config.get(name).is_some_and(|value| !value.is_null());
    // In the Transformers library, `null` makes attention bidirectional as well.
    if let Some(value) = config.get("is_causal").filter(|value| **value != Value::Bool(true)) {
        return Err(format!("is_causal {value}: these models have causal attention"));
    }
    if is_set("quantization_config") {
        return Err("quantization_config: quantised models are not supported; give one in F32, F16 or BF16".to_owned());
    }
    let usual = ["model.safetensors", "model.safetensors.index.json"];
    if let Some(file) = config.get("transformers_weights").filter(|file| !file.is_null())
        && !usual.iter().any(|name| file == name)
    {
        return Err(format!("transformers_weights {file}: weights are read from {} only", usual.join(" and ")));
    }
    if is_set("per_layer_config") {
        return Err("per_layer_config: all blocks of these models have one configuration".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_would_change_the_model_are_refused() {
        for (config, part) in [
            (json!({"is_causal": false}), "is_causal false: "),
            (json!({"is_causal": null}), "is_causal null: "),
            (json!({"quantization_config": {"quant_method": "fp8"}}), "quantization_config: "),
            (json!({"transformers_weights": "other.safetensors"}), "transformers_weights \"other.safetensors\": "),
            (json!({"per_layer_config": {"1": {"sliding_window": 3}}}), "per_layer_config: "),
        ] {
            let reason = check(&config).unwrap_err();
            assert!(reason.starts_with(part), "{reason}");
        }
        let harmless = json!({"is_causal": true, "quantization_config": null, "per_layer_config": null});
        assert_eq!(check(&json!({"transformers_weights": "model.safetensors"})), Ok(()));
        assert_eq!([check(&harmless), check(&json!({}))], [Ok(()), Ok(())]);
    }
}
