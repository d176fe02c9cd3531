//! Blocks of a row that a cut may divide in two ([`Halves`]).

use crate::model::stage::Stage;

/// A block of a [`Row`](crate::Row) that consists of two parts in sequence, such as the attention and the feed-forward
/// part of a transformer block. With [`Row::halved`](crate::Row::halved), a stage may end between the two parts, so
/// that the costs of stages can be balanced to half a block.
///
/// A value of the type is a whole block or one of its halves. Halves that run one after the other must give the bits of
/// the whole block. No parameter may be in both halves.
pub trait Halves: Stage<Output = <Self as Stage>::Input> {
    /// The names of the first and the second half, by which [`Costs`](crate::Costs) name them. For example, with
    /// `["attention", "mlp"]` the halves of `blocks.3` are `blocks.3.attention` and `blocks.3.mlp`.
    const NAMES: [&'static str; 2];

    /// Divides a whole block into its halves, in the order in which they run.
    fn halves(self) -> [Self; 2];

    /// Joins the first half of a block, `self`, and its second half to the whole block.
    fn join(self, second: Self) -> Self;

    /// Whether this is the first half of a block, and not the second half or a whole block.
    fn is_first_half(&self) -> bool;
}

/// The layers of a block of a row: the block itself or its halves.
pub(super) enum Division<B> {
    Whole,
    /// The names of the two halves of a block, and the functions of [`Halves`].
    Halves {
        names: [&'static str; 2],
        halves: fn(B) -> [B; 2],
        join: fn(B, B) -> B,
        is_first_half: fn(&B) -> bool,
    },
}

impl<B: Halves> Division<B> {
    pub fn halves() -> Self {
        Self::Halves { names: B::NAMES, halves: B::halves, join: B::join, is_first_half: B::is_first_half }
    }
}

impl<B> Division<B> {
    /// Returns the number of layers of each block: 1, or 2 if its halves are layers.
    pub fn layers(&self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Halves { .. } => 2,
        }
    }

    /// Returns the name of a layer of the block with the name `block`. `layer` is its index in the block, 0 or 1.
    pub fn name(&self, block: &str, layer: usize) -> String {
        match self {
            Self::Whole => block.to_owned(),
            Self::Halves { names, .. } => format!("{block}.{}", names[layer]),
        }
    }

    /// Returns a layer of a whole block. `layer` is its index in the block, 0 or 1.
    pub fn layer(&self, block: B, layer: usize) -> B {
        match self {
            Self::Whole => block,
            Self::Halves { halves, .. } => {
                let [first, second] = halves(block);
                if layer == 0 { first } else { second }
            }
        }
    }

    /// Joins the layers of consecutive blocks to blocks. The first layer may be the second half of a block, and the
    /// last one the first half of a block; these stay halves.
    pub fn joined(&self, layers: impl IntoIterator<Item = B>) -> Vec<B> {
        let Self::Halves { join, is_first_half, .. } = self else { return layers.into_iter().collect() };
        layers.into_iter().fold(Vec::new(), |mut blocks, layer| {
            let first = blocks.pop_if(|last| is_first_half(last));
            blocks.push(match first {
                Some(first) => join(first, layer),
                None => layer,
            });
            blocks
        })
    }
}
