//! Checkpoint contents: parameters and optimizer states under names that do not depend on the partition.
//!
//! The code here converts the tensors of all stages to a [`Checkpoint`](stageline_checkpoint::Checkpoint) and back. A
//! checkpoint that does not fit the model is rejected with every name, shape, type and value that differs
//! ([`Mismatch`](mismatch::Mismatch)). This folder must not read or write files, which `stageline-checkpoint` does.
//!
//! - `names`: the names of a model's tensors, which are the same for every partition of the model into stages.
//! - `layout`: the names and owners of all stages' tensors, and the conversion of stage states to a checkpoint and
//!   back.
//! - `optimizer_state`: the fields of an optimizer's state: reading and restoring them.
//! - `optimizer_check`: the check that a checkpoint's optimizer state is one that the stage's optimizer can have.
//! - `convert`: the conversion of burn's tensors to a checkpoint's tensors and back, bit for bit.
//! - `mismatch`: the error with all differences between a checkpoint and a model.

pub(crate) mod convert;
pub(crate) mod layout;
pub(crate) mod mismatch;
pub(crate) mod names;
pub(crate) mod optimizer_check;
pub(crate) mod optimizer_state;
