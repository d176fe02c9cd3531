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
    /// Sum of the micro-batches' gradients so far, for each parameter that has had a gradient.
    pub gradients: GradientsParams,
    /// The dtype in which gradients are summed: each gradient is cast to it before it is added. If `None`, gradients
    /// are added in their own dtype.
    pub dtype: Option<FloatDType>,
    /// Sum of the squared norms of all gradients added so far, over parameters and micro-batches; `None` if squared
    /// norms are not measured. The list is empty before the first gradient, and then contains a single tensor, the sum,
    /// of shape `[1]` on the gradients' device.
    pub squared_norms: Option<Vec<Tensor<1>>>,
}

impl Sum {
    /// Creates a running sum of gradients that starts from `gradients`. Further gradients are cast to `dtype` before
    /// they are added, or added in their own dtype if it is `None`.
    pub fn new(gradients: GradientsParams, dtype: Option<FloatDType>) -> Self {
        Self { gradients, dtype, squared_norms: None }
    }

    /// Adds a gradient of the parameter `id` to the parameter's running sum. The sum is updated in place if nothing
    /// else uses its tensor.
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

    /// Adds a gradient of the parameter `id` that the closure `added` computes, so that a layer can accumulate the
    /// gradient in place. `added` takes the running sum of the parameter's earlier gradients and returns `sum +
    /// gradient`, with the same bits as [`add`](Self::add). If it takes `None`, it returns the new gradient alone:
    /// there is no earlier gradient, or the gradients' norms are measured, which needs each gradient by itself.
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
    /// `gradients` are skipped. Returns the size of the added gradients in bytes, in their dtypes before a cast.
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
