//! The models from which a run builds its pipeline ([`Model`]): a sequence of layers that the run partitions into
//! stages, or stages that the program defines itself.

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use stageline::{Costs, Cut, LossStage, Modules, ParameterCount, Payload, PipelineBuilder, Row, Stage, StageConfig};

use crate::fingerprint::fingerprint;

/// A model from which a training run builds its pipeline: a sequence of layers that the run partitions into stages, or
/// a hand-cut model, whose program defines the stages.
pub trait Model {
    /// The type of the model's input, which the first stage receives from a batch.
    type Input: Payload;
    /// The type of the model's output, which [`Pipeline::infer`](stageline::Pipeline::infer) returns.
    type Output: Payload;
    /// The type of the targets, which the last stage needs to compute the loss.
    type Target: Payload;

    /// Returns the number of elements of all trained and all frozen parameters, without initialising them; `None` for a
    /// hand-cut model (one whose program defines the stages).
    fn parameters(&self) -> Option<ParameterCount>;

    /// Returns a SHA-256 hash over all parameters, as a hexadecimal string, and the number of their elements. `modules`
    /// holds the modules of all pipeline stages. Returns `None` for a hand-cut model, whose program defines the stages.
    ///
    /// # Errors
    /// Returns an error if `modules` lacks a stage's module, or holds a module of a different type than the model's.
    fn fingerprint(&self, modules: Modules) -> Result<Option<(String, usize)>>;

    /// Returns a description of what the names and shapes of the parameters do not show, such as the number of
    /// attention heads. A run resumes only checkpoints with the same description. Empty by default.
    fn description(&self) -> &str {
        ""
    }

    /// Returns each layer's parameter count, and its forward FLOPs for `sample`, the input of one sample. With a
    /// `device`, also measures each layer's forward and backward time there. Returns `None` for a hand-cut model, which
    /// the user's program partitions into stages itself.
    fn costs(&self, sample: Self::Input, device: Option<&Device>) -> Option<Costs>;

    /// Returns each layer's name and number of parameters, as [`Costs`] without FLOPs and times. Cheaper than
    /// [`costs`](Self::costs), because no layer is run. Returns `None` by default, and for a hand-cut model, whose
    /// program defines the stages.
    fn sizes(&self) -> Option<Costs> {
        None
    }

    /// Returns a builder for a pipeline of this model. `configs` holds each stage's device, optimizer and learning-rate
    /// schedule. `cut` is the partition of the layers into stages, and `None` for a hand-cut model, whose program
    /// defines the stages.
    ///
    /// # Errors
    /// Returns an error if the model cannot be cut into these stages.
    fn pipeline(
        &self,
        cut: Option<&Cut>,
        configs: Vec<StageConfig>,
    ) -> Result<PipelineBuilder<Self::Input, Self::Output, Self::Target>>;
}

impl<F, B, L> Model for Row<F, B, L>
where
    F: Stage,
    B: Stage<Input = F::Output, Output = F::Output>,
    L: LossStage<Input = F::Output>,
{
    type Input = F::Input;
    type Output = L::Output;
    type Target = L::Target;

    fn parameters(&self) -> Option<ParameterCount> {
        Some(Row::parameters(self))
    }

    fn fingerprint(&self, modules: Modules) -> Result<Option<(String, usize)>> {
        Ok(Some(fingerprint(&self.join(modules)?)))
    }

    fn description(&self) -> &str {
        Row::description(self)
    }

    fn costs(&self, sample: F::Input, device: Option<&Device>) -> Option<Costs> {
        Some(device.map_or_else(|| self.count(sample.clone()), |device| self.measure(sample.clone(), device)))
    }

    fn sizes(&self) -> Option<Costs> {
        Some(Row::sizes(self))
    }

    fn pipeline(
        &self,
        cut: Option<&Cut>,
        configs: Vec<StageConfig>,
    ) -> Result<PipelineBuilder<F::Input, L::Output, L::Target>> {
        Ok(Row::pipeline(self, cut.context("a row of layers needs a cut")?, configs)?)
    }
}

/// A hand-cut model: the program defines the stages, in a function that builds the pipeline from each stage's
/// configuration.
pub struct HandCut<F> {
    stages: usize,
    chain: F,
}

impl<F> HandCut<F> {
    /// Creates a hand-cut model with `stages` stages. The function `chain` takes each stage's configuration, in the
    /// order of the stages, and returns the pipeline's builder.
    pub fn new(stages: usize, chain: F) -> Self {
        Self { stages, chain }
    }
}

impl<F, In: Payload, Out: Payload, Target: Payload> Model for HandCut<F>
where
    F: Fn(Vec<StageConfig>) -> PipelineBuilder<In, Out, Target>,
{
    type Input = In;
    type Output = Out;
    type Target = Target;

    fn parameters(&self) -> Option<ParameterCount> {
        None
    }

    fn fingerprint(&self, _: Modules) -> Result<Option<(String, usize)>> {
        Ok(None)
    }

    fn costs(&self, _: In, _: Option<&Device>) -> Option<Costs> {
        None
    }

    fn pipeline(&self, cut: Option<&Cut>, configs: Vec<StageConfig>) -> Result<PipelineBuilder<In, Out, Target>> {
        let (stages, asked) = (self.stages, configs.len());
        if cut.is_some() {
            bail!("--cut: this model is cut by hand; leave --cut out");
        }
        if asked != stages {
            bail!("this model is cut by hand into {stages} stages, and the plan has {asked}; give --stages to match");
        }
        Ok((self.chain)(configs))
    }
}
