//! Transfers: tensors in flight from one stage to another, and between data-parallel replicas.
//!
//! Input: a stage's activations, gradients, and values of shared parameters. Output: the same tensors on the receiver's
//! device, detached from the sender's autodiff graph. This folder owns both ends of every channel that carries tensors,
//! and the mappers that detach, track or move the tensors of a payload (a value made of tensors). It also owns the
//! exchange of shared parameters: the gradients of copies are added to those of the owner (the stage that updates the
//! parameters), and the owner's new values are written to the copies. Sums over micro-batches, norms and optimizer
//! steps within one stage are in `update`. Transfers between GPUs are issued in one global order. This folder must not
//! run forward passes or optimizers, and must not choose the order of actions.
//!
//! The runner asks for each transfer: to send or receive for one micro-batch, to `publish` an owner's new values, to
//! `follow` (receive) them in a copy, or to `ignore` (discard) them. `device` finds the route and moves a single tensor
//! along it.
//!
//! - `link`: the connection between two neighbouring stages, with the ends `Downstream` and `Upstream`. A `Message`
//!   contains a payload with its loss weight (`Weighted`). `Departure` moves the payload to the other device and counts
//!   its bytes, and `Arrival` receives it.
//! - `leaves`: the float tensors through which gradients enter and leave a stage's autodiff graph (`Leaves`), and their
//!   gradients (`LeafGradients`); the scalar where a backward pass starts (`root`); the mappers `Track` and `Detach`.
//! - `order`: the fixed order of transfers between GPUs (`Turns`, `Baton`). Without it NCCL can deadlock.
//! - `in_flight`: the tensors sent last (`Sent`), kept alive until NCCL has read them (`settle`).
//! - `hand_over`: moves tensors outside the plan's transfers (batches, outputs, modules and shared parameters) to a
//!   device (`Place`), or copies them for use by another thread (`HandOver`).
//! - `copies`: the exchange of gradients and values between the owner of a parameter (`Owned`) and a holder of a copy
//!   (`Held`), and the visitors that take, add and set them by parameter id.
//! - `ties`: the tied parameters of a stage (`Ties`), which several stages of one replica share.
//! - `replicas`: the reduction of gradient sums to replica 0 and the broadcast of new values (`Collective`: `Root` or
//!   `Leaf`).

pub(crate) mod copies;
pub(crate) mod hand_over;
pub(crate) mod in_flight;
pub(crate) mod leaves;
pub(crate) mod link;
pub(crate) mod order;
pub(crate) mod replicas;
pub(crate) mod ties;
