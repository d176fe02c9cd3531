//! Transfers: how tensors get from one stage to another, and between data-parallel replicas.
//!
//! Takes the activations and gradients of micro-batches, and moves them between neighbouring stages over bounded
//! channels. Transfers between GPUs are issued in one global order. Computes nothing but sums of gradients.
//!
//! - `link`: the boundary between two neighbouring stages.
//! - `leaves`: the tensors through which gradients enter and leave a stage's graph.
//! - `order`: the global order of transfers between GPUs, without which NCCL can deadlock.
//! - `in_flight`: sent tensors, kept alive until NCCL has read them.
//! - `hand_over`: tensors that reach a device outside the plan's transfers.
//! - `copies`: the exchange between the owner of parameters and a holder of copies.
//! - `ties`: tied parameters, which several stages of one pipeline share.
//! - `replicas`: the reduction and broadcast between data-parallel replicas of a stage.

pub(crate) mod copies;
pub(crate) mod hand_over;
pub(crate) mod in_flight;
pub(crate) mod leaves;
pub(crate) mod link;
pub(crate) mod order;
pub(crate) mod replicas;
pub(crate) mod ties;
