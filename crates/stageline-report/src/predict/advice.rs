//! Predicts how long training runs with different settings need to reach the loss of a logged run, and recommends the
//! fastest one: [`Measured::advise`].

use super::alternatives::Alternatives;
use super::error::PredictError;
use super::measured::Measured;
use super::question::Question;
use super::recommendation::{Recommendation, recommended_change, recommended_m};
use super::trainings::PredictedTraining;

/// The answer to a [`Question`]: the predicted training runs, and the recommended one. The question is which settings
/// let a training run reach, in the least time, the loss that a logged run had after its last step.
#[derive(Debug)]
pub struct Advice {
    /// The predicted training runs with the settings of the user's plan: one for each of several numbers of
    /// micro-batches per step, in ascending order.
    pub trainings: Vec<PredictedTraining>,
    /// The predicted training runs with one changed setting, such as another schedule, compared with the user's plan.
    pub alternatives: Alternatives,
    /// The settings that are recommended for the next training run, with the reason; `None` if no predicted training
    /// run fits into the memory.
    pub recommendation: Option<Recommendation>,
    /// The recommended settings if only the number of micro-batches may differ from the user's plan; `None` if no such
    /// training run fits into the memory.
    pub unchanged: Option<Recommendation>,
}

impl Measured {
    /// Predicts how long training runs with different settings need to reach the loss that a logged run had after its
    /// last step, and recommends settings by these times. The compared settings come from the user's plan, with at most
    /// one changed.
    ///
    /// A model that the user has cut into stages by hand keeps these stages. So no other numbers of workers and chunks
    /// are compared for it.
    ///
    /// # Errors
    /// Returns the errors of [`trainings`](Self::trainings), and [`PredictError::NoMemory`] if the memory is limited
    /// and the run did not count it.
    pub fn advise(&self, question: &Question) -> Result<Advice, PredictError> {
        if question.memory.is_some() && self.footprint.is_none() {
            return Err(PredictError::NoMemory);
        }
        let trainings = self.trainings(Some(question.noise), &question.target)?;
        let unchanged = recommended_m(question, &trainings);
        let own = unchanged.as_ref().map(|unchanged| &unchanged.training);
        let alternatives = self.alternatives(question, own);
        let recommendation =
            recommended_change(question, own, &trainings, &alternatives.found).or_else(|| unchanged.clone());
        Ok(Advice { trainings, alternatives, recommendation, unchanged })
    }
}
