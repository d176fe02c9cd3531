//! Takes checkpoints of a pipeline, and sets the step counts of a pipeline that resumes from a checkpoint.

use stageline_checkpoint::{Checkpoint, Progress};

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::state::frozen::FrozenFrom;
use crate::state::layout::{NamedTensor, StageState};
use crate::state::run_settings::RunSettings;

impl<In: Payload, Out: Payload, Target: Payload> Pipeline<In, Out, Target> {
    /// Takes a checkpoint: copies everything that training needs to resume into host memory. This includes the
    /// parameters, the optimizer states, the loss scale and the number of steps, as the last step left them. A pipeline
    /// that is built with [`PipelineBuilder::restore`](crate::PipelineBuilder::restore) resumes from the checkpoint.
    ///
    /// With [`FrozenFrom::Model`](crate::FrozenFrom::Model), large frozen parameters are left out.
    ///
    /// The checkpoint's field `run` is a map for a program's own state. The pipeline stores its settings in the entry
    /// `pipeline`: the numbers of micro-batches and gradient groups, and the last learning rate. A resumed run with
    /// other settings logs a warning.
    ///
    /// In the checkpoint, parameters have the names that the user set by
    /// [`PipelineBuilder::names`](crate::PipelineBuilder::names). A pipeline that was built from a [`Row`](crate::Row)
    /// (first layer, blocks, last layer) has such names without that call. Any other pipeline without that call names
    /// each parameter by its stage and its path in the stage's module. The checkpoint can then be resumed only with the
    /// same partition into stages.
    ///
    /// A checkpoint can also be taken after an error, because a failed step is rolled back on every stage. If
    /// [`rollback`](crate::PipelineBuilder::rollback) is off, this does not hold for a step that failed after a stage
    /// had stepped its optimizer.
    ///
    /// ```no_run
    /// use std::{num::NonZero, path::Path};
    ///
    /// use burn::tensor::Tensor;
    /// use stageline::checkpoint::{CheckpointError, Saved, Store, Writer};
    /// use stageline::{Batch, BoxError, LossStage, Names, Pipeline, Stage, StageConfig};
    ///
    /// type Float = Tensor<2>;
    ///
    /// fn train<S, L>(
    ///     encoder: S,
    ///     decoder: L,
    ///     config: StageConfig,
    ///     batch: impl Fn(u64) -> Batch<Float, Float>,
    /// ) -> Result<(), BoxError>
    /// where
    ///     S: Stage<Input = Float, Output = Float>,
    ///     L: LossStage<Input = Float, Output = Float, Target = Float>,
    /// {
    ///     // The names of the whole model, which are the same for every split into stages.
    ///     let names = Names::new().part("encoder", &encoder).part("decoder", &decoder);
    ///     let builder = Pipeline::builder().stage(encoder, config.clone()).loss(decoder, config).names(names);
    ///     let folder = Path::new("kept");
    ///     let (mut pipeline, start) = match Saved::open(folder) {
    ///         Ok(saved) => (builder.restore(saved.read()?).build()?, saved.manifest().progress.steps),
    ///         Err(CheckpointError::PathNotFound { .. } | CheckpointError::NoCheckpoint { .. }) => {
    ///             (builder.build()?, 0)
    ///         }
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
    /// Returns [`StepError::Lost`] if a stage is lost, and [`StepError::Unreadable`] if a stage's state cannot be
    /// copied from its device. Other errors are the errors of [`step`](Self::step).
    pub fn checkpoint(&mut self) -> Result<Checkpoint, StepError> {
        let states = self.states(self.layout.frozen_from())?;
        let progress = Progress {
            steps: self.done.steps as u64,
            optimizer_steps: self.done.optimizer_steps,
            loss_scale: self.stepping.scaler.state(),
        };
        self.done.last_checkpoint = Some(self.done.steps);
        let mut checkpoint = self.layout.checkpoint(progress, states);
        let (micro_batches, gradient_groups) = (self.pieces(), self.sizes.groups);
        let settings = RunSettings { micro_batches, gradient_groups, learning_rate: self.done.learning_rate };
        settings.write(&mut checkpoint.run);
        Ok(checkpoint)
    }

    /// Copies the tensors of the model to host memory, and returns them with their names in checkpoints. They are
    /// ordered by stage, and within a stage by the order of the module's fields.
    pub(crate) fn named_tensors(&mut self) -> Result<Vec<NamedTensor>, StepError> {
        let states = self.states(FrozenFrom::Checkpoint)?;
        Ok(self.layout.named(states))
    }

    /// Copies the parameters and optimizer states of all stages of the first replica to the host, as the last step left
    /// them. With [`FrozenFrom::Model`], large frozen parameters are hashed instead, because a resumed run takes their
    /// values from its model.
    fn states(&mut self, frozen_from: FrozenFrom) -> Result<Vec<StageState>, StepError> {
        if self.overlap.is_in_flight {
            self.abandon();
        }
        if self.workers.running() == 0 {
            return self.workers.states(frozen_from);
        }
        let copied = self.workers.copy_states(During::Checkpoint { steps: self.done.steps }, frozen_from);
        copied.map_err(|ended| self.end(ended))
    }

    /// Resumes the pipeline's counts of training steps and optimizer steps from a checkpoint's `progress`.
    /// `learning_rate` is the learning rate of the last optimizer step, if the checkpoint records it.
    pub(crate) fn resume(&mut self, progress: Progress, learning_rate: Option<f64>) {
        self.done.steps = progress.steps as usize;
        self.done.last_checkpoint = Some(self.done.steps);
        let committed = self.workers.commit(self.done.steps);
        assert!(committed.is_ok(), "no worker runs before the first step");
        self.done.optimizer_steps = progress.optimizer_steps;
        self.done.learning_rate = learning_rate;
    }
}
