//! The file names of a model folder, and the rule for the names of weights files.

pub(crate) const CONFIG: &str = "config.json";
/// The name of the file in a model folder that says how to generate texts, for example after which tokens a text ends.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// The name of the file that lists the weights files and their tensors, in a folder with several weights files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The name of the only weights file in a folder without an index.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The ending of the names of weights files.
pub(crate) const WEIGHTS_ENDING: &str = ".safetensors";
/// The names of PyTorch's files with pickled weights, which this crate does not read.
pub(crate) const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
/// The name of the file in which PyTorch pickles the weights of an adapter.
pub(crate) const PICKLED_ADAPTER: &str = "adapter_model.bin";
/// The names of the files that describe a model and its tokenizer. A training does not change these files.
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
/// The name of the folder in a model folder that contains further chat templates, as files that end with
/// [`TEMPLATE_ENDING`].
pub(crate) const TEMPLATES: &str = "additional_chat_templates";
pub(crate) const TEMPLATE_ENDING: &str = ".jinja";
/// The name of the file in a model folder that describes an adapter, such as LoRA. An adapter changes the weights: the
/// Transformers library applies it when it loads the model.
pub(crate) const ADAPTER: &str = "adapter_config.json";
/// The name of the file with the weights of an adapter, beside [`ADAPTER`].
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// Whether a weights file's name in an index is valid: a plain file name without folders that ends with `.safetensors`.
/// Such a file lies in the model folder itself.
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
