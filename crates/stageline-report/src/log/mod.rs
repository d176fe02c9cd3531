//! The log of a training run: one JSON object per line, written while the run trains and read back later.
//!
//! Input: the lines of a log. Output: [`RunLog`], with the description of the run, its steps in order, and medians over
//! the steps, such as the typical step time. It also has the main cause of idle time ([`Cause`]). This module owns the
//! structure of every line, which a training program fills and serialises. A line has one field for each logged
//! measurement, in seconds or bytes, with a default for older logs. This module only reports measurements. It must not
//! predict, draw, or import from the other modules of this crate.
//!
//! - [`record`]: the structures of the lines: [`Run`](record::Run), [`Step`](record::Step),
//!   [`Account`](record::Account), [`Event`](record::Event).
//! - `run_log`: reads the lines into a [`RunLog`], and summarises the warm steps. `median`: the median of a
//!   measurement.
//! - `noise`: the noise scale of the gradient over the steps of a run ([`NoiseScales`]).
//! - `rising_loss`: whether the loss of a run rises ([`RisingLoss`]). `cores`: whether each worker of a run with
//!   another number of workers would have more or fewer CPU cores. `devices`: whether workers share a device, and
//!   whether the devices differ.
//! - `layer_range`: the names of a stage's first and last layer ([`layer_range()`]).
//! - `untrusted`: validates the plan and the numbers of a log while it is read, because a log may come from an
//!   untrusted source.
//! - `error`: [`LogError`], with the number of the line that cannot be read.

mod cores;
mod devices;
mod error;
mod layer_range;
mod median;
mod noise;
pub mod record;
mod rising_loss;
mod run_log;
mod untrusted;

pub use error::LogError;
pub use layer_range::layer_range;
pub(crate) use median::median;
pub use noise::{NoNoise, NoiseScales};
pub use rising_loss::RisingLoss;
pub use run_log::{Cause, RunLog};
