//! State: the tensors of a training under names that do not depend on the cut.
//!
//! Converts parameters and optimizer states between burn and a [`Checkpoint`](stageline_checkpoint::Checkpoint), and reports every
//! name, shape or type that does not fit. Reads and writes no files: that is `stageline-checkpoint`.

pub(crate) mod convert;
pub(crate) mod layout;
pub(crate) mod mismatch;
pub(crate) mod names;
pub(crate) mod optimizer_state;
