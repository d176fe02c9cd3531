//! What training goes on from.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stageline_checkpoint::{Checkpoint, Progress};

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::workers::pass::Ended;
use crate::state::layout::StageState;
use crate::threads::failure::Failure;
use crate::worker::messages::Command;

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// Everything that training goes on from, as the last step left it, copied to the host: parameters, optimizer states, the
    /// loss scale and the number of steps, for [`PipelineBuilder::restore`](crate::PipelineBuilder::restore). What else a run is
    /// made of, its `run` has room for.
    ///
    /// After an error too: no stage has then made a step that others have not.
    ///
    /// ```no_run
    /// use std::{num::NonZero, path::Path};
    ///
    /// use burn::tensor::Tensor;
    /// use stageline::checkpoint::{CheckpointError, Saved, Store, Writer};
    /// use stageline::{Batch, BoxError, Pipeline, PipelineBuilder};
    ///
    /// type Float = Tensor<2>;
    ///
    /// fn train(
    ///     builder: PipelineBuilder<Float, Float>,
    ///     batch: impl Fn(u64) -> Batch<Float, Float>,
    /// ) -> Result<(), BoxError> {
    ///     let folder = Path::new("kept");
    ///     let (mut pipeline, start) = match Saved::open(folder) {
    ///         Ok(saved) => (builder.restore(saved.read()?).build()?, saved.manifest().progress.steps),
    ///         Err(CheckpointError::PathNotFound { .. } | CheckpointError::NoCheckpoint { .. }) => (builder.build()?, 0),
    ///         Err(damaged) => return Err(damaged.into()),
    ///     };
    ///     let mut writer = Writer::new(Store::open(folder, NonZero::new(3).unwrap())?)?;
    ///     for step in start..1000 {
    ///         pipeline.step(batch(step))?;
    ///         if step % 100 == 99 {
    ///             writer.write(pipeline.checkpoint()?)?; // in the background
    ///         }
    ///     }
    ///     writer.finish()?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`StepError::Lost`] or [`StepError::Unreadable`] if a stage or its device is gone; otherwise as for [`step`](Self::step).
    pub fn checkpoint(&mut self) -> Result<Checkpoint, StepError> {
        if self.is_in_flight {
            self.abandon();
        }
        let states =
            if self.workers.is_empty() { self.kept()? } else { self.copied().map_err(|ended| self.end(ended))? };
        let progress = Progress {
            steps: self.steps as u64,
            optimizer_steps: self.optimizer_steps,
            loss_scale: self.stepping.scaler.state(),
        };
        self.last_checkpoint = Some(self.steps);
        Ok(self.layout.checkpoint(progress, states))
    }

    /// Goes on from there.
    pub(crate) fn resume(&mut self, progress: Progress) {
        self.steps = progress.steps as usize;
        self.last_checkpoint = Some(self.steps);
        self.stop.commit(self.steps).expect("nothing runs yet");
        self.optimizer_steps = progress.optimizer_steps;
    }

    /// By every worker of the first replica, which has all there is to keep.
    fn copied(&mut self) -> Result<Vec<StageState>, Ended> {
        self.begin(During::Checkpoint { steps: self.steps });
        for worker in self.workers.iter().filter(|worker| worker.replica.is_first()) {
            self.send(&worker.commands, Command::Save { during: self.during })?;
        }
        self.gather(&self.saved, 1)
    }

    /// Of workers that have ended.
    fn kept(&self) -> Result<Vec<StageState>, StepError> {
        // Before anything is read: who waits for a lost host would wait for ever.
        if let Some(&stage) = self.out_of_reach.first() {
            return Err(StepError::Lost { stage });
        }
        let here = |stage: usize| self.ended.iter().find(|runner| runner.stage() == stage && runner.is_whole());
        let state = |stage| {
            let runner = here(stage).ok_or(StepError::Lost { stage })?;
            // Its device may be what failed.
            let read = catch_unwind(AssertUnwindSafe(|| runner.state()));
            read.map_err(|panic| StepError::Unreadable { stage, failure: Failure::of_panic(panic) })
        };
        (0..self.plan().stages()).map(state).collect()
    }
}
