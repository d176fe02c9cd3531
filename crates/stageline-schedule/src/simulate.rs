//! Simulation: the timeline, bubble, idle time and peak memory of a checked plan at given costs.
//!
//! The input is a [`Checked`](crate::Checked) plan and [`Costs`](crate::Costs). [`simulate()`] returns a [`Timeline`]
//! with the start and end of every forward and backward pass, the step and the bubble. It also gives the [`Idle`] time
//! of each worker by cause, and pictures as text (`grid`) and SVG. [`Memory`] has the bytes of a micro-batch on each
//! stage ([`StageMemory`]), and a memory limit. The bytes determine each worker's peak memory. This module must not
//! change a plan or choose one.

mod grid;
mod idle;
mod memory;
mod svg;
mod timeline;

pub use idle::Idle;
pub use memory::{Memory, StageMemory};
pub use timeline::{Timeline, simulate};
