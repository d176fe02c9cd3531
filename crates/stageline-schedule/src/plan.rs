//! Plans as data: the list of actions that each worker of a pipeline runs in one step.
//!
//! The input is each worker's list of [`Action`]s, from a generator or from CSV in PyTorch's format. The output is a
//! [`Plan`], the [`Placement`] of its stages on workers, the [`Instruction`]s of each worker with sends and receives
//! ([`lower()`]), and CSV strings. Parse errors name the row and column ([`ParsePlanError`]). A plan may be invalid:
//! this module must not decide whether a plan can run, and must not know costs or times.

mod action;
mod csv;
mod csv_error;
mod live;
mod lower;
mod lowered;
mod placement;
mod rows;

pub use action::{Action, Compute, ParseActionError};
pub use csv_error::{CellError, ParsePlanError};
pub(crate) use live::{live_after, live_change};
pub(crate) use lower::around;
pub use lower::{Carried, Instruction, Transfer, lower};
pub use placement::Placement;
pub use rows::Plan;
