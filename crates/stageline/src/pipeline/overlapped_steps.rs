//! One step after the other.

use std::thread::panicking;

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::batch::{Batch, BatchError, MicroBatches};
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::report::StepReport;
use crate::pipeline::train::Begun;
use crate::pipeline::workers::Ended;
use crate::update::flush::{Flush, Rollback};

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// Trains on one batch after the other, and gives the report of each step, with the same bits as [`step`](Self::step); but a
    /// stage that is done with a step begins the next one while others are still on it. Such a flush does not stop the pipeline, and
    /// what a schedule leaves idle at one end of a step is of use at the other.
    ///
    /// It is the post-validation of Qi et al., 2023 (*Zero Bubble Pipeline Parallelism*, section 4,
    /// [arXiv:2401.10241](https://arxiv.org/abs/2401.10241)): a stage whose own loss and gradients are finite makes its optimizer
    /// step at once, as if all others' were, and were not to be clipped. What came of all stages it hears before its next optimizer
    /// step. If something else is to be done (gradients clipped by their norm, a step that is not finite left out), every stage goes
    /// back to before the step, makes it as it should be, and the step that had begun meanwhile is begun anew. So that costs up to a
    /// step; the one after it waits for all stages, as `step` does, and only behind one that was as it was taken to be, stages go
    /// ahead again. Until a stage hears of it, it keeps what was before the step: parameters and optimizer state once more, and the
    /// step's gradients.
    ///
    /// A batch is taken from `batches` one step before it is due. Where this is dropped before it has come to an end, the
    /// step that has begun is undone, so that as many steps are made as were reported: to do something after every hundredth, ask
    /// for the steps of `batches.by_ref().take(100)`. [`StepReport::step_time`] is the time since the step before, and idle times
    /// that overlapping steps save are taken off [`Account::other`](crate::Account::other), which can be negative. Events are those of
    /// the step as it was first made. Forwards of a step that is void are not without a trace where a stage has a state of its own:
    /// burn's dropout draws numbers, and its batch norm counts them, as [`crate::Dropout`] and [`crate::AccumulatedBatchNorm`] do not.
    /// Of several replicas, steps do not overlap: it is then [`step`](Self::step) after `step`.
    ///
    /// ```no_run
    /// # use burn::tensor::Tensor;
    /// # use stageline::{Batch, Pipeline, StepError};
    /// # fn train(
    /// #     mut pipeline: Pipeline<Tensor<2>, Tensor<2>>,
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
    /// As for [`step`](Self::step): after [`StepError::Batch`] it goes on with the next batch, after any other error it has
    /// come to its end. Where the user's code fails in a step that has begun ahead, this is an error although that step might have
    /// turned out to be void; nothing is lost: all stages are then as they were before, or after, the step before it.
    pub fn steps<I>(&mut self, batches: I) -> Steps<'_, In, Target, I::IntoIter>
    where
        I: IntoIterator<Item = Batch<In, Target>>,
    {
        Steps { pipeline: self, batches: Some(batches.into_iter()), next: None, now: None, behind: None }
    }
}

/// The steps of [`Pipeline::steps`].
#[must_use = "steps are made when they are asked for"]
pub struct Steps<'a, In: Payload, Target: Payload, I> {
    pipeline: &'a mut Pipeline<In, Target>,
    /// None when there are no more, or nothing can be made of them.
    batches: Option<I>,
    /// A batch that is cut, and not yet trained on.
    next: Option<Result<MicroBatches<In, Target>, BatchError>>,
    /// The step on which workers are, or will be next,
    now: Option<Begun<In, Target>>,
    /// and the one behind it.
    behind: Option<Begun<In, Target>>,
}

impl<In: Payload, Target: Payload, I: Iterator<Item = Batch<In, Target>>> Steps<'_, In, Target, I> {
    /// Sees to it that there is a next batch, if there is one.
    fn look(&mut self) {
        if self.next.is_none() {
            let batch = self.batches.as_mut().and_then(I::next);
            self.next = batch.map(|batch| self.pipeline.micro_batches(batch));
            self.batches.take_if(|_| self.next.is_none());
        }
    }

    /// Begins a step, if none has begun, and there is a batch for one.
    fn begin(&mut self) -> Result<(), StepOver> {
        self.look();
        let Some(batch) = self.next.take() else { return Ok(()) };
        self.pipeline.running()?;
        // The reduction of every step waits for all replicas.
        let can_be_undone = self.pipeline.stepping.rollback == Rollback::Kept;
        let ahead = self.pipeline.replicas() == 1 && can_be_undone && self.pipeline.overlap.as_assumed && {
            self.look();
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

    /// Begins the step behind this one, if it can.
    fn begin_behind(&mut self) -> Result<(), Ended> {
        if self.now.as_ref().is_some_and(Begun::may_be_followed) {
            self.look();
            if let Some(batch) = self.next.take_if(|batch| batch.is_ok()) {
                self.behind = batch.ok().map(|batch| self.pipeline.launch_behind(batch)).transpose()?;
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<StepReport>, StepOver> {
        if self.now.is_none() {
            self.begin()?;
        }
        self.begin_behind()?;
        let Some(now) = &self.now else { return Ok(None) };
        // The watchdog is not for who makes the batches.
        self.pipeline.workers.begin(During::Step(self.pipeline.done.steps));
        let report = self.pipeline.complete(now, self.behind.is_some())?;
        self.now = self.behind.take();
        if !self.pipeline.overlap.as_assumed {
            self.next = self.now.take().map(|void| Ok(void.into_batch())).or(self.next.take());
        }
        Ok(Some(report))
    }
}

/// Why a batch makes no step of all stages.
enum StepOver {
    /// It weighs nothing.
    Passed(Box<StepReport>),
    /// It cannot be cut, or nothing runs any more.
    Failed(StepError),
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

impl<In: Payload, Target: Payload, I: Iterator<Item = Batch<In, Target>>> Iterator for Steps<'_, In, Target, I> {
    type Item = Result<StepReport, StepError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(report) => report.map(Ok),
            Err(StepOver::Passed(report)) => Some(Ok(*report)),
            // The next batch may do.
            Err(StepOver::Failed(error @ StepError::Batch(_))) => Some(Err(error)),
            Err(over) => {
                (self.batches, self.next, self.now, self.behind) = (None, None, None, None);
                Some(Err(match over {
                    StepOver::Ended(ended) => self.pipeline.end(ended),
                    StepOver::Failed(error) => error,
                    StepOver::Passed(_) => unreachable!("it is a report"),
                }))
            }
        }
    }
}

impl<In: Payload, Target: Payload, I> Drop for Steps<'_, In, Target, I> {
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
