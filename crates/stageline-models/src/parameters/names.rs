//! The correspondence of a model's parameters with the tensors of a model folder in the format of the Hugging Face hub.

/// The tensor on the Hugging Face hub that holds the values of a parameter: its name, and whether it is stored
/// transposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTensor {
    pub name: String,
    /// Whether the tensor on the Hugging Face hub is the transpose of the parameter. PyTorch stores the weights of
    /// linear layers as `[outputs, inputs]`, and this crate as `[inputs, outputs]`.
    pub transposed: bool,
}

/// The rules for storing a model's parameters as tensors.
pub trait Storage {
    /// Returns the tensor that stores the parameter with the path `path` in the model, such as
    /// `blocks.3.linear.weight`. `container` is the type of the module that contains the parameter, as burn names it,
    /// such as `Struct:Linear`.
    fn tensor(&self, path: &str, container: &str) -> HubTensor;
}

/// An entry of the table of tensor names: the path of a parameter in its layer, and the name of its tensor on the
/// Hugging Face hub.
pub struct Name {
    path: &'static str,
    hub: &'static str,
    transposed: bool,
}

impl Name {
    /// Creates an entry of the table of tensor names, for a tensor that has the parameter's shape on the Hugging Face
    /// hub. `path` is the parameter's path in its layer. `hub` is the tensor's name on the hub, without the model's
    /// prefix and the block's index.
    pub const fn same(path: &'static str, hub: &'static str) -> Self {
        Self { path, hub, transposed: false }
    }

    /// Creates an entry of the table of tensor names, for a tensor that is stored transposed on the Hugging Face hub.
    /// `path` is the parameter's path in its layer. `hub` is the tensor's name on the hub, without the model's prefix
    /// and the block's index.
    pub const fn transposed(path: &'static str, hub: &'static str) -> Self {
        Self { path, hub, transposed: true }
    }
}

/// The names that the tensors of a model family have on the Hugging Face hub, by layer and parameter.
pub struct Names {
    /// The prefix of a model family's tensor names, such as `model.`. The projection of an untied head (a head that
    /// does not share the table of token embeddings) has no prefix. The prefix is also missing in the folder of a model
    /// that was saved without a head.
    pub root: &'static str,
    pub embeddings: &'static [Name],
    /// The part of a tensor name between the family's prefix and the block's index, such as `layers.` in
    /// `model.layers.0.mlp.up_proj.weight`.
    pub blocks: &'static str,
    pub block: &'static [Name],
    pub head: &'static [Name],
    /// The path of the table of token embeddings in the first layer, such as `tokens.weight`.
    pub table: &'static str,
    /// The suffixes of the names of buffers, such as a causal mask. A model folder may have buffers although no
    /// parameter needs them. The part of the name before the suffix is empty or ends in a dot.
    pub buffers: &'static [&'static str],
    /// The suffixes of buffers of old files that the Transformers library no longer knows. It would report such a
    /// tensor as unexpected, so an export leaves it out.
    pub obsolete: &'static [&'static str],
}

/// The path, within a model's head (last layer), of the weight that projects activations to the vocabulary. If the head
/// is tied, this weight is the table of token embeddings.
pub const OUTPUT: &str = "output.weight";

/// The name on the Hugging Face hub of an untied head's projection to the vocabulary. An untied head does not share the
/// table of token embeddings.
pub const UNTIED: &str = "lm_head.weight";

/// The names of a language model's layers: the embeddings, the list of blocks, and the head.
pub const LAYERS: [&str; 3] = [EMBEDDINGS, BLOCKS, HEAD];

const EMBEDDINGS: &str = "embeddings";
const BLOCKS: &str = "blocks";
const HEAD: &str = "head";

/// The names of one model's tensors on the Hugging Face hub. They begin with the family's prefix, such as `model.`, or
/// lack it, depending on the model's folder.
#[derive(Clone)]
pub struct Naming {
    names: &'static Names,
    root: &'static str,
    tied: bool,
    /// The name of the table of token embeddings in the model folder; `None` if it is the usual name in the model
    /// family.
    table: Option<&'static str>,
}

impl Naming {
    /// Creates the names of one model's tensors on the Hugging Face hub from the `names` of its family. `tied` says
    /// whether the head's projection is the table of token embeddings.
    pub fn new(names: &'static Names, tied: bool) -> Self {
        Self { names, root: names.root, tied, table: None }
    }

    /// Adapts the tensor names to a model folder. The function `has` tells whether the folder contains a tensor with a
    /// given name.
    ///
    /// The family's prefix, such as `model.`, is left out if the folder has the table of token embeddings only under a
    /// name without the prefix. If the head is tied and the folder has no such table, the table gets the name of the
    /// head's projection.
    pub fn in_folder(self, has: impl Fn(&str) -> bool) -> Self {
        let bare = Self { root: "", ..self.clone() };
        let names = [self.clone(), bare.clone()];
        if let Some(found) = names.into_iter().find(|names| has(&names.table().name)) {
            return found;
        }
        if !(self.tied && has(UNTIED)) {
            return self;
        }
        // Without a table, the last norm shows whether the names have the prefix.
        let has_norm = |names: &Self| names.names.head.iter().any(|name| has(&format!("{}{}", names.root, name.hub)));
        let names = if !has_norm(&self) && has_norm(&bare) { bare } else { self };
        Self { table: Some(UNTIED), ..names }
    }

    /// Returns the model's tensor names with an untied head: the head's projection to the vocabulary is a tensor of its
    /// own.
    pub fn untied(self) -> Self {
        Self { tied: false, ..self }
    }

    /// Whether the projection of a model's head to the vocabulary is tied to the table of token embeddings, so that
    /// both are one parameter.
    pub fn tied(&self) -> bool {
        self.tied
    }

    /// Returns the tensor on the Hugging Face hub that is the table of token embeddings: its name, and whether it is
    /// stored transposed.
    pub fn table(&self) -> HubTensor {
        self.of(&format!("{EMBEDDINGS}.{}", self.names.table)).expect("a family names its table")
    }

    /// Returns the tensor on the Hugging Face hub for the parameter with the path `path` in the model, such as
    /// `blocks.3.mlp.up.weight`. Returns `None` if the model family has no such tensor.
    fn of(&self, path: &str) -> Option<HubTensor> {
        let (layer, path) = path.split_once('.')?;
        let (names, block, path) = match layer {
            EMBEDDINGS => (self.names.embeddings, None, path),
            BLOCKS => path.split_once('.').map(|(index, path)| (self.names.block, Some(index), path))?,
            HEAD if path == OUTPUT && self.tied => return Some(self.table()),
            HEAD if path == OUTPUT => return Some(HubTensor { name: UNTIED.to_owned(), transposed: false }),
            HEAD => (self.names.head, None, path),
            _ => return None,
        };
        let found = names.iter().find(|name| name.path == path)?;
        let name = match (self.table, block) {
            (Some(table), None) if layer == EMBEDDINGS && path == self.names.table => table.to_owned(),
            (_, Some(index)) => format!("{}{}{index}.{}", self.root, self.names.blocks, found.hub),
            (_, None) => format!("{}{}", self.root, found.hub),
        };
        Some(HubTensor { name, transposed: found.transposed })
    }

    /// Returns the name that the library PEFT gives to a linear layer, from the name of its weight's tensor on the
    /// Hugging Face hub. The result has the family's prefix, such as `model.`, even if the tensors in the model folder
    /// lack it.
    pub fn module_of(&self, weight: &str) -> String {
        let missing = &self.names.root[self.root.len()..];
        format!("{missing}{}", weight.strip_suffix(".weight").unwrap_or(weight))
    }

    /// Whether a model folder may have a tensor `name` although no parameter needs it. Such a tensor is a buffer, such
    /// as a causal mask, or a tied head's second copy of the table of token embeddings.
    pub fn is_spare(&self, name: &str) -> bool {
        self.is_copy_of_table(name) || has_suffix(name, self.names.buffers) || self.is_obsolete(name)
    }

    /// Whether the tensor `name` is a buffer of an old file that the Transformers library no longer knows.
    pub fn is_obsolete(&self, name: &str) -> bool {
        has_suffix(name, self.names.obsolete)
    }

    /// Whether the tensor `name` is a second copy of the table of token embeddings. Some model folders have such a copy
    /// for a tied head.
    pub fn is_copy_of_table(&self, name: &str) -> bool {
        self.tied && name == UNTIED
    }
}

impl Storage for Naming {
    fn tensor(&self, path: &str, _container: &str) -> HubTensor {
        self.of(path).unwrap_or_else(|| panic!("the parameter `{path}` has no name on the hub"))
    }
}

/// Whether the name of a tensor is one of `suffixes`, or ends in a dot and one of them.
fn has_suffix(name: &str, suffixes: &[&str]) -> bool {
    let mut starts = suffixes.iter().filter_map(|suffix| name.strip_suffix(suffix));
    starts.any(|start| start.is_empty() || start.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_older_files_are_spare() {
        for (names, name, is_spare) in [
            (&crate::families::gpt2::NAMES, "h.3.attn.bias", true),
            (&crate::families::gpt2::NAMES, "transformer.h.3.attn.masked_bias", true),
            (&crate::families::gpt2::NAMES, "transformer.h.3.crossattention.bias", true),
            (&crate::families::gpt2::NAMES, "transformer.h.3.attn.c_attn.bias", false),
            (&crate::families::llama::NAMES, "rotary_emb.inv_freq", true),
            (&crate::families::llama::NAMES, "model.layers.0.self_attn.rotary_emb.inv_freq", true),
            (&crate::families::llama::NAMES, "model.layers.0.self_attn.rotary_emb.cos_cached", true),
            (&crate::families::llama::NAMES, "model.layers.0.self_attn.rotary_emb.sin_cached", true),
            (&crate::families::llama::NAMES, "model.layers.0.self_attn.q_proj.bias", false),
            (&crate::families::llama::NAMES, "model.norotary_emb.inv_freq", false),
        ] {
            assert_eq!(Naming::new(names, true).is_spare(name), is_spare, "{name}");
        }
        for (names, name, is_obsolete) in [
            (&crate::families::gpt2::NAMES, "h.3.attn.masked_bias", true),
            (&crate::families::gpt2::NAMES, "h.3.attn.bias", false),
            (&crate::families::llama::NAMES, "model.layers.0.self_attn.rotary_emb.cos_cached", true),
            (&crate::families::llama::NAMES, "model.layers.0.self_attn.rotary_emb.inv_freq", false),
        ] {
            assert_eq!(Naming::new(names, true).is_obsolete(name), is_obsolete, "{name}");
        }
    }
}
