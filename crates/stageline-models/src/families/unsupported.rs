//! Rejects configurations with a field that would change the model's computation but is not implemented for any family.

use serde_json::Value;

/// Returns an error that names the first field or value in `config` (the contents of a `config.json`) that no family
/// implements, such as quantisation. Without this check, the model would compute something different from the
/// Transformers library.
pub fn check(config: &Value) -> Result<(), String> {
    let is_set = |name: &str| config.get(name).is_some_and(|value| !value.is_null());
    // In the Transformers library, attention is bidirectional if `is_causal` is false or `null`.
    if let Some(value) = config.get("is_causal").filter(|value| **value != Value::Bool(true)) {
        return Err(format!("is_causal {value}: these models have causal attention"));
    }
    if is_set("quantization_config") {
        return Err("quantization_config: quantised models are not supported; give one in F32, F16 or BF16".to_owned());
    }
    if is_set("per_layer_config") {
        return Err("per_layer_config: all blocks of these models have one configuration".to_owned());
    }
    Ok(())
}

/// Checks that the Transformers library would load the weights from `read`, the file that this crate reads (the weights
/// file or its index). The field `transformers_weights` of `config`, the contents of `config.json`, may name another
/// file.
pub fn check_weights_file(config: &Value, read: &str) -> Result<(), String> {
    match config.get("transformers_weights") {
        Some(file) if !file.is_null() && file != read => Err(format!(
            "transformers_weights {file}: the weights are read from {read}; rename that file, or remove the field"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn weights_in_another_file_are_refused() {
        let check = |file: Value| check_weights_file(&json!({"transformers_weights": file}), "model.safetensors");
        assert_eq!((check(Value::Null), check(json!("model.safetensors"))), (Ok(()), Ok(())));
        let reason = check(json!("model.safetensors.index.json")).unwrap_err();
        assert!(reason.starts_with("transformers_weights \"model.safetensors.index.json\": "), "{reason}");
        assert_eq!(check_weights_file(&json!({}), "model.safetensors"), Ok(()));
    }

    #[test]
    fn fields_that_would_change_the_model_are_refused() {
        for (config, part) in [
            (json!({"is_causal": false}), "is_causal false: "),
            (json!({"is_causal": null}), "is_causal null: "),
            (json!({"quantization_config": {"quant_method": "fp8"}}), "quantization_config: "),
            (json!({"per_layer_config": {"1": {"sliding_window": 3}}}), "per_layer_config: "),
        ] {
            let reason = check(&config).unwrap_err();
            assert!(reason.starts_with(part), "{reason}");
        }
        let harmless = json!({"is_causal": true, "quantization_config": null, "per_layer_config": null});
        assert_eq!([check(&harmless), check(&json!({}))], [Ok(()), Ok(())]);
    }
}
