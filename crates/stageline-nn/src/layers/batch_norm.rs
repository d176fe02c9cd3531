//! [`AccumulatedBatchNorm`]: batch normalisation whose running statistics do not depend on the number of micro-batches.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId, RunningState};
use burn::nn::BatchNorm;
use burn::tensor::module::batch_norm_train;
use burn::tensor::{FloatDType, Tensor, TensorData};

use crate::forward::after_step::after_step;
use crate::forward::recomputation::is_recomputation;
use crate::forward::samples::Samples;

/// Struct name by which a module visitor recognises burn's `BatchNorm` layer.
const BATCH_NORM: &str = "Struct:BatchNorm";

/// A batch normalisation like burn's [`BatchNorm`], but its running statistics are updated once per step, from all
/// micro-batches of the step together.
///
/// The running statistics equal those of one forward pass over the whole batch. burn's own layer updates its statistics
/// at every micro-batch, so that they depend on the number of micro-batches.
///
/// One difference from a forward pass over the whole batch remains: each micro-batch is *normalised* by its own mean
/// and variance (Ioffe and Szegedy, 2015, [arXiv:1502.03167](https://arxiv.org/abs/1502.03167)), because the later
/// micro-batches have not arrived yet. So the inputs of a second batch norm differ from those in one pass, and its
/// statistics agree only approximately.
///
/// Like burn's layer, this layer keeps the biased variance. In evaluations and outside training steps it behaves like
/// burn's layer.
#[derive(Module, Debug)]
pub struct AccumulatedBatchNorm {
    norm: BatchNorm,
}

thread_local! {
    /// Means and variances of the micro-batches that this thread has normalised in each batch norm and step, and not
    /// yet merged into the running statistics. A key is the id of the layer's scale, which all copies of the layer
    /// share, and the step's index.
    static PENDING: RefCell<HashMap<(ParamId, usize), Pending>> = RefCell::default();
}

/// Mean and variance of every micro-batch of a step in one batch norm, merged in the order of the keys. A key is the
/// index of the micro-batch's first sample in the batch, and the number of earlier calls with this micro-batch.
type Pending = BTreeMap<(usize, usize), Moments>;

/// A pending update of a batch norm's running statistics, which runs after the optimizer step. Dropping it, if the step
/// is skipped, also removes the step's recorded means and variances.
struct Update {
    norm: BatchNorm,
    step: usize,
}

impl Update {
    fn key(&self) -> (ParamId, usize) {
        (self.norm.gamma.id, self.step)
    }
}

impl Drop for Update {
    fn drop(&mut self) {
        // The thread-local map may already be gone if the thread is ending.
        let _ = PENDING.try_with(|pending| pending.borrow_mut().remove(&self.key()));
    }
}

/// Mean and variance of each channel of a batch norm's input in one micro-batch, each `[channels]`.
#[derive(Debug)]
struct Moments {
    /// Number of values per channel in the micro-batch.
    count: usize,
    mean: Tensor<1>,
    /// Biased variance of each channel: the sum of squared deviations divided by the number of values.
    variance: Tensor<1>,
}

impl From<BatchNorm> for AccumulatedBatchNorm {
    fn from(norm: BatchNorm) -> Self {
        Self { norm }
    }
}

impl AccumulatedBatchNorm {
    /// Returns burn's own batch norm with the parameters and running statistics of this batch norm.
    pub fn into_inner(self) -> BatchNorm {
        self.norm
    }

    /// Normalises an input `[rows, channels, ...]` and returns a tensor of the same shape and dtype. The layer computes
    /// in the dtype of its parameters, whatever the dtype of the input.
    ///
    /// # Panics
    /// Panics if the second dimension is not the number of channels.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (given, own) = (FloatDType::from(input.dtype()), FloatDType::from(self.norm.gamma.val().dtype()));
        self.forward_full(input.cast(own)).cast(given)
    }

    /// Normalises an input that has the dtype of the layer's parameters, and returns the output. In the forward pass of
    /// a training step, the layer also records the input's mean and variance.
    fn forward_full<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let training = input.device().is_autodiff() && self.norm.training.is_enabled();
        let samples = Samples::current().filter(|_| training);
        if samples.is_none() && !(training && is_recomputation()) {
            return self.norm.forward(input);
        }
        let count = input.shape().num_elements() / input.dims()[1];
        let result = batch_norm_train(input, self.norm.gamma.val(), self.norm.beta.val(), self.norm.epsilon);
        // A recomputation outside a training step: burn's layer already updated the statistics in the first forward
        // pass.
        let Some(samples) = samples else { return result.output };
        let moments = Moments { count, mean: result.mean.inner(), variance: result.variance.inner() };
        if !is_recomputation() && self.add(samples, moments) {
            let update = Update { norm: self.norm.clone(), step: samples.step };
            after_step(move || update.apply());
        }
        result.output
    }

    /// Records a micro-batch's mean and variance for the step's update of the running statistics. Returns true for the
    /// step's first micro-batch on this thread, for which the caller must register this update; later micro-batches
    /// share it.
    fn add(&self, samples: Samples, moments: Moments) -> bool {
        PENDING.with_borrow_mut(|pending| {
            let pending = pending.entry((self.norm.gamma.id, samples.step)).or_default();
            let seen = pending.range((samples.first, 0)..=(samples.first, usize::MAX)).count();
            pending.insert((samples.first, seen), moments);
            pending.len() == 1
        })
    }
}

impl Update {
    /// Moves the running statistics towards the mean and variance of the step's whole batch, by the layer's momentum.
    fn apply(&self) {
        let norm = &self.norm;
        let moments = PENDING.with_borrow_mut(|pending| pending.remove(&self.key())).unwrap_or_default();
        let channels = norm.gamma.dims()[0];
        let Some((mean, variance)) = merged(moments.into_values(), channels) else { return };
        let towards = |state: &RunningState<Tensor<1>>, target: Vec<f64>| {
            let old = state.value_sync();
            let moved = values(old.clone()).into_iter().zip(target);
            let moved = moved.map(|(old, new)| old * (1.0 - norm.momentum) + new * norm.momentum);
            let moved = TensorData::new(moved.collect::<Vec<_>>(), [channels]);
            state.update(Tensor::from_data(moved, (&old.device(), old.dtype())));
            state.value_sync(); // Without this, other threads would read the previous value.
        };
        towards(&norm.running_mean, mean);
        towards(&norm.running_var, variance);
    }
}

/// Merges the means and variances of micro-batches: returns the mean and the biased variance of each channel over all
/// of them, in f64. Returns `None` if there are no values. The method is from Chan et al., 1979, *Updating formulae and
/// a pairwise algorithm for computing sample variances*.
fn merged(moments: impl Iterator<Item = Moments>, channels: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    let (mut count, mut means, mut squares) = (0.0, vec![0.0; channels], vec![0.0; channels]);
    for Moments { count: more, mean, variance } in moments.filter(|moments| moments.count > 0) {
        let more = more as f64;
        let total = count + more;
        let new = values(mean).into_iter().zip(values(variance));
        for ((mean, squares), (new_mean, new_variance)) in means.iter_mut().zip(&mut squares).zip(new) {
            let distance = new_mean - *mean;
            *mean += distance * more / total;
            *squares += new_variance * more + distance * distance * count * more / total;
        }
        count = total;
    }
    (count > 0.0).then(|| (means, squares.into_iter().map(|squares| squares / count).collect()))
}

fn values(tensor: Tensor<1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// A batch norm that [`batch_norms`] found in a module: its path, whether it is burn's own layer, and its tensors.
pub struct FoundBatchNorm {
    /// The path of the batch norm in its module, such as `0.norm`.
    pub path: String,
    /// Whether the batch norm is burn's own, which updates its running statistics in every micro-batch. False inside an
    /// [`AccumulatedBatchNorm`], which updates them once per step.
    pub plain: bool,
    /// The ids of the batch norm's float tensors: its scale, its shift and its running statistics.
    pub tensors: Vec<ParamId>,
}

/// Returns all batch norms of a module in the order of the module's fields: burn's own ones, and those inside an
/// [`AccumulatedBatchNorm`].
pub fn batch_norms<M: Module>(module: &M) -> Vec<FoundBatchNorm> {
    let mut search = Search::default();
    module.visit(&mut search);
    search.found
}

/// A visitor that finds the batch norms of a module by the names of the structs that it enters.
#[derive(Default)]
struct Search {
    /// Names of the fields from the module's root to the visitor's current position, which form a batch norm's path.
    path: Vec<String>,
    /// Names of the structs around the visitor's current position, outermost first, by which a batch norm is
    /// recognised.
    containers: Vec<String>,
    found: Vec<FoundBatchNorm>,
}

impl ModuleVisitor for Search {
    fn enter_module(&mut self, name: &str, container: &str) {
        let ours = self.containers.last().is_some_and(|outer| outer == "Struct:AccumulatedBatchNorm");
        // burn enters every field of a batch norm separately, so the same path may come several times.
        let path = self.path.join(".");
        if container == BATCH_NORM && self.found.last().is_none_or(|last| last.path != path) {
            self.found.push(FoundBatchNorm { path, plain: !ours, tensors: Vec::new() });
        }
        self.path.push(name.to_owned());
        self.containers.push(container.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let inside = self.containers.iter().any(|container| container == BATCH_NORM);
        if let Some(last) = self.found.last_mut().filter(|_| inside) {
            last.tensors.push(param.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::{BatchNormConfig, LinearConfig};
    use burn::tensor::{DType, Device};

    use crate::forward::recomputation::as_recomputation;
    use crate::params::visit::describe;

    #[test]
    fn batch_norms_are_found_and_burns_own_are_plain() {
        let plain = || BatchNormConfig::new(3).init(&Device::flex());
        let ours = || AccumulatedBatchNorm::from(plain());
        fn found<M: Module>(module: &M) -> Vec<(String, bool)> {
            batch_norms(module).into_iter().map(|found| (found.path, found.plain)).collect()
        }
        assert_eq!(found(&plain()), [(String::new(), true)]);
        assert_eq!(found(&vec![plain(), plain()]), [("0".to_owned(), true), ("1".to_owned(), true)]);
        assert_eq!(found(&ours()), [("norm".to_owned(), false)]);
        assert_eq!(found(&(ours(), vec![plain()])), [("0.norm".to_owned(), false), ("1.0".to_owned(), true)]);
    }

    #[test]
    fn the_tensors_of_a_batch_norm_are_found_and_no_others() {
        let (device, linear) = (Device::flex(), LinearConfig::new(3, 3));
        let module = (linear.init(&device), BatchNormConfig::new(3).init(&device), linear.init(&device));
        let inside = describe(&module).into_iter().filter(|found| found.path.starts_with("1."));
        let inside: Vec<_> = inside.map(|found| found.id).collect();
        assert_eq!((inside.len(), &batch_norms(&module)[0].tensors), (4, &inside));
    }

    #[test]
    fn merged_moments_of_parts_equal_those_of_the_whole() {
        let whole = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0];
        let moments = |values: &[f64]| {
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count)
        };
        let parts = [&whole[..1], &whole[1..5], &whole[5..]].map(|part| {
            let (mean, variance) = moments(part);
            let tensor = |value: f64| Tensor::<1>::from_floats([value as f32], &Device::flex());
            Moments { count: part.len(), mean: tensor(mean), variance: tensor(variance) }
        });
        let (mean, variance) = merged(parts.into_iter(), 1).unwrap();
        let (expected_mean, expected_variance) = moments(&whole);
        assert!((mean[0] - expected_mean).abs() < 1e-6 && (variance[0] - expected_variance).abs() < 1e-6);
    }

    #[test]
    fn a_recomputation_outside_a_pipeline_does_not_move_the_statistics() {
        let device = Device::flex().autodiff();
        let norm = AccumulatedBatchNorm::from(BatchNormConfig::new(2).init(&device));
        let input = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 5.0]], &device);
        let mean = |norm: &AccumulatedBatchNorm| norm.norm.running_mean.value_sync().into_data();
        let before = mean(&norm);
        let recomputed = as_recomputation(|| norm.forward(input.clone()));
        assert_eq!(mean(&norm), before);
        let output = norm.forward(input);
        assert_ne!(mean(&norm), before);
        assert_eq!(recomputed.into_data(), output.into_data());
    }

    #[test]
    fn running_statistics_keep_their_type() {
        let of = |number: f64| Tensor::<1>::from_data([number], (&Device::flex(), DType::F64));
        let mut norm = BatchNormConfig::new(1).with_momentum(0.5).init(&Device::flex());
        (norm.running_mean, norm.running_var) = (RunningState::new(of(0.1)), RunningState::new(of(0.3)));
        let update = Update { norm: norm.clone(), step: 0 };
        let moments = Moments { count: 2, mean: of(0.2), variance: of(0.4) };
        PENDING.with_borrow_mut(|pending| pending.entry(update.key()).or_default().insert((0, 0), moments));
        update.apply();
        for (state, exact) in [(&norm.running_mean, 0.15), (&norm.running_var, 0.35)] {
            let found = state.value_sync();
            assert_eq!(found.dtype(), DType::F64);
            assert!((found.into_scalar::<f64>() - exact).abs() < 1e-12);
        }
    }
}
