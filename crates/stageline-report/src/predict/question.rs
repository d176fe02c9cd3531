//! The question which training reaches the loss of a logged run in the least time: [`Question`].

use super::measured::Measured;
use super::target::Target;
use super::trainings::PredictedTraining;
use crate::log::{NoiseScales, RunLog};

/// The question which settings let a training reach the loss of a logged run in the least time.
pub struct Question<'a> {
    /// The log of the run.
    pub log: &'a RunLog,
    /// The noise scale of the run, from [`RunLog::noise_scales`].
    pub noise: &'a NoiseScales,
    /// The plan whose settings are changed one at a time. Its number of micro-batches is that of the run with which
    /// trainings are compared.
    pub target: Target<'a>,
    /// The costs of a run of the same model with micro-batches of another size; `None` if only one size is measured.
    pub other_size: Option<&'a Measured>,
    /// The memory of a worker in bytes; `None` if it is not limited.
    pub memory: Option<f64>,
    /// The largest number of workers that a recommended training may have; `None` if only the model's layers limit it.
    pub most_workers: Option<usize>,
}

impl Question<'_> {
    /// Whether the training fits into the memory of the question.
    pub fn fits(&self, training: &PredictedTraining) -> bool {
        match (self.memory, training.peak_bytes()) {
            (Some(limit), Some(peak)) => peak <= limit,
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Returns the training that takes the least time to the loss of the run, of those that fit into the memory.
    pub(super) fn fastest<'t>(&self, trainings: &'t [PredictedTraining]) -> Option<&'t PredictedTraining> {
        let fitting = trainings.iter().filter(|training| self.fits(training));
        let timed = fitting.filter_map(|training| Some((training.seconds()?, training)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, training)| training)
    }
}
