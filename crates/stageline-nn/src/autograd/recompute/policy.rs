//! The settings of activation recomputation (activation checkpointing): which submodules of a stage the backward pass
//! recomputes ([`Recompute`]), and how many submodules a setting selected ([`Parts`]).

use std::cell::Cell;
use std::fmt;
use std::num::NonZero;

use crate::forward::thread_scope::during;

/// Which submodules of a stage the backward pass recomputes (activation checkpointing). All other activations are
/// retained from the forward pass. A block is a submodule marked by [`block`](super::block), or an element of a
/// [`sequence`](super::sequence).
///
/// Gradients are bitwise identical with every setting, with two exceptions, in which they are summed in a different
/// order:
///
/// - A submodule uses its input more than once, and the model also uses this input elsewhere.
/// - Several submodules each use one weight more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Recomputes nothing: all activations are retained from the forward pass.
    #[default]
    Nothing,
    /// Recomputes the submodules marked by [`selective`](super::selective), such as attention. Their activations are
    /// large and cheap to compute (Korthikanti et al., 2022, [arXiv:2205.05198](https://arxiv.org/abs/2205.05198)).
    Selective,
    /// Recomputes the submodules marked by [`feed_forward`](super::feed_forward). Their hidden activations are the
    /// widest of a transformer.
    FeedForward,
    /// Recomputes the first n blocks of the stage and retains the activations of the others. The value is n; if the
    /// stage has fewer blocks, all are recomputed.
    Blocks(usize),
    /// Recomputes every n-th block of the stage, beginning with the first. The value is n, which is at least 1.
    EveryNth(NonZero<usize>),
    /// Recomputes only the blocks in this set, given by their zero-based indices within the stage.
    Only(BlockSet),
    /// Recomputes the blocks of a [`sequence`](super::sequence) in segments of n consecutive blocks. The value is n.
    /// The forward pass retains only the segments' inputs. The backward pass recomputes one segment's activations at a
    /// time.
    Segments(NonZero<usize>),
    /// Recomputes the L blocks of a [`sequence`](super::sequence) in segments of about sqrt(L) blocks (Chen et al.,
    /// 2016, [arXiv:1604.06174](https://arxiv.org/abs/1604.06174)). If a block's input is as large as its activations,
    /// this needs about as much memory as the activations of 2 sqrt(L) blocks. A transformer block's activations are
    /// far larger than its input, so recomputing all blocks ([`Full`](Self::Full)) needs less memory.
    SquareRoot,
    /// Recomputes all blocks of the stage and retains only their inputs. A step then needs about a third more
    /// computation.
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

/// A set of block indices from 0 to 127, which selects a stage's recomputed blocks in [`Recompute::Only`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSet(u128);

/// The error for a block index above 127, which a [`BlockSet`] cannot contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOutOfRange {
    /// The rejected block index, which is above the maximum of 127.
    pub block: usize,
}

impl fmt::Display for BlockOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} cannot be selected for recomputation: give numbers from 0 to 127", self.block)
    }
}

impl std::error::Error for BlockOutOfRange {}

impl BlockSet {
    /// Makes a set of recomputed blocks. `blocks` are the indices of the blocks within the stage, counted from 0.
    ///
    /// # Errors
    /// Returns [`BlockOutOfRange`] for the first index above 127.
    pub fn new(blocks: impl IntoIterator<Item = usize>) -> Result<Self, BlockOutOfRange> {
        blocks.into_iter().try_fold(Self::default(), |Self(set), block| match block {
            0..128 => Ok(Self(set | 1 << block)),
            _ => Err(BlockOutOfRange { block }),
        })
    }

    /// Whether the stage's block with the index `block` is in this set of recomputed blocks.
    pub fn contains(self, block: usize) -> bool {
        block < 128 && self.0 & 1 << block != 0
    }
}

/// Displays a set of recomputed blocks as the blocks' indices in ascending order, separated by commas.
impl fmt::Display for BlockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = (0..128).filter(|&block| self.contains(block)).map(|block| block.to_string()).collect();
        f.write_str(&numbers.join(","))
    }
}

/// Kinds of submodules that a model can mark for recomputation, one for each marking function: [`block`](super::block),
/// [`selective`](super::selective) and [`feed_forward`](super::feed_forward).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Block,
    Selective,
    FeedForward,
}

thread_local! {
    /// The [`Recompute`] setting of this thread's running forward pass.
    static POLICY: Cell<Recompute> = const { Cell::new(Recompute::Nothing) };
    /// Zero-based index of the next block in this thread's running forward pass. The [`Recompute`] setting selects
    /// blocks by their indices.
    static PASSED: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread's forward pass is inside a [`sequence`](super::sequence) block that is not recomputed.
    /// Blocks nested in it are neither counted nor recomputed.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// How many submodules (such as blocks) of this thread's forward pass the [`Recompute`] setting has selected so
    /// far. Those that are recomputed and those that cannot be are counted separately.
    static PARTS: Cell<Parts> = const { Cell::new(Parts { recomputed: 0, untracked: 0, unsupported: 0 }) };
}

/// The number of a stage's submodules (such as blocks or attentions) that a [`Recompute`] setting selected in one
/// forward pass: those that the backward pass recomputes, and those that cannot be recomputed, so that their
/// activations are retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Number of selected submodules (blocks, attentions or feed-forward layers) that the backward pass recomputes.
    pub(super) recomputed: usize,
    /// Number of selected submodules that retain their activations instead of being recomputed, because autodiff does
    /// not track their inputs.
    pub(super) untracked: usize,
    /// Number of selected submodules that retain their activations instead of being recomputed, because this crate was
    /// built without their inputs' backend, or because burn's own gradient checkpointing is on.
    pub(super) unsupported: usize,
}

impl Parts {
    /// Whether the [`Recompute`] setting selected no submodule of the stage, for example because the stage has only
    /// embeddings.
    pub fn are_none(self) -> bool {
        self == Self::default()
    }

    /// Returns a warning if the [`Recompute`] setting asks for recomputation, but no submodule of the stage is
    /// recomputed. The warning says why, and how to fix that. Returns `None` if at least one submodule is recomputed.
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
                "it has no part that the policy names, in which blocks count from 0 in each stage; mark its parts by \
                 `nn::block`, `nn::selective` or `nn::feed_forward`, and run blocks that form segments by `nn::sequence`, or \
                 as a `Vec` of stages whose input has one float tensor",
            ),
        }
    }
}

impl Recompute {
    /// Calls a stage's `forward`. Submodules selected by this [`Recompute`] setting retain no activations and are
    /// recomputed in the backward pass. Returns the result of `forward`, and how many submodules were selected.
    pub fn counting<R>(self, forward: impl FnOnce() -> R) -> (R, Parts) {
        PARTS.set(Parts::default());
        let result = self.during(forward);
        (result, PARTS.take())
    }

    /// Calls a stage's `forward` and returns its result. Submodules selected by this [`Recompute`] setting retain no
    /// activations and are recomputed in the backward pass, which must run inside
    /// [`autograd::gather`](crate::autograd::gather).
    pub fn during<R>(self, forward: impl FnOnce() -> R) -> R {
        during(&PASSED, 0, || during(&POLICY, self, forward))
    }
}

impl Mark {
    /// Whether this thread's [`Recompute`] setting selects the next marked submodule, of the kind `self`, for
    /// recomputation. For a block, the call also advances the block index, because the setting selects blocks by index.
    /// Blocks nested in a [`sequence`](super::sequence) block that is not recomputed are neither selected nor counted.
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

/// How a sequence of blocks is divided for recomputation: into single blocks, or into segments of several consecutive
/// blocks. The backward pass recomputes one block or segment at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceParts {
    /// Recomputes single blocks, which the [`Recompute`] setting selects by their zero-based indices.
    Blocks,
    /// Recomputes all blocks, in segments of n consecutive blocks. The value is n.
    Segments(usize),
}

impl SequenceParts {
    /// Returns how this thread's [`Recompute`] setting divides a sequence of `blocks` blocks. Returns `None` if the
    /// setting selects neither blocks nor segments, or if the sequence is inside a block of another sequence.
    pub fn of(blocks: usize) -> Option<Self> {
        match POLICY.get() {
            _ if INSIDE.get() => None,
            Recompute::Nothing | Recompute::Selective | Recompute::FeedForward => None,
            Recompute::Blocks(_) | Recompute::EveryNth(_) | Recompute::Only(_) | Recompute::Full => Some(Self::Blocks),
            Recompute::Segments(n) => Some(Self::Segments(n.get())),
            Recompute::SquareRoot => Some(Self::Segments((blocks as f64).sqrt().ceil().max(1.0) as usize)),
        }
    }

    /// Runs a sequence of blocks in pieces, and returns the output of the last piece. A piece is one block or a segment
    /// of blocks. The closure `recomputed` runs the pieces that the [`Recompute`] setting selects, and the closure
    /// `kept` runs the others, whose activations are retained. Each closure takes the blocks of a piece and the piece's
    /// input.
    ///
    /// While `kept` runs, the calls of [`block`](super::block) inside its blocks are neither counted nor recomputed. A
    /// piece that `recomputed` cannot recompute runs as it is, and a call of `block` inside it gets the piece's index.
    pub fn run<B, T>(
        self,
        blocks: &[B],
        input: T,
        kept: impl Fn(&[B], T) -> T,
        recomputed: impl Fn(&[B], T) -> T,
    ) -> T {
        blocks.chunks(self.length()).fold(input, |input, part| {
            let index = PASSED.get();
            if !self.takes_next() {
                return during(&INSIDE, true, || kept(part, input));
            }
            let next = PASSED.replace(index);
            let output = recomputed(part, input);
            PASSED.set(next);
            output
        })
    }

    /// Returns how many blocks are recomputed together: 1, or the segment length. A sequence's last segment may be
    /// shorter.
    fn length(self) -> usize {
        match self {
            Self::Blocks => 1,
            Self::Segments(blocks) => blocks,
        }
    }

    /// Whether the [`Recompute`] setting selects the next block or segment of a sequence for recomputation. For a
    /// single block, the call also advances the block index, because the setting selects blocks by index.
    fn takes_next(self) -> bool {
        self != Self::Blocks || Mark::Block.is_selected()
    }
}

/// Updates this thread's counts of selected submodules by calling `count`, which adds to the recomputed, untracked or
/// unsupported ones.
pub(super) fn note(count: fn(&mut Parts)) {
    let mut parts = PARTS.get();
    count(&mut parts);
    PARTS.set(parts);
}
