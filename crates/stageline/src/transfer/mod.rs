//! Transfers: how tensors get from one stage to another, and between data-parallel replicas.
//!
//! Moves the activations and gradients of micro-batches between neighbouring stages, and the gradients and values of
//! tied parameters and of replicas between owners and holders of copies. All tensors go over bounded channels, and
//! transfers between GPUs are issued in one global order. The only computation here is the addition of received
//! gradients.
//!
//! - `link`: the boundary between two neighbouring stages, with the ends `Downstream` and `Upstream`, which send and
//!   receive.
//! - `leaves`: the float tensors through which gradients enter and leave a stage's autodiff graph (`Leaves`), and their
//!   gradients (`LeafGradients`).
//! - `order`: the batons (`Turns`) that keep transfers between GPUs in one global order, without which NCCL can
//!   deadlock.
//! - `in_flight`: the tensors sent last (`Sent`), kept alive until NCCL has read them.
//! - `hand_over`: functions that move batches and shared parameters to a device outside the plan's transfers.
//! - `copies`: the exchange of gradients and values between the owner of parameters (`Owned`) and a holder of copies
//!   (`Held`).
//! - `ties`: the tied parameters of a stage (`Ties`), which several stages of one pipeline share.
//! - `replicas`: the reduction of gradients and the broadcast of new values between data-parallel replicas
//!   (`Collective`).

pub(crate) mod copies;
pub(crate) mod hand_over;
pub(crate) mod in_flight;
pub(crate) mod leaves;
pub(crate) mod link;
pub(crate) mod order;
pub(crate) mod replicas;
pub(crate) mod ties;
