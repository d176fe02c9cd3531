//! Runs CUDA kernels on the CPU: decodes the PTX of a kernel to a [`Program`], and runs each [`Launch`] one warp after
//! the other.
//!
//! - `decode`: translates PTX to a `program`; `flow`: finds the steps at which the lanes of a warp reconverge after a
//!   branch
//! - `arithmetic`: the functions of instructions that compute in each lane; `fragment`: matrices that the lanes of a
//!   warp store together, and their products
//! - `warp`: executes a program for the 32 threads of a warp; `grid`: runs all blocks of a launch

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
