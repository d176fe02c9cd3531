//! The correspondence of a model's parameters with the tensors of a folder of the hub.

/// The place of a layer in the row of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Embeddings,
    Block(usize),
    Head,
}

/// The name and layout of the tensor on the hub that has the values of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTensor {
    pub name: String,
    /// Whether rows and columns are exchanged: PyTorch's linear layers have weights `[outputs, inputs]`.
    pub transposed: bool,
}

/// The tensor of one parameter of a layer: the parameter's path in the layer, and the tensor's name on the hub.
pub struct Name {
    path: &'static str,
    hub: &'static str,
    transposed: bool,
}

impl Name {
    /// Names the tensor of a parameter that has the same shape on the hub.
    pub const fn same(path: &'static str, hub: &'static str) -> Self {
        Self { path, hub, transposed: false }
    }

    /// Names the tensor of a parameter whose rows are columns on the hub.
    pub const fn transposed(path: &'static str, hub: &'static str) -> Self {
        Self { path, hub, transposed: true }
    }
}

/// The names of all tensors of a model family.
pub struct Names {
    /// The prefix of all tensors except that of an untied head; folders of a model without a head lack it.
    pub root: &'static str,
    pub embeddings: &'static [Name],
    /// The prefix of the blocks after the root, which the index of a block follows.
    pub blocks: &'static str,
    pub block: &'static [Name],
    pub head: &'static [Name],
    /// The path of the table in the embeddings.
    pub table: &'static str,
    /// The ends of the names of tensors that folders have and no parameter needs, such as causal masks.
    pub buffers: &'static [&'static str],
}

/// The path of the head's projection to the vocabulary, which is the embeddings' table if the two are tied.
pub const OUTPUT: &str = "output.weight";

/// The name of the tensor of an untied head.
pub const UNTIED: &str = "lm_head.weight";

/// The names of the tensors of one model, in a folder whose names have or lack the family's root.
#[derive(Clone)]
pub struct Naming {
    names: &'static Names,
    root: &'static str,
    tied: bool,
}

impl Naming {
    /// Creates the names of a model whose head is tied to the embeddings or not.
    pub fn new(names: &'static Names, tied: bool) -> Self {
        Self { names, root: names.root, tied }
    }

    /// Returns the names of the same model in a folder that has tensors of these names: without the family's root if the
    /// folder has the table without it.
    pub fn in_folder(self, has: impl Fn(&str) -> bool) -> Self {
        let rooted = self.table().name;
        let bare = &rooted[self.names.root.len()..];
        if !has(&rooted) && has(bare) { Self { root: "", ..self } } else { self }
    }

    /// Whether the head's projection is the embeddings' table.
    pub fn tied(&self) -> bool {
        self.tied
    }

    /// Returns the tensor of the embeddings' table.
    pub fn table(&self) -> HubTensor {
        self.of(Place::Embeddings, self.names.table).expect("a family names its table")
    }

    /// Returns the tensor of the parameter at `path` in the layer at `place`; `None` if the family does not name it.
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

    /// Whether the tensor of this name is a second copy of the embeddings' table, which some folders have for a tied
    /// head.
    pub fn is_copy_of_table(&self, name: &str) -> bool {
        self.tied && name == UNTIED
    }
}
