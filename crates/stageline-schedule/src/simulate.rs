//! Simulation: the timeline of a checked plan at given costs.
//!
//! The input is a [`Checked`](crate::Checked) plan and [`Costs`](crate::Costs). The output is a [`Timeline`] with its
//! step and bubble, the [`Idle`] time of each worker by cause, the peak memory of each worker, and pictures as text and
//! SVG. This module must not change a plan or choose one.

mod grid;
mod idle;
mod memory;
mod svg;
mod timeline;

pub use idle::Idle;
pub use memory::{Memory, StageMemory};
pub use timeline::{Timeline, simulate};
