//! Compares the trainings with which a run could reach its loss, and recommends one of them: [`Measured::advise`].

use super::alternatives::Alternatives;
use super::error::PredictError;
use super::measured::Measured;
use super::question::Question;
use super::recommendation::{Recommendation, recommended_change, recommended_m};
use super::trainings::PredictedTraining;

/// The answer to a [`Question`]: the compared trainings, and the recommended one.
#[derive(Debug)]
pub struct Advice {
    /// The predicted trainings with the settings that were asked about, and with 1 to 256 micro-batches.
    pub trainings: Vec<PredictedTraining>,
    /// The predicted trainings in which one setting, such as the schedule, is changed.
    pub alternatives: Alternatives,
    /// The recommended training; `None` if no training fits into the memory.
    pub recommendation: Option<Recommendation>,
    /// The recommended training without a changed setting: only its number of micro-batches may differ from the
    /// settings that were asked about. `None` if no such training fits into the memory.
    pub unchanged: Option<Recommendation>,
}

impl Measured {
    /// Predicts the trainings with the settings that were asked about and with one changed setting, and recommends the
    /// one that reaches the loss of the run in the least time.
    ///
    /// # Errors
    /// Returns the errors of [`trainings`](Self::trainings), and [`PredictError::NoMemory`] if the memory is limited and
    /// the run did not count it.
    pub fn advise(&self, question: &Question) -> Result<Advice, PredictError> {
        if question.memory.is_some() && self.footprint.is_none() {
            return Err(PredictError::NoMemory);
        }
        let trainings = self.trainings(question.log, Some(question.noise), &question.target)?;
        let own = question.fastest(&trainings);
        let alternatives = self.alternatives(question, own);
        let unchanged = recommended_m(question, &trainings);
        let recommendation = recommended_change(question, own, &alternatives.found).or_else(|| unchanged.clone());
        Ok(Advice { trainings, alternatives, recommendation, unchanged })
    }
}
