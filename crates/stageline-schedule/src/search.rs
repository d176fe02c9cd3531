//! Search: the best plan for given costs and memory, and the partition of layers into stages.
//!
//! The input is the costs and the memory of a model's stages, or the costs of its layers. The output is the [`Best`]
//! plan with its timeline, a [`lower_bound`] on the step of every plan, or the ranges of a balanced partition
//! ([`balance`](balance())). This module must not return a plan that [`check`](crate::check()) rejects or that exceeds
//! the memory limit.

mod automatic;
mod balance;
mod best;
mod bound;

pub use balance::{BalanceError, balance};
pub use best::{Best, SearchError, best};
pub use bound::lower_bound;
