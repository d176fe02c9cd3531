//! [`Sum`]: the running sum of the gradients of a stage's parameters.

use burn::backend::tensor::FloatTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use crate::engine::Engine;
use crate::kernels::sum_of_squares;

/// A running sum of the gradients of a stage's parameters over the micro-batches of a step, kept separately for each
/// parameter.
pub struct Sum {
    /// The running sums of the gradients: one for each parameter that has had a gradient so far.
    pub gradients: GradientsParams,
    /// The float type of the sums: each gradient is cast to it before it is added. If `None`, gradients are added in
    /// their own type.
    pub dtype: Option<FloatDType>,
    /// The squared norms of all gradients that were added so far, summed up over all parameters and micro-batches;
    /// `None` if squared norms are not measured. The list is empty before the first gradient. Afterwards it holds one
    /// tensor: the sum, of shape `[1]`, on the gradients' device.
    pub squared_norms: Option<Vec<Tensor<1>>>,
}

impl Sum {
    /// Creates a running sum of gradients that starts from `gradients`. Further gradients are cast to the type `dtype`
    /// before they are added, or added in their own type if `dtype` is `None`.
    pub fn new(gradients: GradientsParams, dtype: Option<FloatDType>) -> Self {
        Self { gradients, dtype, squared_norms: None }
    }

    /// Adds one more gradient of the parameter `id` to the running sum of its gradients. The sum is changed in place if
    /// nothing else uses its tensor.
    pub fn add<const D: usize>(&mut self, id: ParamId, gradient: Tensor<D>) {
        let gradient = match self.dtype {
            Some(dtype) => gradient.cast(dtype),
            None => gradient,
        };
        if let Some(squared_norms) = &mut self.squared_norms {
            let squared_norm = sum_of_squares(gradient.clone());
            let sum = match squared_norms.pop() {
                Some(sum) => sum + squared_norm,
                None => squared_norm,
            };
            squared_norms.push(sum);
        }
        let sum = match self.gradients.remove::<D>(id) {
            Some(sum) => sum.add(gradient),
            None => gradient,
        };
        self.gradients.register(id, sum);
    }

    /// Adds one more gradient of the parameter `id`, which a layer has not computed yet, to the running sum of its
    /// gradients. `added` takes the sum of the parameter's earlier gradients, and returns it with the new gradient
    /// added. With `None` it returns the new gradient alone.
    ///
    /// The sum has the same bits as with [`add`](Self::add). The new gradient needs no memory if the layer adds it in
    /// place and its norm is not measured.
    pub(crate) fn add_by<B: Engine, const D: usize>(
        &mut self,
        id: ParamId,
        added: impl FnOnce(Option<FloatTensor<B>>) -> FloatTensor<B>,
    ) {
        let sum = if self.squared_norms.is_some() { None } else { self.gradients.remove::<D>(id) };
        match sum {
            Some(sum) => {
                let sum = B::plain(sum).expect("all gradients of a parameter are on its device and outside autodiff");
                self.gradients.register(id, B::of_plain::<D>(added(Some(sum))));
            }
            None => self.add(id, B::of_plain::<D>(added(None))),
        }
    }

    /// Adds the gradients of the parameters of `module` to the running sums. Parameters without a gradient in
    /// `gradients` are skipped. Returns the size of the added gradients in bytes, in the types that they had before a
    /// cast.
    pub fn add_all<M: Module>(&mut self, module: &M, gradients: GradientsParams) -> u64 {
        let mut adding = AddAll { sum: self, gradients, bytes: 0 };
        if !adding.gradients.is_empty() {
            module.visit(&mut adding);
        }
        adding.bytes
    }
}

struct AddAll<'a> {
    sum: &'a mut Sum,
    gradients: GradientsParams,
    bytes: u64,
}

impl ModuleVisitor for AddAll<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.bytes += (gradient.shape().num_elements() * gradient.dtype().size()) as u64;
            self.sum.add(param.id, gradient);
        }
    }
}
