//! The product of activations with an embedding's table, for models with tied embeddings: the output layer uses the
//! table as its weight, and the product gives the logits.

use std::marker::PhantomData;

use burn::backend::Backend;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::module::{Param, ParamId};
use burn::tensor::Tensor;

use crate::autograd::sum::Sum;
use crate::autograd::weight_gradients::{may_put_off, put_off_any};
use crate::engine::{of_their_backend, recorded};
use crate::forward::flops::report_flops;
use crate::kernels::products::Products;
use crate::layers::Embedding;

impl Embedding {
    /// Returns `rows @ table.T`: the products of the activations `rows`, `[rows, width]`, with every vector of this
    /// embedding's table. The result, `[rows, indices]`, contains the logits of a model with tied embeddings, whose
    /// output layer uses the embedding's table as its weight (Press and Wolf, 2017,
    /// [arXiv:1608.05859](https://arxiv.org/abs/1608.05859)). The gradient of the table can be deferred until after the
    /// backward pass.
    ///
    /// # Panics
    /// Panics if the last dimension of `rows` is not the width of the embedding's table.
    pub fn project(&self, rows: Tensor<2>) -> Tensor<2> {
        let ([count, width], [indices, expected]) = (rows.dims(), self.weight.shape().dims());
        assert_eq!(width, expected, "the rows have {width} elements, and the vectors of the table {expected}");
        report_flops(2.0 * (count * width) as f64 * indices as f64);
        of_their_backend!(split, &rows, &self.weight)
            .or_else(|| of_their_backend!(untracked, &rows, &self.weight))
            .unwrap_or_else(|| rows.matmul(self.weight.val().transpose()))
    }
}

/// The product of activations with an embedding's table (tied output layer) as a single operation in burn's autodiff
/// graph.
#[derive(Debug)]
struct Projection;

/// Values that the tied output layer's forward pass saves for its backward pass: the activations, the embedding's
/// table, and the table's parameter id.
#[derive(Clone, Debug)]
struct State<B: Backend> {
    /// The activations, which only the table's gradient needs; `None` if the table is frozen.
    rows: Option<FloatTensor<B>>,
    table: FloatTensor<B>,
    /// Parameter id of the embedding's table; `None` if the table's gradient must not be deferred until after the
    /// backward pass.
    id: Option<ParamId>,
}

impl<B: Products> Backward<B, 2> for Projection {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let State { rows, table, id } = ops.state;
        let [to_rows, to_table] = ops.parents;
        let waits = put_off_any([id], || {
            let (rows, gradient) = (rows.clone(), gradient.clone());
            move |sum: &mut Sum| {
                if let (Some(id), Some(rows)) = (id, rows) {
                    sum.add_by::<B, 2>(id, |sum| B::added_to_weight(sum, gradient, rows));
                }
            }
        });
        // The table gradient comes first, so that the memory of `rows` is freed before the gradient of `rows` is
        // allocated.
        if let (Some(node), Some(rows)) = (to_table.filter(|_| !waits[0]), rows) {
            gradients.register::<B>(node.id, B::to_weight(gradient.clone(), rows));
        }
        if let Some(node) = to_rows {
            gradients.register::<B>(node.id, B::product(gradient, table, None));
        }
    }
}

/// Computes the product of activations with an embedding's table, for tensors that autodiff does not track. Returns
/// `None` if the tensors are not plain tensors of the backend `B`.
fn untracked<B: Products>(_: PhantomData<B>, rows: &Tensor<2>, weight: &Param<Tensor<2>>) -> Option<Tensor<2>> {
    Some(B::of_plain(B::to_input(B::plain(weight.val())?, B::plain(rows.clone())?)))
}

/// Computes the product of activations with an embedding's table, with a backward pass that can be split into input and
/// table gradients. Returns `None` if the tensors are not autodiff tensors of the backend `B`, or if burn's own
/// gradient checkpointing is on.
fn split<B: Products>(_: PhantomData<B>, rows: &Tensor<2>, weight: &Param<Tensor<2>>) -> Option<Tensor<2>> {
    let (rows, rows_node) = B::tracked(rows.clone())?.into_parts();
    let value = weight.val();
    let (table, table_node) = B::tracked(value.clone())?.into_parts();
    let id = may_put_off(weight, &value);
    // `to_input` multiplies by the transpose of a linear layer's weight. Here the table takes the place of the weight.
    let output = B::to_input(table.clone(), rows.clone());
    let state = State { rows: value.is_tracked().then_some(rows), table, id };
    Some(recorded::<B, _, 2, 2>(Projection, [rows_node, table_node], state, output))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::nn::EmbeddingConfig;
    use burn::optim::GradientsParams;
    use burn::tensor::Device;

    use super::*;
    use crate::autograd::weight_gradients::collect;
    use crate::test_numbers::uniform;

    #[test]
    fn a_projection_matches_burns_product_with_whole_and_split_backward() {
        let device = Device::flex();
        let layer = Embedding::from(EmbeddingConfig::new(19, 7).init(&device.clone().autodiff()));
        let random = |shape: [usize; 2]| uniform(shape, 0.0..1.0, &device);
        let (rows, upstream) = (random([11, 7]), random([11, 19]));
        let run = |forward: &dyn Fn(Tensor<2>) -> Tensor<2>, splits: bool| {
            let leaf = rows.clone().autodiff().require_grad();
            let output = forward(leaf.clone());
            let root = (output.clone() * upstream.clone().autodiff()).sum();
            let (gradients, deferred) = match splits {
                true => collect(std::iter::empty().collect(), || root.backward()),
                false => (root.backward(), Vec::new()),
            };
            assert_eq!(deferred.len(), usize::from(splits));
            let to_table = match layer.weight.val().grad(&gradients) {
                Some(found) => found,
                None => {
                    let mut sum = Sum::new(GradientsParams::new(), None);
                    deferred.into_iter().for_each(|deferred| deferred.add_to(&mut sum));
                    sum.gradients.remove::<2>(layer.weight.id).unwrap()
                }
            };
            [output.inner(), leaf.grad(&gradients).unwrap(), to_table]
        };
        let burns = run(&|rows| rows.matmul(layer.weight.val().transpose()), false);
        for splits in [false, true] {
            for (found, expected) in run(&|rows| layer.project(rows), splits).into_iter().zip(burns.clone()) {
                assert!((found - expected).abs().max().into_scalar::<f32>() < 1e-5);
            }
        }
    }
}
