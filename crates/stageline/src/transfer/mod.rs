//! Transfers: how tensors get from one stage to another, and between replicas.
//!
//! Moves activations and gradients between neighbours over bounded channels, in one global order where devices need one, and exchanges
//! the gradients and values of tied parameters and of replicas. Computes nothing but sums of gradients.

pub(crate) mod copies;
pub(crate) mod hand_over;
pub(crate) mod in_flight;
pub(crate) mod leaves;
pub(crate) mod link;
pub(crate) mod order;
pub(crate) mod replicas;
pub(crate) mod ties;
