//! A question about a logged run: which settings reach the run's final loss in the least time ([`Question`]).

use super::measured::Measured;
use super::target::Target;
use super::trainings::PredictedTraining;
use crate::log::{NoiseScales, RunLog};

/// A question about a logged run, for [`Measured::advise`]: which settings let a training run reach the logged run's
/// final loss in the least time?
pub struct Question<'a> {
    /// The log of the run whose final loss (after its last step) the compared training runs have to reach.
    pub log: &'a RunLog,
    /// The noise scale of the gradient over the steps of the logged run, from [`RunLog::noise_scales`].
    pub noise: &'a NoiseScales,
    /// The user's plan: the one given to `stageline advise`, with the logged run's number of micro-batches. The
    /// compared training runs change its settings one at a time.
    pub target: Target<'a>,
    /// The measured costs of a second run of the logged model, with micro-batches of another size; `None` if only one
    /// size is measured.
    pub other_size: Option<&'a Measured>,
    /// The limit, in bytes, on the peak memory of each worker of the recommended training run; `None` if the memory is
    /// not limited. Host memory for batches and for optimizer state that is kept in host memory does not count.
    pub memory: Option<f64>,
    /// The largest number of workers that the recommended training run may have; `None` if only the number of the
    /// model's layers limits it.
    pub most_workers: Option<usize>,
}

impl Question<'_> {
    /// Whether the predicted peak memory of each worker of a training run is within the limit `memory`. The result is
    /// false if there is a limit and no predicted memory.
    pub fn fits(&self, training: &PredictedTraining) -> bool {
        match (self.memory, training.peak_bytes()) {
            (Some(limit), Some(peak)) => peak <= limit,
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Returns the predicted training run that fits into the memory limit and reaches the logged run's final loss in
    /// the least time. Returns `None` if none fits, or if the times are not known.
    pub(super) fn fastest<'t>(&self, trainings: &'t [PredictedTraining]) -> Option<&'t PredictedTraining> {
        let fitting = trainings.iter().filter(|training| self.fits(training));
        let timed = fitting.filter_map(|training| Some((training.seconds()?, training)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, training)| training)
    }
}
