//! The code listings of the book (`docs/book`). Each listing is a test: it compiles, and its claims are asserted.

mod accumulation;
mod loss_weights;
mod model;
mod noise;
mod optimizer_steps;
mod recomputation;
mod verification;
