//! Batch normalisation whose running statistics do not know of micro-batches.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId, RunningState};
use burn::nn::BatchNorm;
use burn::tensor::module::batch_norm_train;
use burn::tensor::{FloatDType, Tensor, TensorData};

use crate::nn::autograd::recompute::is_computed_again;
use crate::nn::forward::after_step::after_step;
use crate::nn::forward::samples::Samples;

/// What burn calls the struct of a batch norm.
pub(crate) const BATCH_NORM: &str = "Struct:BatchNorm";

/// burn's [`BatchNorm`], with running statistics that are updated once a step, from all its micro-batches together:
/// they are those of one pass over the whole batch. burn's own are updated at every micro-batch, so that they follow M.
///
/// What still differs from one pass over the whole batch: each micro-batch is *normalised* by its own mean and variance
/// (Ioffe and Szegedy, 2015, [arXiv:1502.03167](https://arxiv.org/abs/1502.03167)), because it must be, before the
/// others have come. So a second one of these, behind the first, sees other inputs than it would in one pass, and its
/// statistics agree only approximately.
///
/// As burn's, it keeps the biased variance. In an evaluation, and outside the steps of a pipeline, it is burn's.
#[derive(Module, Debug)]
pub struct AccumulatedBatchNorm {
    norm: BatchNorm,
}

thread_local! {
    /// Of each layer on this thread, by its scale's id, so that the copies that a stage computes with have the same;
    /// and by the step, because the next one may have begun.
    static PENDING: RefCell<HashMap<(ParamId, usize), Pending>> = RefCell::default();
}

/// What the micro-batches of a step have had so far, by their first sample and by how often the layer has seen them, so
/// that they are merged in one order.
type Pending = BTreeMap<(usize, usize), Moments>;

/// What is to be done when the step has stepped. Dropped instead, where it is skipped, it leaves nothing for the next.
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
        // A thread that ends has nothing left to forget.
        let _ = PENDING.try_with(|pending| pending.borrow_mut().remove(&self.key()));
    }
}

/// Of every channel.
#[derive(Debug)]
struct Moments {
    /// How many values.
    count: usize,
    mean: Tensor<1>,
    /// Biased.
    variance: Tensor<1>,
}

impl From<BatchNorm> for AccumulatedBatchNorm {
    fn from(norm: BatchNorm) -> Self {
        Self { norm }
    }
}

impl AccumulatedBatchNorm {
    /// burn's layer, with what it has learned.
    pub fn into_inner(self) -> BatchNorm {
        self.norm
    }

    /// Applies it to `[rows, channels, ...]`. It computes in the precision of its parameters, whatever that of the
    /// input is.
    ///
    /// # Panics
    /// If the second dimension is not the number of channels.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (given, own) = (FloatDType::from(input.dtype()), FloatDType::from(self.norm.gamma.val().dtype()));
        self.forward_full(input.cast(own)).cast(given)
    }

    fn forward_full<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let training = input.device().is_autodiff() && self.norm.training.is_enabled();
        let Some(samples) = Samples::current().filter(|_| training) else { return self.norm.forward(input) };
        let count = input.shape().num_elements() / input.dims()[1];
        let result = batch_norm_train(input, self.norm.gamma.val(), self.norm.beta.val(), self.norm.epsilon);
        let moments = Moments { count, mean: result.mean.inner(), variance: result.variance.inner() };
        if !is_computed_again() && self.add(samples, moments) {
            let update = Update { norm: self.norm.clone(), step: samples.step };
            after_step(move || update.apply());
        }
        result.output
    }

    /// Notes a micro-batch; whether it is the first of its step.
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
    /// Moves the running statistics towards those of the whole step.
    fn apply(&self) {
        let norm = &self.norm;
        let moments = PENDING.with_borrow_mut(|pending| pending.remove(&self.key())).unwrap_or_default();
        let channels = norm.gamma.dims()[0];
        let Some((mean, variance)) = merged(moments.into_values(), channels) else { return };
        let towards = |state: &RunningState<Tensor<1>>, target: Vec<f64>| {
            let old = state.value_sync();
            let moved = values(old.clone()).into_iter().zip(target);
            let moved = moved.map(|(old, new)| (old * (1.0 - norm.momentum) + new * norm.momentum) as f32);
            let moved = TensorData::new(moved.collect::<Vec<_>>(), [channels]);
            state.update(Tensor::from_data(moved, &old.device()));
            state.value_sync(); // or other threads would read what was there before
        };
        towards(&norm.running_mean, mean);
        towards(&norm.running_var, variance);
    }
}

/// The mean and the biased variance of all values together (Chan et al., 1979, *Updating formulae and a pairwise
/// algorithm for computing sample variances*); `None` of no values.
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

/// A batch normalisation in a module.
pub(crate) struct Found {
    pub(crate) path: String,
    /// Whether it is one of burn's that is not in one of ours.
    pub(crate) plain: bool,
}

/// All batch normalisations of a module.
pub(crate) fn batch_norms<M: Module>(module: &M) -> Vec<Found> {
    let mut search = Search::default();
    module.visit(&mut search);
    search.found
}

/// The names of fields and structs around a parameter.
#[derive(Default)]
struct Search {
    path: Vec<String>,
    containers: Vec<String>,
    found: Vec<Found>,
}

impl ModuleVisitor for Search {
    fn enter_module(&mut self, name: &str, container: &str) {
        let ours = self.containers.last().is_some_and(|outer| outer == "Struct:AccumulatedBatchNorm");
        // Its fields are entered one by one.
        let path = self.path.join(".");
        if container == BATCH_NORM && self.found.last().is_none_or(|last| last.path != path) {
            self.found.push(Found { path, plain: !ours });
        }
        self.path.push(name.to_owned());
        self.containers.push(container.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::BatchNormConfig;
    use burn::tensor::Device;

    #[test]
    fn plain_ones_are_found_and_ours_are_not() {
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
    fn moments_of_parts_are_those_of_the_whole() {
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
}
