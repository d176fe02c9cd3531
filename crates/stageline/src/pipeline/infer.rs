//! Inference and snapshots: returns the last stage's outputs, or copies of the modules, while the pipeline stays alive.

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::model::batch::Batch;
use crate::model::concatenate::concatenate;
use crate::model::loss_weight::Weight;
use crate::model::micro_batches::MicroBatches;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::modules::Modules;
use crate::runner::pass::Pass;
use crate::transfer::hand_over::place;

impl<In: Payload, Out: Payload, Target: Payload> Pipeline<In, Out, Target> {
    /// Runs inference on a batch of inputs, by forward passes without an autodiff graph, and returns the last stage's
    /// outputs.
    ///
    /// The input is split into as many micro-batches as a training step has. An input with fewer rows (samples) than
    /// that is split into single rows. The outputs are concatenated along dimension 0 (rows). On a deterministic
    /// backend, they have the same bits for every partition into stages. The tensors are on the device of the last
    /// stage of replica 0.
    ///
    /// # Errors
    /// Returns [`StepError::Batch`] if the input cannot be split into rows or the outputs cannot be concatenated, which
    /// leaves the pipeline unchanged. Other errors are the errors of [`step`](Self::step).
    pub fn infer(&mut self, input: In) -> Result<Out, StepError> {
        let micro_batches = Batch::new(input, ()).cut_up_to(self.pieces(), &|()| Weight::from(1.0))?;
        Ok(concatenate(self.outputs(micro_batches)?)?)
    }

    /// Returns the last stage's output for each of the given inputs, in their order. Each input is one micro-batch, of
    /// any size.
    ///
    /// # Errors
    /// Returns the same errors as [`step`](Self::step).
    pub fn infer_micro_batches(&mut self, inputs: Vec<In>) -> Result<Vec<Out>, StepError> {
        let mut outputs = Vec::with_capacity(inputs.len());
        for inputs in inputs.chunks(self.pieces()) {
            let pieces = inputs.iter().map(|input| (input.clone(), ())).collect();
            let batch = Batch::from_micro_batches(pieces).cut_up_to(self.pieces(), &|()| Weight::from(1.0))?;
            outputs.extend(self.outputs(batch)?);
        }
        Ok(outputs)
    }

    /// Returns the last stage's output for each micro-batch of `batch`, in order. The callers have split the inputs so
    /// that `batch` has at most as many micro-batches as a training step.
    fn outputs(&mut self, batch: MicroBatches<In, ()>) -> Result<Vec<Out>, StepError> {
        self.running()?;
        self.workers.begin(During::Inference { steps: self.done.steps });
        let asked = self.asked_forwards(&batch.weights, Pass::Infer);
        let outputs = self.workers.infer(&batch.inputs, asked).map_err(|ended| self.end(ended))?;
        // The caller gets all outputs on one device, although those of other replicas may be on other devices.
        let device = self.sizes.stages[0].last().map(|(device, _)| device.clone()).expect("a pipeline has a stage");
        Ok(outputs.into_iter().map(|output| place(output, &device)).collect())
    }

    /// Returns copies of the modules of all stages, as the last step left them, while the pipeline stays alive.
    ///
    /// The copies are not tracked by autodiff. They have the dtypes of the trained parameters. At first, a copy shares
    /// the memory of the pipeline's parameters. The next step gives the pipeline new parameters, and from then on the
    /// copy occupies memory of its own.
    ///
    /// # Errors
    /// Returns the same errors as [`step`](Self::step).
    pub fn snapshot(&mut self) -> Result<Modules, StepError> {
        self.running()?;
        let copied = self.workers.copy_modules(During::Snapshot { steps: self.done.steps });
        let modules = copied.map_err(|ended| self.end(ended))?;
        Ok(Modules::new(modules, self.plan().stages()))
    }
}
