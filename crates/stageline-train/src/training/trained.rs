//! The end of a training run: the result of a run that reached its last step ([`Trained`]), or else the run's error.

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

/// The result of a complete training run, which reached its last step or was ended by `--patience`: the trained
/// pipeline, the evaluation of the held-out samples, and the hash of the parameters.
pub struct Trained<In: Payload, Out: Payload, Target: Payload> {
    /// The trained pipeline, whose workers still run. It can infer, evaluate, and return the modules of its stages.
    pub pipeline: Pipeline<In, Out, Target>,
    /// The loss and the metrics on all held-out samples after the training; `None` if no samples are held out.
    pub validation: Option<EvalReport>,
    /// The SHA-256 of all parameters of the trained model, in hexadecimal; `None` for a model that the user has cut
    /// into stages by hand.
    pub parameters_sha256: Option<String>,
    /// The errors in writing a checkpoint, a log or a page after the last step. If there are any,
    /// [`Program::main`](crate::Program::main) prints the first and ends with status 1.
    pub unwritten: Unwritten,
}

/// Completes a training run after its last step: prints the hash of its parameters, and completes its log.
/// `validation` is the evaluation after the last step, and `waited` the total time that steps waited for their batches.
/// `is_kept` says whether the last checkpoint is on disk.
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
    // The final result in a log says that the run need not be started again. So the checkpoint must be on disk first.
    let closed = if is_kept { log.finish(last_line(&trained, parameters, waited)) } else { log.close() };
    trained.unwritten.unless(closed);
    Ok(trained)
}

/// Returns the last line of the log of a complete training run. `parameters` is the number of elements in the model's
/// parameters, and `waited` the total time that steps waited for their batches.
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

/// Ends a run before its last step. `failed` is the error of a step, if there is one, and `closed` is the result of
/// closing the outputs. `finished` are the ends of the last checkpoints.
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
                // After another error, a closed standard output is no news.
                errors.extend(line.iter().find_map(unsaid).filter(|_| errors.is_empty()));
            }
            Err(lost) => errors.push(lost),
        }
    }
    errors.extend(closed.err());
    first_of(errors)
}
