//! Runs CUDA kernels on the CPU: decodes a kernel's PTX into a [`Program`], and executes each [`Launch`] one warp after
//! another.
//!
//! - `decode`: translates PTX into a `program`; `flow`: finds where the lanes of a warp reconverge after a branch
//! - `arithmetic`: the instructions that compute in each lane separately; `fragment`: matrices that the lanes of a warp
//!   hold together, and their products
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
