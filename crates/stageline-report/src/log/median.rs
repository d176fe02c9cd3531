//! Computes the median, which summarises a measurement, such as the step time, over the steps of a run.

/// Returns the median of the finite values among `values`. If their number is even, this is the larger of the two
/// middle values. Returns `None` if no value is finite.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
