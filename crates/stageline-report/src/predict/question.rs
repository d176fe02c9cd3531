//! A question about a logged run: which settings let a training reach the run's loss in the least time ([`Question`]).

use super::measured::Measured;
use super::target::Target;
use super::trainings::PredictedTraining;
use crate::log::{NoiseScales, RunLog};

/// A question about a logged run: which settings let a training reach the run's loss in the least time.
pub struct Question<'a> {
    /// The log of a run. The question is which settings let a training reach the loss of this run in the least time.
    pub log: &'a RunLog,
    /// The noise scale of the gradient over the steps of the logged run, from [`RunLog::noise_scales`].
    pub noise: &'a NoiseScales,
    /// The plan that the user gives to `stageline advise`, with the number of micro-batches of the logged run.
    /// Predicted trainings are compared with this plan, and change its settings one at a time.
    pub target: Target<'a>,
    /// The measured costs of a second run of the logged model, with micro-batches of another size; `None` if only one
    /// size is measured.
    pub other_size: Option<&'a Measured>,
    /// The memory limit in bytes that each worker of the recommended training must meet; `None` if the memory is not
    /// limited. Host memory for batches, and for optimizer states that are kept on the host, does not count.
    pub memory: Option<f64>,
    /// The largest number of workers that the recommended training may have; `None` if only the number of the model's
    /// layers limits it.
    pub most_workers: Option<usize>,
}

impl Question<'_> {
    /// Whether a predicted training fits into the given memory of each worker.
    pub fn fits(&self, training: &PredictedTraining) -> bool {
        match (self.memory, training.peak_bytes()) {
            (Some(limit), Some(peak)) => peak <= limit,
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Returns the predicted training that fits into the memory and reaches the loss of the logged run in the least
    /// time. Returns `None` if none fits.
    pub(super) fn fastest<'t>(&self, trainings: &'t [PredictedTraining]) -> Option<&'t PredictedTraining> {
        let fitting = trainings.iter().filter(|training| self.fits(training));
        let timed = fitting.filter_map(|training| Some((training.seconds()?, training)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, training)| training)
    }
}
