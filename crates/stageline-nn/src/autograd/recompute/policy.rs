//! Activation checkpointing: the choice of the parts of a stage's model that the backward pass recomputes
//! ([`Recompute`]), and the counts of the chosen parts ([`Parts`]).

use std::cell::Cell;
use std::fmt;
use std::num::NonZero;

use crate::forward::thread_scope::during;

/// A setting of activation checkpointing: the parts of a stage whose activations the backward pass recomputes. All
/// other activations are kept from the forward pass. A block is a part marked by [`block`](super::block), or an element
/// of a [`sequence`](super::sequence).
///
/// Gradients have the same bits with every setting, with two exceptions, in which they are added in another order:
///
/// - A part uses its input more than once, and the model also uses this input elsewhere.
/// - Several parts each use one weight more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Recomputes nothing: all activations are kept from the forward pass.
    #[default]
    Nothing,
    /// Recomputes the parts marked by [`selective`](super::selective), such as attention. Their activations are large
    /// and cheap to compute (Korthikanti et al., 2022, [arXiv:2205.05198](https://arxiv.org/abs/2205.05198)).
    Selective,
    /// Recomputes the parts marked by [`feed_forward`](super::feed_forward). Their hidden activations are the widest of
    /// a transformer.
    FeedForward,
    /// Recomputes the first n blocks of a stage, or all if there are fewer. The value is n.
    Blocks(usize),
    /// Recomputes one of every n blocks of a stage, beginning with the first. The value is n, which is at least 1.
    EveryNth(NonZero<usize>),
    /// Recomputes a set of blocks, given by their numbers, counted from 0 within the stage.
    Only(BlockSet),
    /// Recomputes the blocks of a [`sequence`](super::sequence) in segments of n consecutive blocks. The value is n.
    /// Only the inputs of segments are kept, and during the backward pass only the activations of one segment at a
    /// time.
    Segments(NonZero<usize>),
    /// Recomputes the L blocks of a [`sequence`](super::sequence) in segments of about sqrt(L) blocks (Chen et al.,
    /// 2016, [arXiv:1604.06174](https://arxiv.org/abs/1604.06174)). If a block's input is as large as its activations,
    /// this needs about as much memory as the activations of 2 sqrt(L) blocks. A transformer block's activations are
    /// far larger than its input, so recomputing all blocks ([`Full`](Self::Full)) needs less memory.
    SquareRoot,
    /// Recomputes all blocks and keeps only their inputs. A step then needs about a third more computation.
    Full,
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "nothing"),
            Self::Selective => write!(f, "selective parts"),
            Self::FeedForward => write!(f, "feed-forward parts"),
            Self::Blocks(blocks) => write!(f, "the first {blocks} blocks"),
            Self::EveryNth(n) => write!(f, "one of every {n} blocks"),
            Self::Only(blocks) => write!(f, "the blocks {blocks}"),
            Self::Segments(n) => write!(f, "segments of {n} blocks"),
            Self::SquareRoot => write!(f, "segments of about sqrt(L) of L blocks"),
            Self::Full => write!(f, "all blocks"),
        }
    }
}

/// A set of recomputed blocks of a stage (see [`Recompute::Only`]), with numbers from 0 to 127.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSet(u128);

/// The error for a block whose number is above 127, which a [`BlockSet`] cannot contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOutOfRange {
    /// The number of the block, which is above 127.
    pub block: usize,
}

impl fmt::Display for BlockOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} cannot be selected for recomputation: give numbers from 0 to 127", self.block)
    }
}

impl std::error::Error for BlockOutOfRange {}

impl BlockSet {
    /// Makes a set of recomputed blocks. `blocks` are the numbers of the blocks within the stage, counted from 0.
    ///
    /// # Errors
    /// Returns [`BlockOutOfRange`] for the first number above 127.
    pub fn new(blocks: impl IntoIterator<Item = usize>) -> Result<Self, BlockOutOfRange> {
        blocks.into_iter().try_fold(Self::default(), |Self(set), block| match block {
            0..128 => Ok(Self(set | 1 << block)),
            _ => Err(BlockOutOfRange { block }),
        })
    }

    /// Whether the stage's block with the number `block` is in this set of recomputed blocks.
    pub fn contains(self, block: usize) -> bool {
        block < 128 && self.0 & 1 << block != 0
    }
}

/// Displays a set of recomputed blocks as the blocks' numbers in ascending order, separated by commas.
impl fmt::Display for BlockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = (0..128).filter(|&block| self.contains(block)).map(|block| block.to_string()).collect();
        f.write_str(&numbers.join(","))
    }
}

/// The kind of a part that a model marks for recomputation. There is one kind for each marking function:
/// [`block`](super::block), [`selective`](super::selective) and [`feed_forward`](super::feed_forward).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Block,
    Selective,
    FeedForward,
}

thread_local! {
    /// The [`Recompute`] setting of the forward pass that runs on this thread.
    static POLICY: Cell<Recompute> = const { Cell::new(Recompute::Nothing) };
    /// The number of blocks that the forward pass on this thread has begun so far, which is the index, from 0, of the
    /// next block. The [`Recompute`] setting selects blocks by their indices.
    static PASSED: Cell<usize> = const { Cell::new(0) };
    /// Whether the forward pass on this thread is inside a block of a [`sequence`](super::sequence) that is not
    /// recomputed. Other blocks inside this block are neither counted nor recomputed.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The counts of the parts (such as blocks) that the [`Recompute`] setting has selected so far in the forward pass
    /// on this thread.
    static PARTS: Cell<Parts> = const { Cell::new(Parts { recomputed: 0, untracked: 0, unsupported: 0 }) };
}

/// The counts of the parts of a stage (such as blocks or attentions) that a [`Recompute`] setting selected in one
/// forward pass. The backward pass recomputes some of them. The activations of the others are kept, because these parts
/// cannot be recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The number of selected parts (blocks, attentions and feed-forward parts) that the backward pass recomputes.
    pub(super) recomputed: usize,
    /// The number of selected parts that keep their activations because autodiff does not track their inputs.
    pub(super) untracked: usize,
    /// The number of selected parts that keep their activations because this crate was built without the backend of
    /// their inputs, or because burn's own gradient checkpointing is on.
    pub(super) unsupported: usize,
}

impl Parts {
    /// Whether the [`Recompute`] setting selected no part of a stage, for example because the stage has only
    /// embeddings.
    pub fn are_none(self) -> bool {
        self == Self::default()
    }

    /// Returns a message if the [`Recompute`] setting asks for recomputation but no part of the stage is recomputed.
    /// The message says why, and how to remedy that. Returns `None` if at least one part is recomputed.
    pub fn complaint(self) -> Option<&'static str> {
        match self {
            Self { recomputed: 1.., .. } => None,
            Self { unsupported: 1.., .. } => Some(
                "this build has no operations for the backend of its device, or burn's gradient checkpointing is on; \
                 place the stage on a CPU or a GPU, and turn burn's gradient checkpointing off",
            ),
            Self { untracked: 1.., .. } => Some(
                "the inputs of all its marked parts are outside the graph; mark parts behind a layer with parameters, and \
                 do not detach their inputs",
            ),
            Self { .. } => Some(
                "it has no part that the policy names; mark its parts by `nn::block`, `nn::selective` or \
                 `nn::feed_forward`, and run blocks that form segments by `nn::sequence`, or as a `Vec` of stages whose input \
                 has one float tensor",
            ),
        }
    }
}

impl Recompute {
    /// Calls a stage's `forward`. The parts that this [`Recompute`] setting selects keep no activations and are
    /// recomputed in the backward pass. Returns the result of `forward` and the counts of the selected parts.
    pub fn counting<R>(self, forward: impl FnOnce() -> R) -> (R, Parts) {
        PARTS.set(Parts::default());
        let result = self.during(forward);
        (result, PARTS.take())
    }

    /// Calls a stage's `forward` and returns its result. The parts that this [`Recompute`] setting selects keep no
    /// activations and are recomputed in the backward pass, which must run inside
    /// [`autograd::gather`](crate::autograd::gather).
    pub fn during<R>(self, forward: impl FnOnce() -> R) -> R {
        during(&PASSED, 0, || during(&POLICY, self, forward))
    }
}

impl Mark {
    /// Whether the [`Recompute`] setting of this thread selects the next part of the forward pass, a part of the kind
    /// `self`, for recomputation. If the part is a block, the call also adds it to the count of blocks, because blocks
    /// are selected by their numbers. Inside a block of a [`sequence`](super::sequence) that is not recomputed, other
    /// blocks are neither selected nor counted.
    pub(super) fn is_selected(self) -> bool {
        if self == Self::Block && INSIDE.get() {
            return false;
        }
        let block = PASSED.get();
        PASSED.set(block + usize::from(self == Self::Block));
        match (POLICY.get(), self) {
            (Recompute::Full, Self::Block)
            | (Recompute::Selective, Self::Selective)
            | (Recompute::FeedForward, Self::FeedForward) => true,
            (Recompute::Blocks(blocks), Self::Block) => block < blocks,
            (Recompute::EveryNth(n), Self::Block) => block.is_multiple_of(n.get()),
            (Recompute::Only(blocks), Self::Block) => blocks.contains(block),
            _ => false,
        }
    }
}

/// The division of a sequence of blocks into parts for recomputation. A part is a single block, or a segment of several
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceParts {
    /// Single blocks, of which the [`Recompute`] setting selects the recomputed ones by their indices (from 0).
    Blocks,
    /// Segments of n consecutive blocks, all of which are recomputed. The value is n.
    Segments(usize),
}

impl SequenceParts {
    /// Returns the division of a sequence of `blocks` blocks under the [`Recompute`] setting of this thread. Returns
    /// `None` if the setting selects neither blocks nor segments, and inside a block of another sequence.
    pub fn of(blocks: usize) -> Option<Self> {
        match POLICY.get() {
            _ if INSIDE.get() => None,
            Recompute::Nothing | Recompute::Selective | Recompute::FeedForward => None,
            Recompute::Blocks(_) | Recompute::EveryNth(_) | Recompute::Only(_) | Recompute::Full => Some(Self::Blocks),
            Recompute::Segments(n) => Some(Self::Segments(n.get())),
            Recompute::SquareRoot => Some(Self::Segments((blocks as f64).sqrt().ceil().max(1.0) as usize)),
        }
    }

    /// Runs a sequence of blocks part by part and returns the output of the last part. A part is one block or a segment
    /// of blocks. The closure `recomputed` computes the parts that the [`Recompute`] setting selects, and the closure
    /// `kept` computes the others. Each closure gets the blocks of a part and the input of the part.
    ///
    /// While `kept` runs, the calls of [`block`](super::block) inside its part are neither counted nor recomputed.
    pub fn run<B, T>(
        self,
        blocks: &[B],
        input: T,
        kept: impl Fn(&[B], T) -> T,
        recomputed: impl Fn(&[B], T) -> T,
    ) -> T {
        blocks.chunks(self.length()).fold(input, |input, part| match self.takes_next() {
            true => recomputed(part, input),
            false => during(&INSIDE, true, || kept(part, input)),
        })
    }

    /// Returns the number of blocks in each part of a sequence of blocks. The last part may have fewer.
    fn length(self) -> usize {
        match self {
            Self::Blocks => 1,
            Self::Segments(blocks) => blocks,
        }
    }

    /// Returns whether the backward pass recomputes the next part of a sequence of blocks. If the part is a single
    /// block, the call also counts it, because blocks are selected by their numbers.
    fn takes_next(self) -> bool {
        self != Self::Blocks || Mark::Block.is_selected()
    }
}

/// Changes the counts of recomputed and kept parts of this thread's forward pass by the closure `count`.
pub(super) fn note(count: fn(&mut Parts)) {
    let mut parts = PARTS.get();
    count(&mut parts);
    PARTS.set(parts);
}
