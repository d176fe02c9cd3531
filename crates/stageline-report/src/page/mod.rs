//! Shows the log of a run on an HTML page with tables and SVG charts: [`run_page()`]. [`Page`], [`LineChart`] and
//! [`StackedBars`] build other pages.
//!
//! Input: a [`RunLog`](crate::RunLog), or the points and rows that a caller wants to show. Output: one HTML file that
//! needs no network, no scripts and no other file, or a chart as an SVG file. This module owns everything about HTML
//! and SVG: tags, styles, axes, ticks, legends, colours and escaping. It shows measurements of the log and their
//! medians. It must not predict, and must escape all strings that it is given.
//!
//! - `run_page`: the sections of a run's page: training curves, bubble, timeline, memory, parameters, settings.
//! - `gradients`: the sections of this page about the noise of the gradient and the health of the parameters (training
//!   statistics such as gradient norms and update ratios).
//! - `over_steps`: charts of measurements over the training steps.
//! - `timeline`: the forward and backward passes and the transfers of one step as SVG, with a row for every stage.
//! - `chart`: line charts and stacked bars. `drawing`: a drawn chart as an element of a page, or as an SVG file.
//! - `html`: the page, its sections and tables. `style`: the CSS of pages and charts. `escape`: escaping of strings.

mod chart;
mod drawing;
mod escape;
mod gradients;
mod html;
mod over_steps;
mod run_page;
mod style;
mod timeline;

pub use chart::{LineChart, Scale, Series, StackedBars};
pub use drawing::Line;
pub use html::Page;
pub use run_page::run_page;
