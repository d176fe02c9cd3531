//! The costs of a model's layers: parameters and, if they are needed, FLOPs and times.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};
use stageline::Costs;

use crate::model::Model;
use crate::settings::job::Job;
use crate::settings::running::Running;
use crate::settings::values::{CutBy, ScheduleBy};

/// The purpose for which a program needs the layers' costs. It decides whether [`costs`] must run the layers.
#[derive(Clone, Copy)]
pub enum Purpose {
    /// Build a pipeline without training it. Stages are balanced by number of parameters by default, so no layer is
    /// run.
    Pipeline,
    /// Train the model. Stages are balanced by FLOPs and parameters by default, so each layer is run to count its
    /// FLOPs.
    Training {
        /// Whether the run writes a log or an HTML page, which list the layers' FLOPs, so that these must be counted.
        is_written: bool,
    },
}

/// Returns each layer's costs: FLOPs and parameters, and with `--cut measured` the times on the first device. Returns
/// `None` for a hand-cut model, whose program defines the stages.
///
/// Layers are run on `sample`, the input of one sample, only if their FLOPs or times are needed:
///
/// - For `--cut measured` and `--schedule search`.
/// - In a training run, also for the default cut, the log, the HTML page and the model FLOP utilisation.
/// - If [`Model::sizes`] returns `None`.
///
/// If no layer is run, the FLOPs are 0. If layers are run to balance several workers by FLOPs, but the model's blocks
/// report none, a warning says so.
///
/// # Errors
/// Returns an error with the layer's name if a layer fails on the sample, for example because of its shape.
pub fn costs<M: Model>(model: &M, sample: M::Input, job: &Job, purpose: Purpose) -> Result<Option<Costs>> {
    let Running { cut, schedule, devices, peak_flops, workers, .. } = &job.running;
    let is_measured = *cut == CutBy::Measured;
    let needs_flops = match purpose {
        Purpose::Pipeline => false,
        Purpose::Training { is_written } => is_written || peak_flops.is_some() || *cut == CutBy::Counted,
    };
    let are_run = needs_flops || is_measured || matches!(schedule, ScheduleBy::Search);
    let sizes = if are_run { None } else { model.sizes() };
    let run = || model.costs(sample, is_measured.then(|| &devices[0]));
    let found = match sizes {
        Some(sizes) => Some(sizes),
        None => catch_unwind(AssertUnwindSafe(run)).map_err(|panic| anyhow!(message_of(&*panic)))?,
    };
    let Some(costs) = found else { return Ok(None) };
    let is_balanced = *cut == CutBy::Counted && *workers > 1 && !matches!(schedule, ScheduleBy::Search);
    if are_run && is_balanced && !costs.blocks_report_flops() {
        tracing::warn!(
            "the blocks of the model report no FLOPs, so the stages are balanced by their parameters only; --cut measured times \
             the layers instead"
        );
    }
    Ok(Some(costs))
}

/// Returns the message of a panic, which names the layer that failed.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_else(|| "a layer of the model panicked without a message".to_owned())
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use burn::tensor::{Device, Tensor};

    use super::super::choose::choose;
    use super::*;
    use crate::support::counted_row;

    /// Tests when the layers of a model are run to find their FLOPs. With a list as `--cut`, they are run only if FLOPs
    /// are needed, for example for a log or a schedule search. Without a list, they are always run.
    #[test]
    fn no_layer_is_run_for_a_list_cut_whose_flops_nobody_needs() {
        let counter = Arc::new(AtomicUsize::new(0));
        let row = counted_row(&counter);
        let forwards = |flags: &str, is_written: bool| {
            counter.store(0, Ordering::Relaxed);
            let (job, sample) = (Job::of_line(flags).unwrap(), Tensor::zeros([1, 2], &Device::flex()));
            let costs = costs(&row, sample, &job, Purpose::Training { is_written }).unwrap().unwrap();
            assert_eq!((costs.layers().len(), costs.parameters()), (4, 4 * 6), "{flags}");
            counter.load(Ordering::Relaxed)
        };
        assert_eq!(forwards("--cut 0,2", false), 0);
        assert_eq!(forwards("--cut 0,2", true), 4);
        assert_eq!(forwards("--cut 0,2 --peak-tflops 1", false), 4);
        assert_eq!(forwards("--cut 0,2 --schedule search", false), 4);
        assert_eq!(forwards("", false), 4);
    }

    /// Tests a sample with the wrong number of features, which is an error and does not end the program.
    #[test]
    fn a_sample_that_does_not_fit_the_first_layer_is_an_error() {
        let row = counted_row(&Arc::new(AtomicUsize::new(0)));
        let (job, sample) = (Job::of_line("").unwrap(), Tensor::zeros([1, 3], &Device::flex()));
        let error = costs(&row, sample, &job, Purpose::Training { is_written: false }).err().unwrap().to_string();
        assert!(error.starts_with("the layer `first` failed on the sample input: it panicked: "), "{error}");
    }

    /// Tests a model whose pipeline is built without a training. Its layers are run only for `--cut measured` and for
    /// `--schedule search`.
    #[test]
    fn no_layer_is_run_for_the_cut_of_a_model_that_is_not_trained() {
        let counter = Arc::new(AtomicUsize::new(0));
        let row = counted_row(&counter);
        let forwards = |flags: &str| {
            counter.store(0, Ordering::Relaxed);
            let (job, sample) = (Job::of_line(flags).unwrap(), Tensor::zeros([1, 2], &Device::flex()));
            let costs = costs(&row, sample, &job, Purpose::Pipeline).unwrap().unwrap();
            let planned = choose(&job.running, &job.training, Some(&costs)).unwrap();
            assert_eq!((costs.layers().len(), costs.parameters()), (4, 4 * 6), "{flags}");
            assert_eq!(planned.cut.unwrap().stages(), planned.stages, "{flags}");
            counter.load(Ordering::Relaxed)
        };
        assert_eq!(forwards("--stages 2"), 0);
        assert_eq!(forwards("--stages 2 --cut 0,3"), 0);
        assert_eq!(forwards("--stages 2 --peak-tflops 1"), 0);
        assert_eq!(forwards("--stages 2 --schedule search"), 4);
        assert!(forwards("--stages 2 --cut measured") > 4);
    }
}
