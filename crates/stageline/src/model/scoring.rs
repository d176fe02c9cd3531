//! The scoring of a batch ([`Scoring`]): the loss weight of its targets, and the names of the metrics beside the loss.

use crate::model::loss_weight::Weight;

/// The type of a function that returns the loss weight of a micro-batch, given its targets.
pub(crate) type WeightOf<Target> = dyn Fn(&Target) -> Weight + Send;

/// The information about the last stage with which the pipeline averages losses and metrics: the function that returns
/// the loss weight of targets, and the names of the metrics.
pub(crate) struct Scoring<Target> {
    pub(crate) weight: Box<WeightOf<Target>>,
    /// The names of the metrics that the last stage computes beside the loss, in the order in which it computes them.
    pub(crate) metrics: &'static [&'static str],
}
