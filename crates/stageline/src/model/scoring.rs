//! The scoring of a batch ([`Scoring`]): the loss weight of its targets, and the names of the metrics.

use crate::model::loss_weight::Weight;

/// A function that returns the loss weight of one micro-batch's targets. A loss weight has one number for each term of
/// the loss, usually the number of unmasked targets.
pub(crate) type WeightOf<'a, Target> = dyn Fn(&Target) -> Weight + 'a;

/// The loss weight function and the metric names of the last stage. The pipeline uses them to average losses and
/// metrics.
pub(crate) struct Scoring<Target> {
    pub(crate) weight: Box<dyn Fn(&Target) -> Weight + Send>,
    /// The names of the metrics, such as `accuracy`, that the last stage computes in addition to the loss, in order.
    pub(crate) metrics: &'static [&'static str],
}
