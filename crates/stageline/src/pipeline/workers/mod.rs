//! The threads of a pipeline: started, asked for passes, watched, and joined.

mod hosts;
pub(crate) mod pass;
mod shutdown;
pub(crate) mod start;
mod watch;
