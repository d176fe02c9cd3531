//! Blocks of a row that may be split between two stages ([`Halves`]).

use crate::model::stage::Stage;

/// A block of a [`Row`](crate::Row) that consists of two sequential halves, such as attention and feed-forward in a
/// transformer block. With [`Row::halved`](crate::Row::halved), a stage may end between the two halves, so that stages
/// can be balanced to half a block.
///
/// A value of a type with this trait is a whole block or one of its halves. The two halves, run one after the other,
/// compute the output of the whole block, bit for bit. Each parameter must be in one half only, and burn must visit the
/// first half's parameters before the second half's. Otherwise the global gradient norm may have other bits with
/// another partition.
///
/// ```
/// use burn::module::Module;
/// use burn::tensor::{Tensor, activation::relu};
/// use stageline::{Halves, Stage};
/// use stageline::nn::Linear;
///
/// #[derive(Module, Debug)]
/// struct Block {
///     up: Option<Linear>,
///     down: Option<Linear>,
/// }
/// impl Stage for Block {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///     fn forward(&self, input: Tensor<2>) -> Tensor<2> {
///         let input = self.up.iter().fold(input, |input, up| relu(up.forward(input)));
///         self.down.iter().fold(input, |input, down| down.forward(input))
///     }
/// }
/// impl Halves for Block {
///     const NAMES: [&'static str; 2] = ["up", "down"];
///     fn halves(self) -> [Self; 2] {
///         [Self { up: self.up, down: None }, Self { up: None, down: self.down }]
///     }
///     fn join(self, second: Self) -> Self {
///         Self { up: self.up, down: second.down }
///     }
///     fn is_first_half(&self) -> bool {
///         self.down.is_none()
///     }
/// }
/// ```
pub trait Halves: Stage<Output = <Self as Stage>::Input> {
    /// The names of the first and the second half in [`Costs`](crate::Costs). The two names must differ. If possible,
    /// use the names of the block's fields that hold the two halves. The names of a layer's parameters in checkpoints
    /// then begin with the layer's name. With `["attention", "mlp"]` the halves of `blocks.3` are `blocks.3.attention`
    /// and `blocks.3.mlp`.
    const NAMES: [&'static str; 2];

    /// Divides a whole block into its first and its second half.
    fn halves(self) -> [Self; 2];

    /// Joins the first half of a block (`self`) and its second half (`second`) into the whole block.
    fn join(self, second: Self) -> Self;

    /// Whether this is the first half of a block, and not the second half or a whole block. A whole block must not look
    /// like a first half, even if its second half has no parameters.
    fn is_first_half(&self) -> bool;
}

/// The part of a block that forms one layer of a [`Row`](crate::Row) (first layer, blocks, last layer): the whole
/// block, its first half or its second half.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Piece {
    Whole,
    First,
    Second,
}

/// The division of a row's blocks into layers: each block is a layer, or each half of a block is a layer.
pub(super) enum Division<B> {
    /// Each block is one layer.
    Blocks,
    /// Each half of a block is a layer. The fields hold what the block type defines for the trait [`Halves`]: the
    /// `names` of the two halves, how to `join` them, and how to recognise a first half.
    Halves { names: [&'static str; 2], join: fn(B, B) -> B, is_first_half: fn(&B) -> bool },
}

impl<B: Halves> Division<B> {
    pub fn halves() -> Self {
        Self::Halves { names: B::NAMES, join: B::join, is_first_half: B::is_first_half }
    }
}

impl<B> Division<B> {
    /// Returns the number of layers that each block consists of: 1, or 2 if its halves are layers.
    pub fn layers(&self) -> usize {
        match self {
            Self::Blocks => 1,
            Self::Halves { .. } => 2,
        }
    }

    /// Returns the zero-based index of the layer's block, and the part of the block (whole or half) that is this layer.
    /// `layer` is a zero-based index that counts from the row's first block, not from its first layer.
    pub fn place_of(&self, layer: usize) -> (usize, Piece) {
        match self {
            Self::Blocks => (layer, Piece::Whole),
            Self::Halves { .. } if layer.is_multiple_of(2) => (layer / 2, Piece::First),
            Self::Halves { .. } => (layer / 2, Piece::Second),
        }
    }

    /// Returns the layer name of part `piece` of the block named `block`, such as `blocks.3.mlp` for a half of
    /// `blocks.3`.
    pub fn name(&self, block: String, piece: Piece) -> String {
        match (self, piece) {
            (Self::Halves { names: [first, _], .. }, Piece::First) => format!("{block}.{first}"),
            (Self::Halves { names: [_, second], .. }, Piece::Second) => format!("{block}.{second}"),
            _ => block,
        }
    }

    /// Joins neighbouring halves in `layers` into whole blocks. `layers` has the layers of consecutive blocks, in
    /// order. A second half at the start or a first half at the end has no counterpart in `layers`, and stays a half.
    pub fn joined(&self, layers: impl IntoIterator<Item = B>) -> Vec<B> {
        let Self::Halves { join, is_first_half, .. } = self else { return layers.into_iter().collect() };
        layers.into_iter().fold(Vec::new(), |mut blocks, layer| {
            let layer = match blocks.pop_if(|last| is_first_half(last)) {
                Some(first) => join(first, layer),
                None => layer,
            };
            blocks.push(layer);
            blocks
        })
    }
}

impl Piece {
    /// Extracts from `block` the part that this `Piece` names: the whole block, its first half or its second half.
    pub fn of<B: Halves>(self, block: B) -> B {
        match self {
            Self::Whole => block,
            Self::First => {
                let [first, _] = block.halves();
                first
            }
            Self::Second => {
                let [_, second] = block.halves();
                second
            }
        }
    }
}
