//! Kernels, run on the CPU as their PTX says, a warp at a time.
//!
//! - `arithmetic`: what a lane computes by itself; `fragment`: matrices that lanes hold together
//! - `program`: a kernel, as it is run; `decode`: from PTX to that; `flow`: where its branches meet; `warp`: its threads, by 32; `grid`: all of a launch

mod arithmetic;
mod decode;
mod flow;
mod fragment;
mod grid;
mod program;
mod warp;

#[cfg(test)]
mod tests;

pub use grid::{Launch, run};
pub use program::Program;
