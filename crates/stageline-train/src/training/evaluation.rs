//! Evaluates the held-out samples before, during and after training. Warns if the model's loss is a mean instead of a
//! sum.

use anyhow::Result;
use stageline::{Batch, BatchError, EvalReport, Payload, Pipeline, StepError};
use stageline_report::record::Validation;

use crate::data::Data;
use crate::outputs::log::Log;
use crate::outputs::record;
use crate::terminal::say;
use crate::training::checkpoints::Keeper;

/// Warns if the model's loss seems to be a mean over a micro-batch's samples, because the pipeline needs the sum. For a
/// mean, the losses of two samples, evaluated alone, add up to twice the loss of both in one micro-batch. The check is
/// skipped if the two samples cannot be read or separated, or if one has no unmasked target.
///
/// # Errors
/// Returns an error if an evaluation fails for a reason other than its batch.
pub fn warn_of_mean<Out: Payload, D: Data + ?Sized>(
    pipeline: &mut Pipeline<D::Input, Out, D::Target>,
    data: &D,
) -> Result<()> {
    // Batches that cannot be split into samples, or whose targets are all masked out, are not checked.
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

/// The result of evaluating the held-out samples: the report, and a line for the user with loss and metrics. `None` if
/// there are no held-out samples, or if all their targets are masked out.
pub type Evaluated = Option<(EvalReport, String)>;

/// Evaluates the held-out samples in `batches`, and logs their loss and metrics. `steps` is the number of completed
/// training steps. Returns the report and a line for the caller to print. Returns `None` if there are no batches, or,
/// with a warning, if all targets are masked out.
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
        // A batch without unmasked targets does not affect the mean.
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

/// Prints the result of the evaluation before the first step, and returns its report. If `is_due` is true, `keeper`
/// also records the loss, because an earlier run ended before its due evaluation at this step.
pub fn at_start<In: Payload, Out: Payload, Target: Payload>(
    evaluated: Evaluated,
    is_due: bool,
    keeper: &mut Keeper,
    pipeline: &mut Pipeline<In, Out, Target>,
) -> Result<Option<EvalReport>> {
    let Some((report, line)) = evaluated else { return Ok(None) };
    say(line)?;
    if is_due {
        keeper.evaluated(pipeline, report.loss)?;
    }
    Ok(Some(report))
}
