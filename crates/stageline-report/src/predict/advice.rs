//! Predicts how long training runs with different settings take to reach a logged run's final loss, and recommends the
//! fastest one: [`Measured::advise`].

use super::alternatives::Alternatives;
use super::error::PredictError;
use super::measured::Measured;
use super::question::Question;
use super::recommendation::{Recommendation, recommended_change, recommended_m};
use super::trainings::PredictedTraining;

/// The predicted training runs and the recommended one, as the answer to a [`Question`]: which settings reach a logged
/// run's final loss in the least time?
#[derive(Debug)]
pub struct Advice {
    /// Predicted training runs with the settings of the user's plan: one for each of several numbers of micro-batches
    /// per step, in ascending order.
    pub trainings: Vec<PredictedTraining>,
    /// Predicted training runs in which one setting, such as the schedule, differs from the user's plan.
    pub alternatives: Alternatives,
    /// Settings recommended for the next training run, with the reason; `None` if no predicted training run fits into
    /// the memory limit.
    pub recommendation: Option<Recommendation>,
    /// The recommended settings if only the number of micro-batches may differ from the user's plan; `None` if no such
    /// training run fits into the memory limit.
    pub unchanged: Option<Recommendation>,
}

impl Measured {
    /// Predicts how long training runs with different settings take to reach the logged run's final loss, and
    /// recommends the best settings. Compares the settings of the user's plan with variants in which one setting is
    /// changed.
    ///
    /// A model that the user has partitioned (cut) into stages by hand keeps these stages. So other numbers of workers
    /// and of chunks (stages per worker) are not compared for it.
    ///
    /// # Errors
    /// Returns the errors of [`trainings`](Self::trainings), and [`PredictError::NoMemory`] if there is a memory limit
    /// and the logged run did not measure memory.
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
