//! Reads the log of a pipeline training run, and makes predictions, HTML pages and trace files from it.
//!
//! A program that trains with `--log` writes the log. This crate only computes from the log's measurements, and needs
//! no tensors, threads or clock.
//!
//! # Modules
//!
//! - `log`: [`record`] has one structure for each kind of log line, which a training program serialises; [`RunLog`]
//!   reads a log back and summarises its steps.
//! - `predict`: From the costs that the run measured, [`Measured::predict`] gives the step time, bubble and memory of
//!   another plan. [`Measured::host_cuts`] finds the best partitions of the layers over several hosts.
//!   [`Measured::advise`] recommends settings for a training run, such as the number of micro-batches, from these costs
//!   and the noise scale of the gradient ([`NoiseScales`]).
//! - `page`: shows a run on one HTML page ([`run_page()`]), and has the charts and tables (HTML and SVG) to build other
//!   pages with ([`Page`]).
//! - `export`: writes a run in the file formats of Perfetto ([`Trace`]) and TensorBoard ([`TensorBoard`]).
//!
//! Of the modules, `predict`, `page` and `export` import only from `log`, and not from each other.

mod export;
mod log;
mod page;
mod predict;

pub use export::{TensorBoard, Trace};
pub use log::record::{self, Link, Unit};
pub use log::{Cause, LogError, NoNoise, NoiseScales, RisingLoss, RunLog, layer_range};
pub use page::{Line, LineChart, Page, Scale, Series, StackedBars, run_page};
pub use predict::{
    Advice, Alternatives, Change, Crossing, Cut, HostCut, Hosts, LeftOut, Measured, PredictError, PredictedTraining,
    Prediction, Question, Recommendation, Target,
};

/// Compiles the example in the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
