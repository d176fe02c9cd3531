//! Checkpoint contents: parameters and optimizer states under names that do not depend on the partition.
//!
//! Takes the tensors of all stages, or a [`Checkpoint`](stageline_checkpoint::Checkpoint); returns the other of the
//! two, or every name, shape and type that does not fit. Must not read or write files, which `stageline-checkpoint`
//! does.
//!
//! - `names`: the names of a model's tensors.
//! - `layout`: the tensors of all stages by name, and the conversion to a checkpoint and back.
//! - `optimizer_state`: the fields of an optimizer's state, and their validation.
//! - `convert`: burn's tensors as a checkpoint's, and back.
//! - `mismatch`: the differences between a checkpoint and a model.

pub(crate) mod convert;
pub(crate) mod layout;
pub(crate) mod mismatch;
pub(crate) mod names;
pub(crate) mod optimizer_state;
