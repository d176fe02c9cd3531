//! Reads the log of a pipeline run, and makes predictions, pages and traces from it.
//!
//! The log is the only source: this crate computes from its figures, and needs no tensors, threads or clock.
//!
//! # Modules
//!
//! - [`record`]: the lines of a log, as a program writes them; [`RunLog`] reads them back.
//! - `predict`: the step time, bubble and memory of another plan ([`Measured`]), and how to spread layers over hosts
//!   ([`Measured::host_cuts`]).
//! - `page`: a run as one HTML file ([`run_page()`]), and the charts and tables to build other pages with ([`Page`]).
//! - `export`: a run for Perfetto ([`Trace`]) and for TensorBoard ([`TensorBoard`]).
//!
//! `predict`, `page` and `export` import from `log`, and none of them from another.

mod export;
mod log;
mod page;
mod predict;

pub use export::{TensorBoard, Trace};
pub use log::record::{self, Link};
pub use log::{Cause, LogError, RunLog};
pub use page::{Line, LineChart, Page, Scale, Series, StackedBars, run_page};
pub use predict::{Crossing, Cut, HostCut, Hosts, Measured, PredictError, Prediction, Target};
