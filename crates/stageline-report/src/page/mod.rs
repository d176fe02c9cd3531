//! HTML pages with tables and SVG charts; [`run_page()`] is the page of a run.
//!
//! Inputs: a [`RunLog`](crate::RunLog), or the points and rows of a caller. Output: one HTML file that needs no network, no scripts and
//! no other file.
//!
//! A page shows figures of the log and medians of them. It must not predict, and must escape all text that it is given.

mod chart;
mod escape;
mod html;
mod run_page;
mod timeline;

pub use chart::{Line, LineChart, Scale, Series, StackedBars};
pub use html::Page;
pub use run_page::run_page;
