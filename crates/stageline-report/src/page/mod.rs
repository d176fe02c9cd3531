//! Shows the log of a run on an HTML page with tables and SVG charts: [`run_page()`]. [`Page`], [`LineChart`] and
//! [`StackedBars`] build other pages.
//!
//! Inputs: a [`RunLog`](crate::RunLog), or the points and rows that a caller wants to show. Output: one HTML file that
//! needs no network, no scripts and no other file.
//!
//! The page of a run shows figures of the log and medians of them. This module must not predict, and must escape all
//! text that it is given.

mod chart;
mod escape;
mod html;
mod run_page;
mod timeline;

pub use chart::{Line, LineChart, Scale, Series, StackedBars};
pub use html::Page;
pub use run_page::run_page;
