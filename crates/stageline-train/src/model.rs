//! The models from which a run builds its pipeline ([`Model`]). A model is a sequence of layers that the run partitions
//! into stages, or it is cut into stages by the user's code.

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use stageline::{Costs, Cut, LossStage, Modules, ParameterCount, Payload, PipelineBuilder, Row, Stage, StageConfig};

use crate::fingerprint::fingerprint;

/// A model from which a training run builds its pipeline. Either the model is a sequence of layers that can be
/// partitioned into stages automatically, or the user has cut it into stages by hand.
pub trait Model {
    /// The type of the model's input, which the first stage receives from a batch.
    type Input: Payload;
    /// The type of the model's output, which [`Pipeline::infer`](stageline::Pipeline::infer) returns.
    type Output: Payload;
    /// The type of the targets, which the last stage compares with its outputs to compute the loss.
    type Target: Payload;

    /// Returns the number of elements in the model's trained and in its frozen parameters, without initialising them.
    /// Returns `None` for a model that is cut by hand.
    fn parameters(&self) -> Option<ParameterCount>;

    /// Returns the SHA-256 of all parameters of the model, in hexadecimal, and the number of their elements. `modules`
    /// holds the modules of all stages of its pipeline. Returns `None` for a model that is cut by hand.
    ///
    /// # Errors
    /// Returns an error if `modules` lacks the module of a stage, or holds a module of a different type than the model.
    fn fingerprint(&self, modules: Modules) -> Result<Option<(String, usize)>>;

    /// Returns the costs of each layer of the model for `sample`, the input of one sample: its parameters and the FLOPs
    /// of its forward pass. With a `device`, also the time of its forward and backward pass on that device. Returns
    /// `None` for a model that is cut by hand.
    fn costs(&self, sample: Self::Input, device: Option<&Device>) -> Option<Costs>;

    /// Returns the name and the number of parameters of each layer of the model, as costs whose FLOPs are 0 and whose
    /// times are unset. No layer is run, so this is cheaper than [`costs`](Self::costs). Returns `None` by default, and
    /// for a model that is cut by hand.
    fn sizes(&self) -> Option<Costs> {
        None
    }

    /// Returns the builder of a pipeline of this model. `configs` holds the device, the optimizer and the learning
    /// rates of each stage. `cut` is the partition of the layers into stages. It must be `None` for a model that is cut
    /// by hand.
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

/// A model that the user has cut into stages by hand. It wraps a function that builds the pipeline from the
/// configuration of each stage.
pub struct HandCut<F> {
    stages: usize,
    chain: F,
}

impl<F> HandCut<F> {
    /// Creates a model that the user has cut into `stages` stages. The function `chain` takes the configuration of each
    /// stage, the first stage first, and returns the builder of their pipeline.
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
