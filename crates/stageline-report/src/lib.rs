//! What a pipeline run tells, for people and for programs. No tensors, no threads, no clock.
//!
//! # Layout
//!
//! - [`chart`]: lines and bars as SVG.
//! - [`page`]: one HTML file that needs nothing else.

pub mod chart;
pub mod page;
mod text;

pub use chart::{Line, LineChart, Scale, Series, StackedBars};
pub use page::Page;
