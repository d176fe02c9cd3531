//! The correspondence of a model's parameters with the tensors of a folder of the hub.

/// The place of a layer in the row of a model's layers; a block has its index, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Embeddings,
    Block(usize),
    Head,
}

/// The tensor on the Hugging Face hub that has the values of a parameter: its name, and whether it is stored
/// transposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTensor {
    pub name: String,
    /// Whether the tensor's rows are the parameter's columns: PyTorch's linear layers have weights `[outputs, inputs]`,
    /// and those here `[inputs, outputs]`.
    pub transposed: bool,
}

/// The tensor of one parameter of a layer: the parameter's path in the layer, and the tensor's name on the Hugging Face
/// hub.
pub struct Name {
    path: &'static str,
    hub: &'static str,
    transposed: bool,
}

impl Name {
    /// Creates the name of a parameter's tensor that has the same shape on the Hugging Face hub.
    pub const fn same(path: &'static str, hub: &'static str) -> Self {
        Self { path, hub, transposed: false }
    }

    /// Creates the name of a parameter's tensor whose rows and columns are exchanged on the Hugging Face hub.
    pub const fn transposed(path: &'static str, hub: &'static str) -> Self {
        Self { path, hub, transposed: true }
    }
}

/// The names of all tensors of a model family on the Hugging Face hub, by the layer and the parameter.
pub struct Names {
    /// The prefix of the names of all tensors, such as `model.`, except that of an untied head; folders of a model
    /// without a head lack the prefix.
    pub root: &'static str,
    pub embeddings: &'static [Name],
    /// The prefix of the names of blocks' tensors after the root, such as `layers.`; the index of the block follows it.
    pub blocks: &'static str,
    pub block: &'static [Name],
    pub head: &'static [Name],
    /// The path of the table of token embeddings in the first layer, such as `tokens.weight`.
    pub table: &'static str,
    /// The ends of the names of tensors that folders have and no parameter needs, such as causal masks.
    pub buffers: &'static [&'static str],
}

/// The path, in the head, of the parameter that projects to the vocabulary. In a tied model it is the table of token
/// embeddings.
pub const OUTPUT: &str = "output.weight";

/// The name on the Hugging Face hub of the tensor of an untied head's projection to the vocabulary.
pub const UNTIED: &str = "lm_head.weight";

/// The names of the tensors of one model on the Hugging Face hub. Depending on the model's folder, the names begin with
/// the family's prefix, such as `model.`, or lack it.
#[derive(Clone)]
pub struct Naming {
    names: &'static Names,
    root: &'static str,
    tied: bool,
}

impl Naming {
    /// Creates the names of the tensors of a model. `tied` says whether the head's projection is the table of token
    /// embeddings.
    pub fn new(names: &'static Names, tied: bool) -> Self {
        Self { names, root: names.root, tied }
    }

    /// Returns the names of the model's tensors in a folder. The names lack the family's prefix, such as `model.`, if
    /// the folder has the table of token embeddings only under a name without this prefix. `has` tells whether the
    /// folder has a tensor of a given name.
    pub fn in_folder(self, has: impl Fn(&str) -> bool) -> Self {
        let rooted = self.table().name;
        let bare = &rooted[self.names.root.len()..];
        if !has(&rooted) && has(bare) { Self { root: "", ..self } } else { self }
    }

    /// Returns the names of the same model with a head that has a tensor of its own.
    pub fn untied(self) -> Self {
        Self { tied: false, ..self }
    }

    /// Whether the head's projection to the vocabulary is tied to the table of token embeddings: both are one
    /// parameter.
    pub fn tied(&self) -> bool {
        self.tied
    }

    /// Returns the tensor on the Hugging Face hub of the table of token embeddings.
    pub fn table(&self) -> HubTensor {
        self.of(Place::Embeddings, self.names.table).expect("a family names its table")
    }

    /// Returns the tensor on the Hugging Face hub of the parameter at `path` in the layer at `place`; `None` if the
    /// family does not name it.
    pub fn of(&self, place: Place, path: &str) -> Option<HubTensor> {
        if place == Place::Head && path == OUTPUT {
            return Some(match self.tied {
                true => self.table(),
                false => HubTensor { name: UNTIED.to_owned(), transposed: false },
            });
        }
        let names = match place {
            Place::Embeddings => self.names.embeddings,
            Place::Block(_) => self.names.block,
            Place::Head => self.names.head,
        };
        let found = names.iter().find(|name| name.path == path)?;
        let layer = match place {
            Place::Block(index) => format!("{}{index}.", self.names.blocks),
            _ => String::new(),
        };
        Some(HubTensor { name: format!("{}{layer}{}", self.root, found.hub), transposed: found.transposed })
    }

    /// Whether a folder may have a tensor of this name although no parameter needs it: a buffer, or a copy of a tied
    /// table.
    pub fn is_spare(&self, name: &str) -> bool {
        self.is_copy_of_table(name) || self.names.buffers.iter().any(|end| name.ends_with(end))
    }

    /// Whether the tensor of this name is a second copy of the table of token embeddings, which some folders have for a
    /// tied head.
    pub fn is_copy_of_table(&self, name: &str) -> bool {
        self.tied && name == UNTIED
    }
}
