//! Search: the plan with the shortest step for given costs and a memory limit, and the partition of layers into stages.
//!
//! The input is the costs and the memory of a model's stages, or the costs of its layers. [`best()`] tries all
//! generators of schedules, and automatic schedules (plans generated for these costs). It returns the [`Best`] plan
//! with its timeline. [`best_placed()`] searches for costs that depend on the placement of stages on workers.
//! [`best_with_channels()`] also limits the number of micro-batches that a channel can hold. [`check_search_size`]
//! tells beforehand whether a search would be too long. [`lower_bound`] gives a lower bound on the step time of every
//! plan.
//!
//! [`balance()`] partitions layers evenly into stages. [`balance_with_speeds()`] does so for devices of different
//! speeds, and [`balance_for()`] for a plan with several stages per worker. This module must not return a plan that
//! [`check`](crate::check()) rejects or that exceeds the memory limit.

mod automatic;
mod balance;
mod balance_for;
mod best;
mod bound;

pub use balance::{BalanceError, SpeedError, balance, balance_with_speeds};
pub use balance_for::{balance_for, short_plan};
pub use best::{Best, SearchError, best, best_placed, best_with_channels, check_search_size};
pub use bound::lower_bound;
