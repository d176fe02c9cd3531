//! Builds the optimizer that `--optimizer` names, with parameter groups with and without weight decay.

use burn::module::ParamGroup;
use burn::optim::{AdafactorConfig, LionConfig, ModuleOptimizer, Optimizer, SgdConfig, decay::WeightDecayConfig};
use stageline::OptimizerState;

use crate::optimizers::adamw::AdamW;
use crate::optimizers::muon::MuonAndAdamW;
use crate::settings::training::Training;
use crate::settings::values::OptimizerName;

impl Training {
    /// Returns the optimizer that `--optimizer` names. It applies weight decay to all parameters except norms and
    /// biases. `state` selects whether optimizer state is kept in device or host memory.
    pub fn optimizer(&self, state: OptimizerState) -> ModuleOptimizer {
        let decay = self.weight_decay;
        let adamw = self.adamw();
        let plain = AdamW { weight_decay: 0.0, ..adamw };
        match self.optimizer {
            OptimizerName::Adamw => with_and_without_decay(state, adamw, plain),
            OptimizerName::Adafactor => {
                // Relative steps and parameter scaling are off, because they would change the configured learning rate.
                let plain = AdafactorConfig::new().with_relative_step(false).with_scale_parameter(false);
                let adafactor = |decay| plain.clone().with_weight_decay(decay).build();
                with_and_without_decay(state, adafactor(decay), adafactor(0.0))
            }
            OptimizerName::Lion => {
                let lion = |decay| LionConfig::new().with_weight_decay(decay).build();
                with_and_without_decay(state, lion(decay), lion(0.0))
            }
            OptimizerName::Muon => with_and_without_decay(state, MuonAndAdamW::new(adamw), plain),
            OptimizerName::Sgd => {
                let decaying = SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(decay)));
                with_and_without_decay(state, decaying.build(), SgdConfig::new().build())
            }
        }
    }

    /// Returns the optimizer for a model's first and last layer (embeddings and head); `None` if they use the same
    /// optimizer as the blocks. With `--optimizer muon` it is AdamW, because Muon is made for the matrices of hidden
    /// layers.
    pub fn optimizer_of_ends(&self) -> Option<AdamW> {
        (self.optimizer == OptimizerName::Muon).then_some(self.adamw())
    }

    fn adamw(&self) -> AdamW {
        AdamW { betas: self.betas, epsilon: self.epsilon, weight_decay: self.weight_decay }
    }
}

/// Returns an optimizer that applies weight decay (`decaying`) to all parameters except norms and biases (`plain`).
/// `state` selects whether optimizer state is kept in device or host memory.
fn with_and_without_decay(state: OptimizerState, decaying: impl Optimizer, plain: impl Optimizer) -> ModuleOptimizer {
    ModuleOptimizer::from(state.of(decaying)).with_group(without_decay(), state.of(plain), None)
}

/// Returns the parameter group without weight decay: norms and biases, recognised by their names.
pub fn without_decay() -> ParamGroup {
    ParamGroup::from_any_predicates(vec!["norm", "bias"])
}
