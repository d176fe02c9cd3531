//! The code listings of the book (`docs/book`), and measurements whose tables it shows. Each is a test: it compiles,
//! and its claims are asserted. The listings of the guide (`docs/guide.md`) are compiled, too.

mod accumulation;
mod batch_norm;
mod guide;
mod loss_weights;
mod model;
mod momentum;
mod noise;
mod optimizer_steps;
mod pages;
mod recomputation;
mod verification;
