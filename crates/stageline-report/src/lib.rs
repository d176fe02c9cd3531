//! What a pipeline run tells, for people and for programs. No tensors, no threads, no clock.
//!
//! # Layout
//!
//! - [`record`]: the lines of a run's log; [`run_log`] reads one.
//! - [`trace`]: a run for Perfetto; [`tensorboard`]: for TensorBoard.
//! - [`chart`]: lines and bars as SVG.
//! - [`predict`]: what another plan would give.
//! - [`mod@run_page`]: a run as a page.
//! - [`page`]: one HTML file that needs nothing else.

pub mod chart;
mod footprint;
pub mod page;
pub mod predict;
pub mod record;
pub mod run_log;
pub mod run_page;
pub mod tensorboard;
mod text;
pub mod trace;

pub use chart::{Line, LineChart, Scale, Series, StackedBars};
pub use page::Page;
pub use predict::{Cut, Link, Measured, PredictError, Prediction, Target};
pub use run_log::{Cause, LogError, RunLog};
pub use run_page::run_page;
pub use tensorboard::TensorBoard;
pub use trace::Trace;
