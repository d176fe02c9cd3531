//! Evaluates held-out samples before, during and after the training, and warns if the loss is a mean instead of a sum.

use anyhow::Result;
use stageline::{Batch, BatchError, EvalReport, Payload, Pipeline, StepError};
use stageline_report::record::Validation;

use crate::data::Data;
use crate::outputs::log::Log;
use crate::outputs::record;

/// Warns if the model's loss seems to be a mean over the samples of a micro-batch; the pipeline needs their sum. The
/// check evaluates two samples in one micro-batch, and then each of them alone. If the loss is a mean, the sum of the
/// two single losses is twice the loss of the micro-batch. There is no check if the two samples cannot be read or
/// separated, or if one of them has no unmasked target.
///
/// # Errors
/// Returns an error if an evaluation fails for another reason than its batch.
pub fn warn_of_mean<Out: Payload, D: Data + ?Sized>(
    pipeline: &mut Pipeline<D::Input, Out, D::Target>,
    data: &D,
) -> Result<()> {
    // Batches that cannot be cut into samples, or whose samples are masked, are not judged.
    let Ok(two) = data.batch(0, 2) else { return Ok(()) };
    let (Ok(together), Ok(each)) = (two.clone().into_micro_batches(1), two.into_micro_batches(2)) else {
        return Ok(());
    };
    let mut sum = |batches: Vec<_>| -> Result<Option<f64>> {
        let mut sum = 0.0;
        for batch in batches {
            match pipeline.eval(Batch::from_micro_batches(vec![batch])) {
                Ok(report) => sum += report.terms.iter().map(|term| term.loss * term.weight).sum::<f64>(),
                Err(StepError::Batch(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(sum))
    };
    let (Some(together), Some(each)) = (sum(together)?, sum(each)?) else { return Ok(()) };
    if each != 0.0 && (each / together - 2.0).abs() < 0.01 {
        tracing::warn!(
            "the loss seems to be a mean: two samples have {together:.4} together and {each:.4} one by one; \
             `LossStage::loss` must return the sum over the targets, and `LossStage::weight` their number"
        );
    }
    Ok(())
}

/// The report of an evaluation on held-out samples, and a line of text for the user with its loss and metrics; `None`
/// if there are no held-out samples, or if all their targets are masked.
pub type Evaluated = Option<(EvalReport, String)>;

/// Evaluates the held-out samples in `batches`, and writes their loss and metrics to the log. `steps` is the number of
/// completed training steps. Returns the report and a line for the user, which is not printed here. Returns `None` if
/// there are no batches. If all targets of the batches are masked, also warns of it and returns `None`.
///
/// # Errors
/// Returns an error if an evaluation fails or the log cannot be written.
pub fn evaluate<Out: Payload, D: Data + ?Sized>(
    pipeline: &mut Pipeline<D::Input, Out, D::Target>,
    data: &D,
    batches: &[Batch<D::Input, D::Target>],
    log: &mut Log,
    steps: usize,
) -> Result<Evaluated> {
    let evaluated = |batch: &Batch<_, _>| match pipeline.eval(batch.clone()) {
        // A batch without an unmasked target adds nothing to the mean.
        Err(StepError::Batch(BatchError::NoWeight)) => None,
        report => Some(report),
    };
    let reports = batches.iter().filter_map(evaluated).collect::<Result<Vec<_>, _>>()?;
    if reports.is_empty() && !batches.is_empty() {
        tracing::warn!(
            "no held-out sample has a target that is trained on, so there is no validation; hold out more data"
        );
    }
    let Some(report) = EvalReport::over(&reports) else { return Ok(None) };
    let shown: Vec<_> = report.metrics.iter().map(|metric| format!(", {} {:.4}", metric.name, metric.value)).collect();
    let line = format!("validation: {}{} after {steps} steps", data.show_loss(report.loss), shown.concat());
    let metrics = record::metrics(&report.metrics);
    log.validation(Validation { after_steps: steps, validation_loss: report.loss, metrics })?;
    Ok(Some((report, line)))
}
