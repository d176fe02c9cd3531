//! Runs kernels on the CPU from their PTX, one warp after the other.
//!
//! - `decode`: translates PTX to a `program`, with the points of `flow` at which branches reconverge
//! - `arithmetic`: computes in each lane; `fragment`: matrices that the lanes of a warp store together
//! - `warp`: executes a program for 32 threads; `grid`: runs all blocks of a launch

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
