//! The linear layers for which an `adapter_config.json` has adapters ([`Scope`]).

use serde_json::Value;

/// The linear layers to which PEFT adds the adapters of an `adapter_config.json`. It ignores tensors of other layers.
///
/// Only lists of names and of layer indices are read. A regular expression (`target_modules` or `exclude_modules` as a
/// string, or `layers_pattern`) is not evaluated, and leaves out no layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    /// The list `target_modules`; `None` if it is missing or a string.
    targets: Option<Vec<String>>,
    /// The list `exclude_modules`; empty if it is missing or a string.
    excluded: Vec<String>,
    /// The indices `layers_to_transform`; `None` if they are missing or depend on a `layers_pattern`.
    layers: Option<Vec<u64>>,
}

impl Scope {
    /// Reads the fields of an `adapter_config.json` that choose layers. A field of another type counts as missing.
    pub fn read(config: &Value) -> Self {
        let names = |field: &str| -> Option<Vec<String>> { serde_json::from_value(config[field].clone()).ok() };
        let is_empty =
            |value: &Value| matches!(value.as_str(), None | Some("")) && value.as_array().is_none_or(Vec::is_empty);
        let layers = match &config["layers_to_transform"] {
            Value::Array(list) => list.iter().map(Value::as_u64).collect(),
            one => one.as_u64().map(|one| vec![one]),
        };
        let layers = layers.filter(|layers| !layers.is_empty() && is_empty(&config["layers_pattern"]));
        Self { targets: names("target_modules"), excluded: names("exclude_modules").unwrap_or_default(), layers }
    }

    /// Returns the field of `adapter_config.json` that leaves out the layer `module`; `None` if the layer has an
    /// adapter. The name is that of PEFT, such as `model.layers.0.self_attn.q_proj`.
    pub fn leaves_out(&self, module: &str) -> Option<&'static str> {
        let is_named = |name: &String| {
            module.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if self.excluded.iter().any(is_named) {
            return Some("exclude_modules");
        }
        let targets = self.targets.as_ref()?;
        if !targets.iter().any(is_named) {
            return Some("target_modules");
        }
        let is_target_itself = targets.iter().any(|name| name == module);
        let layers = self.layers.as_ref().filter(|_| !is_target_itself)?;
        let index = module.split('.').skip(2).find_map(|part| part.parse().ok());
        (!index.is_some_and(|index| layers.contains(&index))).then_some("layers_to_transform")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Tests which layers are left out, against PEFT's `check_target_module_exists`.
    #[test]
    fn layers_are_left_out_as_in_peft() {
        const MODULE: &str = "model.layers.1.self_attn.q_proj";
        for (config, expected) in [
            (json!({}), None),
            (json!({"target_modules": ["v_proj", "q_proj"]}), None),
            (json!({"target_modules": [MODULE]}), None),
            (json!({"target_modules": ["self_attn.q_proj"]}), None),
            (json!({"target_modules": ["proj", "v_proj"]}), Some("target_modules")),
            (json!({"target_modules": "all-linear"}), None),
            (json!({"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}), Some("exclude_modules")),
            (json!({"target_modules": ["q_proj"], "exclude_modules": ".*"}), None),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": [0, 1]}), None),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": 1}), None),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": [0]}), Some("layers_to_transform")),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": []}), None),
            (json!({"target_modules": [MODULE], "layers_to_transform": [0]}), None),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "h"}), None),
        ] {
            assert_eq!(Scope::read(&config).leaves_out(MODULE), expected, "{config}");
        }
    }
}
