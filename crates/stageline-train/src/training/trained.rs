//! The end of a training run: its result ([`Trained`]) if it is complete, or else its error.

use std::time::Duration;

use anyhow::{Context, Error, Result};
use serde_json::{Value, json};
use stageline::{EvalReport, Payload, Pipeline};

use crate::model::Model;
use crate::outputs::log::Log;
use crate::outputs::record;
use crate::outputs::unwritten::Unwritten;
use crate::terminal::{first_of, say, tell};
use crate::training::checkpoints::Finished;
use crate::training::recipe::PipelineOf;

/// The result of training a model of type `M`.
pub type TrainedOf<M> = Trained<<M as Model>::Input, <M as Model>::Output, <M as Model>::Target>;

/// The result of a complete training run, which reached its last step or was stopped early by `--patience`: the trained
/// pipeline, the evaluation of the held-out samples, and the hash of the parameters.
pub struct Trained<In: Payload, Out: Payload, Target: Payload> {
    /// The trained pipeline, whose workers still run. It can run inference, evaluate, and return its stages' modules.
    pub pipeline: Pipeline<In, Out, Target>,
    /// The loss and the metrics on all held-out samples after training. `None` if no held-out sample has an unmasked
    /// target, or if the result could not be written to the log.
    pub validation: Option<EvalReport>,
    /// The SHA-256 of all parameters of the trained model, as a hexadecimal string; `None` for a model that the user
    /// has cut into stages by hand.
    pub parameters_sha256: Option<String>,
    /// Errors from writing a checkpoint, a log or a page after the last step. If there are any,
    /// [`Program::main`](crate::Program::main) prints the first and returns status 1.
    pub unwritten: Unwritten,
}

/// Completes a training run after its last step: prints the parameters' hash, and completes the log. `validation` is
/// the final evaluation, `waited` is the total time that steps waited for batches, and `is_kept` is whether the last
/// checkpoint is on disk.
pub fn complete<M: Model>(
    model: &M,
    mut pipeline: PipelineOf<M>,
    validation: Option<EvalReport>,
    log: Log,
    is_kept: bool,
    waited: Duration,
    unwritten: Unwritten,
) -> Result<TrainedOf<M>> {
    let found = match pipeline.snapshot().map_err(Error::from).and_then(|modules| model.fingerprint(modules)) {
        Ok(found) => found,
        Err(error) => {
            unwritten.unless(log.close());
            return Err(error);
        }
    };
    let line = found.as_ref().map(|(hash, parameters)| format!("{parameters} parameters, sha256 {hash}"));
    unwritten.unless(line.iter().try_for_each(say));
    let (parameters_sha256, parameters) = found.unzip();
    let trained = Trained { pipeline, validation, parameters_sha256, unwritten };
    // A final result in the log says that the run need not be repeated, so it is written only if the last checkpoint is
    // on disk.
    let closed = if is_kept { log.finish(last_line(&trained, parameters, waited)) } else { log.close() };
    trained.unwritten.unless(closed);
    Ok(trained)
}

/// Returns the log's last line for a complete training. `parameters` is the number of elements of the model's
/// parameters, and `waited` is the total time that steps waited for batches.
fn last_line<In, Out, Target>(trained: &Trained<In, Out, Target>, parameters: Option<usize>, waited: Duration) -> Value
where
    In: Payload,
    Out: Payload,
    Target: Payload,
{
    json!({
        "final": true,
        "validation_loss": trained.validation.as_ref().map(|report| report.loss),
        "validation_metrics": trained.validation.as_ref().map(|report| record::metrics(&report.metrics)),
        "waited_for_batches_seconds": waited.as_secs_f64(),
        "parameters": parameters,
        "parameters_sha256": trained.parameters_sha256,
    })
}

/// Ends a run that stopped before its last step. `failed` is a step's error, if any, `finished` holds the results of
/// the last checkpoint writes, and `closed` is the result of closing the outputs.
///
/// # Errors
/// Returns the first error, which is the cause of the later ones. Later errors are printed on stderr.
pub(super) fn ended_early(failed: Option<Error>, finished: Finished, closed: Result<()>) -> Result<()> {
    let mut errors = Vec::from_iter(failed);
    let Finished { latest, best } = finished;
    for kept in [latest.context("the steps since the last checkpoint are lost"), best] {
        match kept {
            Ok(line) => {
                let unsaid = |line| say(line).inspect_err(|_| tell(line)).err();
                // A failure to print the line is reported only if there is no other error.
                errors.extend(line.iter().find_map(unsaid).filter(|_| errors.is_empty()));
            }
            Err(lost) => errors.push(lost),
        }
    }
    errors.extend(closed.err());
    first_of(errors)
}
