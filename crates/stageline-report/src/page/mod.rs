//! Shows the log of a run on an HTML page with tables and SVG charts: [`run_page()`]. [`Page`], [`LineChart`] and
//! [`StackedBars`] build other pages.
//!
//! Input: a [`RunLog`](crate::RunLog), or the points and rows that a caller wants to show. Output: one HTML file that
//! needs no network, no scripts and no other file. This module owns everything about HTML and SVG: tags, styles, axes,
//! ticks, legends, colours and escaped text. It shows figures of the log and medians of them; it must not predict, and
//! must escape all text that it is given.
//!
//! - `run_page`: the sections of a run's page: training curves, bubble, timeline, memory, parameters, settings.
//! - `gradients`: its sections about the noise of the gradient and the health of the parameters.
//! - `over_steps`: charts of figures over the training steps.
//! - `timeline`: the computes and transfers of one step as SVG, with a row for every stage.
//! - `chart`: line charts and stacked bars as SVG. `html`: the page, its sections and tables. `escape`: escaped text.

mod chart;
mod escape;
mod gradients;
mod html;
mod over_steps;
mod run_page;
mod timeline;

pub use chart::{Line, LineChart, Scale, Series, StackedBars};
pub use html::Page;
pub use run_page::run_page;
