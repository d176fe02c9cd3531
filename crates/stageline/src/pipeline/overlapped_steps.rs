//! Runs overlapping training steps: a stage begins the next step before the verdict on the last step (whether all
//! stages step their optimizers or skip the step) is known.

use std::thread::panicking;

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::batch::Batch;
use crate::model::batch_error::BatchError;
use crate::model::micro_batches::MicroBatches;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::report::StepReport;
use crate::pipeline::train::Begun;
use crate::pipeline::workers::Ended;
use crate::update::flush::Flush;
use crate::update::optimizer_step::Rollback;

impl<In: Payload, Out: Payload, Target: Payload> Pipeline<In, Out, Target> {
    /// Trains on one batch after another with overlapping steps. Returns an iterator over the reports of the steps,
    /// which is lazy: a step runs when its report is requested. A stage that has finished its part of a step begins the
    /// next step immediately, while other stages still work. So the pipeline does not drain between steps. The trained
    /// parameters are bit-identical to those of [`step`](Self::step).
    ///
    /// This is the post-validation of Qi et al., 2023 (*Zero Bubble Pipeline Parallelism*, section 4,
    /// [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)):
    ///
    /// - A stage whose own loss and gradients are finite steps its optimizer immediately. The stage assumes that the
    ///   results of all other stages are finite too, and that gradients need no clipping (the assumed verdict).
    /// - Before its next optimizer step the stage receives the verdict on the last step (whether all stages step or
    ///   skip it), which depends on all stages.
    /// - The verdict may differ from the assumed verdict: gradients are clipped by their norm, or a non-finite step is
    ///   skipped. In both cases, every stage rolls back the step and makes it again as the verdict says. Work on the
    ///   following step is discarded, and that step begins again. Such a misprediction costs up to the time of one
    ///   step.
    /// - The step after a misprediction waits for all stages, as `step` does. Steps overlap again after a step whose
    ///   verdict was the assumed verdict.
    ///
    /// Until the verdict a stage keeps its state from before the step: a second copy of parameters and optimizer state,
    /// and the step's gradients.
    ///
    /// A batch is taken from `batches` one step before the batch is needed. If the returned iterator is dropped early,
    /// the step in flight is rolled back, so that the parameters contain exactly the reported steps. To run other code
    /// after every hundredth step, call `steps(batches.by_ref().take(100))` repeatedly.
    ///
    /// [`StepReport::step_time`] is the time since the end of the previous step. The idle time that the overlap saves
    /// is subtracted from [`Account::other`](crate::Account::other) (the worker's remaining idle time), which can
    /// therefore be negative. If a step was rolled back and made again, its recorded events are those of its first run.
    ///
    /// Discarded forward passes still change modules that have a state of their own: burn's dropout draws random
    /// numbers, and burn's batch norm updates its statistics. [`crate::Dropout`] and [`crate::AccumulatedBatchNorm`]
    /// are not affected. With several replicas, or without [`rollback`](crate::PipelineBuilder::rollback), steps do not
    /// overlap, and each step runs as with `step`.
    ///
    /// ```no_run
    /// # use burn::tensor::Tensor;
    /// # use stageline::{Batch, Pipeline, StepError};
    /// # fn train(
    /// #     mut pipeline: Pipeline<Tensor<2>, Tensor<2>, Tensor<2>>,
    /// #     batches: Vec<Batch<Tensor<2>, Tensor<2>>>,
    /// # ) -> Result<(), StepError> {
    /// for report in pipeline.steps(batches) {
    ///     println!("loss {}", report?.loss);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Each item of the iterator has the errors of [`step`](Self::step). After [`StepError::Batch`] the iterator
    /// continues with the next batch; after any other error the iterator ends. If the user's code fails in a step that
    /// began early, the iterator returns an error, even if that step would have been discarded. At most the previous
    /// step is then lost.
    pub fn steps<I>(&mut self, batches: I) -> Steps<'_, In, Out, Target, I::IntoIter>
    where
        I: IntoIterator<Item = Batch<In, Target>>,
    {
        Steps { pipeline: self, batches: Some(batches.into_iter()), next: None, now: None, behind: None }
    }
}

/// An iterator over training steps that may overlap: a step may begin before the previous step has ended.
/// [`Pipeline::steps`] returns this iterator. Each item is the report of one step, or an error.
#[must_use = "the iterator is lazy: a step runs only when it is asked for by `next`"]
pub struct Steps<'a, In: Payload, Out: Payload, Target: Payload, I> {
    pipeline: &'a mut Pipeline<In, Out, Target>,
    /// The caller's iterator over batches; `None` once it is exhausted, or once an error has ended the steps.
    batches: Option<I>,
    /// The next batch, split into micro-batches, or the error with which it is rejected; `None` if no batch is fetched.
    next: Option<Result<MicroBatches<In, Target>, BatchError>>,
    /// The training step that the workers run now and whose report is returned next; `None` if they run no step.
    now: Option<Begun<In, Target>>,
    /// The training step after the one that the workers run now; `None` if this next step has not begun. A next step
    /// begins before the verdict on the running step is known.
    behind: Option<Begun<In, Target>>,
}

impl<In: Payload, Out: Payload, Target: Payload, I: Iterator<Item = Batch<In, Target>>> Steps<'_, In, Out, Target, I> {
    /// Takes the next batch from the caller's iterator and splits it into micro-batches. Does nothing if the last batch
    /// taken is still unused.
    fn fetch_next(&mut self) {
        if self.next.is_none() {
            let batch = self.batches.as_mut().and_then(I::next);
            self.next = batch.map(|batch| self.pipeline.micro_batches(batch));
            self.batches.take_if(|_| self.next.is_none());
        }
    }

    /// Begins a training step with the next batch. Does nothing if there are no more batches.
    fn begin(&mut self) -> Result<(), StepOver> {
        self.fetch_next();
        let Some(batch) = self.next.take() else { return Ok(()) };
        self.pipeline.running()?;
        // With several replicas, the gradient reduction of every step waits for all replicas, so no stage could run
        // ahead.
        let can_be_undone = self.pipeline.stepping.rollback == Rollback::Kept;
        let ahead = self.pipeline.replicas() == 1 && can_be_undone && self.pipeline.overlap.as_assumed && {
            self.fetch_next();
            matches!(self.next, Some(Ok(_)))
        };
        self.pipeline.workers.begin(During::Step(self.pipeline.done.steps));
        let batch = match batch {
            Ok(batch) => batch,
            Err(BatchError::NoWeight) => return Err(StepOver::Passed(Box::new(self.pipeline.pass_over()?))),
            Err(error) => return Err(StepOver::Failed(error.into())),
        };
        let assumed = self.pipeline.stepping.flush.assumed(self.pipeline.done.steps);
        let flush = if ahead { Flush::Ahead(assumed) } else { Flush::Together };
        self.now = Some(self.pipeline.launch(batch, flush)?);
        Ok(())
    }

    /// Begins the next training step while the workers still run the current one. Does nothing if the stages wait for
    /// the verdict on the current step, or if there is no valid next batch.
    fn begin_behind(&mut self) -> Result<(), Ended> {
        if self.now.as_ref().is_some_and(Begun::may_be_followed) {
            self.fetch_next();
            if let Some(batch) = self.next.take_if(|batch| batch.is_ok()) {
                self.behind = batch.ok().map(|batch| self.pipeline.launch_behind(batch)).transpose()?;
            }
        }
        Ok(())
    }

    /// Completes the next training step and returns its report, or `None` if there are no more batches. Also begins the
    /// following step early if steps may overlap.
    fn step(&mut self) -> Result<Option<StepReport>, StepOver> {
        if self.now.is_none() {
            self.begin()?;
        }
        self.begin_behind()?;
        let Some(now) = &self.now else { return Ok(None) };
        // The watchdog's time begins here, so that it does not include the time for which the caller prepared the
        // batch.
        self.pipeline.workers.begin(During::Step(self.pipeline.done.steps));
        let report = self.pipeline.complete(now, self.behind.is_some())?;
        self.now = self.behind.take();
        if !self.pipeline.overlap.as_assumed {
            self.next = self.now.take().map(|discarded| Ok(discarded.into_batch())).or(self.next.take());
        }
        Ok(Some(report))
    }
}

/// The reason why the iterator over training steps did not complete a step normally: the step was skipped, its batch
/// was rejected, or the pipeline stopped.
enum StepOver {
    /// The step is skipped because its batch has no unmasked target; the value is the step's report.
    Passed(Box<StepReport>),
    /// The batch of the step is rejected, or the pipeline had already stopped; the value is the error.
    Failed(StepError),
    /// The workers stopped during the training step, so that the step has no report; the value says whether a worker or
    /// the caller's thread found the error.
    Ended(Ended),
}

impl From<Ended> for StepOver {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

impl From<StepError> for StepOver {
    fn from(error: StepError) -> Self {
        Self::Failed(error)
    }
}

impl<In: Payload, Out: Payload, Target: Payload, I: Iterator<Item = Batch<In, Target>>> Iterator
    for Steps<'_, In, Out, Target, I>
{
    type Item = Result<StepReport, StepError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(report) => report.map(Ok),
            Err(StepOver::Passed(report)) => Some(Ok(*report)),
            // A rejected batch leaves the pipeline unchanged, so the next batch may be trained on.
            Err(StepOver::Failed(error @ StepError::Batch(_))) => Some(Err(error)),
            Err(over) => {
                (self.batches, self.next, self.now, self.behind) = (None, None, None, None);
                Some(Err(match over {
                    StepOver::Ended(ended) => self.pipeline.end(ended),
                    StepOver::Failed(error) => error,
                    StepOver::Passed(_) => unreachable!("a skipped step is returned as a report above"),
                }))
            }
        }
    }
}

impl<In: Payload, Out: Payload, Target: Payload, I> Drop for Steps<'_, In, Out, Target, I> {
    /// Rolls back the step in flight when the iterator over training steps is dropped. If the caller's thread panics,
    /// stops the workers instead.
    fn drop(&mut self) {
        if self.now.is_none() {
            return;
        }
        if panicking() {
            self.pipeline.abandon();
        } else {
            self.pipeline.undo();
        }
    }
}
