//! The file names of a model folder, and the rule for valid weights file names.

pub(crate) const CONFIG: &str = "config.json";
/// The name of the file with the settings for text generation, such as the tokens that end a text.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// The name of the index, which lists the weights file of each tensor in a model folder with several weights files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The name of the only weights file in a model folder without an index.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The suffix of the names of weights files.
pub(crate) const WEIGHTS_ENDING: &str = ".safetensors";
/// The names of PyTorch's files with pickled weights, which this crate does not read.
pub(crate) const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
/// The name of PyTorch's file with an adapter's pickled weights, which this crate does not read.
pub(crate) const PICKLED_ADAPTER: &str = "adapter_model.bin";
/// The names of a model folder's companions: the files beside the weights that describe the model and its tokenizer.
/// Training does not change these files, so an export copies them.
pub(crate) const COMPANIONS: [&str; 15] = [
    CONFIG,
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// The name of the subfolder of a model folder that contains further chat templates, as files that end with
/// [`TEMPLATE_ENDING`].
pub(crate) const TEMPLATES: &str = "additional_chat_templates";
pub(crate) const TEMPLATE_ENDING: &str = ".jinja";
/// The name of the file in a model folder that describes an adapter, such as LoRA. An adapter changes the model's
/// weights: the Transformers library applies it when it loads the model.
pub(crate) const ADAPTER: &str = "adapter_config.json";
/// The name of the file with an adapter's weights, beside [`ADAPTER`].
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// Whether an index may use `name` as a weights file name: a plain file name without folders that ends with
/// `.safetensors`, so that the file is in the model folder itself.
pub(crate) fn is_weights_file(name: &str) -> bool {
    name.ends_with(WEIGHTS_ENDING) && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_of_safetensors_files_are_weights_files() {
        for name in ["model.safetensors", "model-00001-of-00002.safetensors", "größe ..safetensors"] {
            assert!(is_weights_file(name), "{name}");
        }
        let refused = ["", ".", "..", "x.bin", "../x.safetensors", "/x.safetensors", "x/y.safetensors"];
        for name in refused.into_iter().chain([r"..\x.safetensors", "C:x.safetensors", "x\0.safetensors", "x/"]) {
            assert!(!is_weights_file(name), "{name}");
        }
    }
}
