//! The code listings of the book (`docs/book`), and measurements whose tables it shows. Each is a test: it compiles,
//! and its claims are asserted. The listings of the README and the guide (`docs/guide.md`) are compiled,
//! too, and the README's program runs.

mod accumulation;
mod batch_norm;
mod guide;
mod loss_weights;
mod model;
mod momentum;
mod noise;
mod optimizer_steps;
mod pages;
#[rustfmt::skip]
mod program;
#[rustfmt::skip]
mod readme;
mod recomputation;
mod verification;
