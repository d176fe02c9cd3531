//! Plans as data: what each worker runs in one step.
//!
//! The input is each worker's list of actions, from a generator or from text in PyTorch's format. The output is a
//! [`Plan`], the [`Placement`] of its stages, its [`Instruction`]s with transfers, and the same text again. A plan may
//! be wrong: this module must not decide whether a plan can run, and must not know costs or times.

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
pub(crate) use live::live_after;
pub(crate) use lower::around;
pub use lower::{Carried, Instruction, Transfer, lower};
pub use placement::Placement;
pub use rows::Plan;
