//! [`Embedding`]: a layer that looks up trainable vectors by index, and whose weight gradient can be deferred.

use std::marker::PhantomData;

use burn::backend::Backend;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param, ParamId};
use burn::tensor::module::embedding;
use burn::tensor::{Int, Tensor};

use crate::autograd::sum::Sum;
use crate::autograd::weight_gradients::{may_put_off, put_off_any};
use crate::engine::{of_their_backend, recorded};
use crate::kernels::products::Products;

/// An embedding layer like [burn's](burn::nn::Embedding), which returns a row of its table for every index. The layer's
/// only gradient is that of the table, which can be deferred until after the backward pass.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Embedding {
    /// Trainable embedding table, with shape `[indices, width]`: one vector for each index.
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
    /// Looks up indices `[batch, length]` in the embedding's table and returns their vectors, `[batch, length, width]`.
    pub fn forward(&self, indices: Tensor<2, Int>) -> Tensor<3> {
        of_their_backend!(split, &indices, &self.weight).unwrap_or_else(|| embedding(self.weight.val(), indices))
    }
}

/// An embedding lookup as a single operation in burn's autodiff graph. The table's gradient can be deferred until after
/// the backward pass.
#[derive(Debug)]
struct SplitEmbedding;

/// Values that an embedding's forward pass saves for its backward pass.
#[derive(Clone, Debug)]
struct State<B: Backend> {
    weight: FloatTensor<B>,
    indices: IntTensor<B>,
    /// Parameter id of the embedding's table; `None` if the table's gradient must not be deferred until after the
    /// backward pass.
    id: Option<ParamId>,
}

impl<B: Products> Backward<B, 1> for SplitEmbedding {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let State { weight, indices, id } = ops.state;
        let waits = put_off_any([id], || {
            let (weight, gradient, indices) = (weight.clone(), gradient.clone(), indices.clone());
            move |sum: &mut Sum| {
                if let Some(id) = id {
                    sum.add_by::<B, 2>(id, |sum| B::added_to_table(sum, weight, gradient, indices));
                }
            }
        });
        if let ([Some(node)], [false]) = (ops.parents, waits) {
            gradients.register::<B>(node.id, B::to_table(weight, gradient, indices));
        }
    }
}

/// Looks up indices in an embedding's table and returns their vectors. The gradient of the table can be deferred until
/// after the backward pass. Returns `None` if the table is not an autodiff tensor of the backend `B`, if the indices
/// are of another backend, or if burn's own gradient checkpointing is on.
fn split<B: Products>(_: PhantomData<B>, indices: &Tensor<2, Int>, weight: &Param<Tensor<2>>) -> Option<Tensor<3>> {
    let value = weight.val();
    let (values, node) = B::tracked(value.clone())?.into_parts();
    let indices = B::indices(indices.clone())?;
    let id = may_put_off(weight, &value);
    let output = B::embedding(values.clone(), indices.clone());
    let state = State { weight: values, indices, id };
    Some(recorded::<B, _, 1, 3>(SplitEmbedding, [node], state, output))
}
