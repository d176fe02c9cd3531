//! What a pipeline run tells, for people and for programs. No tensors, no threads, no clock.
//!
//! # Layout
//!
//! - [`record`]: the lines of a run's log; [`run_log`] reads one.
//! - [`trace`]: a run for Perfetto; [`tensorboard`]: for TensorBoard.
//! - [`chart`]: lines and bars as SVG.
//! - `measured`: what a run says of its model; [`predict`]: what another plan would give; `network`: over what its workers are joined; [`host_cuts`]: where hosts meet.
//! - [`mod@run_page`]: a run as a page; `timeline`: a step as a picture.
//! - [`page`]: one HTML file that needs nothing else.

pub mod chart;
mod footprint;
pub mod host_cuts;
mod measured;
mod network;
pub mod page;
pub mod predict;
mod predict_error;
pub mod record;
pub mod run_log;
pub mod run_page;
pub mod tensorboard;
mod text;
mod timeline;
pub mod trace;

pub use chart::{Line, LineChart, Scale, Series, StackedBars};
pub use host_cuts::HostCut;
pub use measured::Measured;
pub use network::Hosts;
pub use page::Page;
pub use predict::{Crossing, Cut, Prediction, Target};
pub use predict_error::PredictError;
pub use record::Link;
pub use run_log::{Cause, LogError, RunLog};
pub use run_page::run_page;
pub use tensorboard::TensorBoard;
pub use trace::Trace;
