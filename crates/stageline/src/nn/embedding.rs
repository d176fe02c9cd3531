//! A table of vectors.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::tensor::module::embedding;
use burn::tensor::{Int, Tensor};

/// A row of a table for every index, as [burn's](burn::nn::Embedding); its backward is all weight gradient.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Embedding {
    /// `[indices, width]`.
    pub weight: Param<Tensor<2>>,
}

impl From<burn::nn::Embedding> for Embedding {
    fn from(burn::nn::Embedding { weight, .. }: burn::nn::Embedding) -> Self {
        Self { weight }
    }
}

impl ModuleDisplay for Embedding {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [indices, width] = self.weight.shape().dims();
        content.add("indices", &indices).add("width", &width).optional()
    }
}

impl Embedding {
    /// `[batch, length]` to `[batch, length, width]`.
    pub fn forward(&self, indices: Tensor<2, Int>) -> Tensor<3> {
        #[cfg(feature = "flex")]
        if let Some(output) = host::split(&indices, &self.weight) {
            return output;
        }
        embedding(self.weight.val(), indices)
    }
}

#[cfg(feature = "flex")]
mod host {
    use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
    use burn::backend::ops::ModuleOps;
    use burn::backend::tensor::{FloatTensor, IntTensor};
    use burn::backend::{Autodiff, Flex};
    use burn::module::{Param, ParamId};
    use burn::tensor::{Int, Tensor};

    use crate::deferred::{Deferred, put_off};

    #[derive(Debug)]
    struct SplitEmbedding;

    /// What the backward needs.
    #[derive(Clone, Debug)]
    struct State {
        weight: FloatTensor<Flex>,
        indices: IntTensor<Flex>,
        id: ParamId,
    }

    impl Backward<Flex, 1> for SplitEmbedding {
        type State = State;

        fn backward(self, ops: Ops<State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<Flex>(&ops.node);
            let State { weight, indices, id } = ops.state;
            let make = move || Flex::embedding_backward(weight.clone(), gradient.clone(), indices.clone());
            let later = make.clone();
            let later = Deferred::new(vec![id], move |sum| sum.add(id, Tensor::<2>::from_primitive::<Flex>(later())));
            if put_off(later).is_err()
                && let [Some(node)] = ops.parents
            {
                gradients.register::<Flex>(node.id, make());
            }
        }
    }

    /// `None` where these are no tensors of flex, or of a graph with burn's own checkpointing.
    pub(super) fn split(indices: &Tensor<2, Int>, weight: &Param<Tensor<2>>) -> Option<Tensor<3>> {
        let indices = indices.clone().try_into_primitive::<Autodiff<Flex>>().ok()?;
        let (values, node) = weight.val().try_into_primitive::<Autodiff<Flex>>().ok()?.into_parts();
        let output = Flex::embedding(values.clone(), indices.clone());
        let state = State { weight: values, indices, id: weight.id };
        let output = match SplitEmbedding.prepare::<NoCheckpointing>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(state, output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        };
        Some(Tensor::from_primitive::<Autodiff<Flex>>(output))
    }
}
