//! Maps a model's parameters to the tensor names of a model folder in the format of the Hugging Face hub.

/// The tensor on the Hugging Face hub that holds a parameter's values: its name, and whether it is stored transposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTensor {
    pub name: String,
    /// Whether the tensor on the Hugging Face hub is the transpose of the parameter. PyTorch stores the weights of
    /// linear layers as `[outputs, inputs]`, and this crate as `[inputs, outputs]`.
    pub transposed: bool,
}

/// Finds, for each model parameter, the tensor that stores it in a weights file: its name, and whether it is stored
/// transposed.
pub trait Storage {
    /// Returns the tensor that stores the parameter at `path` in the model, such as `blocks.3.linear.weight`.
    /// `container` is burn's name for the type of the module that contains the parameter, such as `Struct:Linear`.
    fn tensor(&self, path: &str, container: &str) -> HubTensor;
}

/// An entry of a family's table of tensor names: a parameter's path within its layer, and its tensor's name on the
/// Hugging Face hub.
pub struct Name {
    path: &'static str,
    hub: &'static str,
    transposed: bool,
}

impl Name {
    /// Creates a table entry for a tensor that is stored on the Hugging Face hub in the parameter's own shape, not
    /// transposed. `path` is the parameter's path in its layer. `hub` is the tensor's name on the hub, without the
    /// model's prefix and the block's index.
    pub const fn same(path: &'static str, hub: &'static str) -> Self {
        Self { path, hub, transposed: false }
    }

    /// Creates a table entry for a tensor that is stored transposed on the Hugging Face hub. `path` is the parameter's
    /// path in its layer. `hub` is the tensor's name on the hub, without the model's prefix and the block's index.
    pub const fn transposed(path: &'static str, hub: &'static str) -> Self {
        Self { path, hub, transposed: true }
    }
}

/// The tensor names of a model family on the Hugging Face hub, by layer and parameter.
pub struct Names {
    /// The family's tensor name prefix, such as `model.`. An untied head's projection, and all tensors of a model
    /// folder that was saved without a head, lack it.
    pub root: &'static str,
    pub embeddings: &'static [Name],
    /// The segment of a tensor name between the family's prefix and the block's index, such as `layers.` in
    /// `model.layers.0.mlp.up_proj.weight`.
    pub blocks: &'static str,
    pub block: &'static [Name],
    pub head: &'static [Name],
    /// The path of the token embedding table in the first layer, such as `tokens.weight`.
    pub table: &'static str,
    /// Name suffixes of buffers, such as a causal mask, which a model folder may contain although no parameter needs
    /// them. The suffix is the whole name or follows a dot.
    pub buffers: &'static [&'static str],
    /// Name suffixes of obsolete buffers in old files. Exports leave them out, because the Transformers library would
    /// report them as unexpected.
    pub obsolete: &'static [&'static str],
}

/// The path, in a model's head (last layer), of the weight that projects activations to the vocabulary. If the head is
/// tied, this weight is the token embedding table.
pub const OUTPUT: &str = "output.weight";

/// The name, on the Hugging Face hub, of an untied head's projection to the vocabulary. An untied head does not share
/// the token embedding table.
pub const UNTIED: &str = "lm_head.weight";

/// The names of a language model's layers: the embeddings, the list of blocks, and the head.
pub const LAYERS: [&str; 3] = [EMBEDDINGS, BLOCKS, HEAD];

const EMBEDDINGS: &str = "embeddings";
const BLOCKS: &str = "blocks";
const HEAD: &str = "head";

/// The tensor names in one model's folder: its family's names, with or without the family's prefix, such as `model.`.
#[derive(Clone)]
pub struct Naming {
    names: &'static Names,
    root: &'static str,
    tied: bool,
    /// The token embedding table's name in the model folder, if it is not the family's usual name.
    table: Option<&'static str>,
}

impl Naming {
    /// Creates a model's tensor names from its family's `names`. `tied` says whether the head's projection and the
    /// token embedding table are one parameter.
    pub fn new(names: &'static Names, tied: bool) -> Self {
        Self { names, root: names.root, tied, table: None }
    }

    /// Returns the tensor names as they are in a particular model folder, which may differ from the family's usual
    /// names. `has` says whether the folder contains a tensor of a given name.
    ///
    /// - The family's prefix, such as `model.`, is dropped if the folder stores the token embedding table only without
    ///   it.
    /// - If the head is tied and the folder has no token embedding table, the table is read from the head's projection.
    pub fn in_folder(self, has: impl Fn(&str) -> bool) -> Self {
        let bare = Self { root: "", ..self.clone() };
        let names = [self.clone(), bare.clone()];
        if let Some(found) = names.into_iter().find(|names| has(&names.table().name)) {
            return found;
        }
        if !(self.tied && has(UNTIED)) {
            return self;
        }
        // Without a table, the final norm's name shows whether the folder uses the prefix.
        let has_norm = |names: &Self| names.names.head.iter().any(|name| has(&format!("{}{}", names.root, name.hub)));
        let names = if !has_norm(&self) && has_norm(&bare) { bare } else { self };
        Self { table: Some(UNTIED), ..names }
    }

    /// Returns the same tensor names for an untied head, whose projection to the vocabulary is a separate tensor.
    pub fn untied(self) -> Self {
        Self { tied: false, ..self }
    }

    /// Whether the head is tied: its projection to the vocabulary and the token embedding table are one parameter.
    pub fn tied(&self) -> bool {
        self.tied
    }

    /// Returns the token embedding table's tensor on the Hugging Face hub: its name, and whether it is stored
    /// transposed.
    pub fn table(&self) -> HubTensor {
        self.of(&format!("{EMBEDDINGS}.{}", self.names.table)).expect("a family names its table")
    }

    /// Returns the tensor on the Hugging Face hub for the parameter at `path` in the model, such as
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

    /// Returns PEFT's name for a linear layer, given its weight's tensor name on the Hugging Face hub. It has the
    /// family's prefix, such as `model.`, even if the model folder's tensors lack it.
    pub fn module_of(&self, weight: &str) -> String {
        let missing = &self.names.root[self.root.len()..];
        format!("{missing}{}", weight.strip_suffix(".weight").unwrap_or(weight))
    }

    /// Whether a model folder may have a tensor `name` although no parameter needs it: a buffer, such as a causal mask,
    /// or a tied head's second copy of the token embedding table.
    pub fn is_spare(&self, name: &str) -> bool {
        self.is_copy_of_table(name) || has_suffix(name, self.names.buffers) || self.is_obsolete(name)
    }

    /// Whether the tensor `name` is an obsolete buffer of an old file, which the Transformers library ignores.
    pub fn is_obsolete(&self, name: &str) -> bool {
        has_suffix(name, self.names.obsolete)
    }

    /// Whether the tensor `name` is a second copy of the token embedding table, which some model folders have for a
    /// tied head.
    pub fn is_copy_of_table(&self, name: &str) -> bool {
        self.tied && name == UNTIED
    }
}

impl Storage for Naming {
    fn tensor(&self, path: &str, _container: &str) -> HubTensor {
        self.of(path).unwrap_or_else(|| panic!("the parameter `{path}` has no name on the hub"))
    }
}

/// Whether a tensor's name is equal to one of `suffixes`, or ends in a dot followed by one of them.
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
