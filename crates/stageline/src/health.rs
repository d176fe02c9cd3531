//! How the gradients of each parameter are doing.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// What one step did to one parameter. Norms are Euclidean, over all its elements.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParameterHealth {
    /// The stage that trains it.
    pub stage: usize,
    /// Where it is in the stage's module, such as `0.linear.weight`.
    pub path: String,
    /// The norm of its gradient, added up over the micro-batches and not yet clipped.
    pub gradient_norm: f64,
    /// The norm of the parameter after the step.
    pub parameter_norm: f64,
    /// The norm of what the step added to it.
    pub update_norm: f64,
    /// The second moment of its gradient, as its optimizer keeps it, averaged over the elements: of Adam, AdamW, Lamb, Adan and
    /// RMSProp. Where it grows while the loss does not fall, gradients are noise.
    pub second_moment: Option<f64>,
    /// The share of gradient elements that are exactly 0.
    pub zeros: f64,
    /// The sizes of the gradient's elements.
    pub histogram: Histogram,
}

impl ParameterHealth {
    /// The norm of the update as a share of the norm of the parameter; about 1e-3 is usual.
    pub fn update_ratio(&self) -> f64 {
        if self.parameter_norm > 0.0 { self.update_norm / self.parameter_norm } else { 0.0 }
    }
}

/// Numbers counted by size, in powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; Self::BINS],
}

impl Histogram {
    /// How many bins there are.
    pub const BINS: usize = 40;

    /// The lower end of the second bin, as a power of two; the first has all that is smaller, the last all that is larger.
    const LOWEST: i32 = -32;

    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut counts = [0; Self::BINS];
        for value in values.filter(|value| *value != 0.0) {
            let bin = value.abs().log2().floor() - f64::from(Self::LOWEST) + 1.0;
            counts[bin.clamp(0.0, (Self::BINS - 1) as f64) as usize] += 1;
        }
        Self { counts }
    }

    /// The bins: the size from which on each counts, and how many numbers are in it. Zeros are in none.
    pub fn bins(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let from = |bin: usize| if bin == 0 { 0.0 } else { 2.0_f64.powi(Self::LOWEST + bin as i32 - 1) };
        self.counts.iter().enumerate().map(move |(bin, count)| (from(bin), *count))
    }
}

/// A stage's parameters before its step.
pub(crate) struct Examination(HashMap<ParamId, Before>);

struct Before {
    path: String,
    /// In the order of the module.
    index: usize,
    value: Vec<f32>,
    gradient: Vec<f32>,
}

impl Examination {
    /// Notes the parameters that have gradients.
    pub(crate) fn before<M: Module>(module: &M, gradients: &GradientsParams) -> Self {
        let mut note = Note { path: Vec::new(), gradients, noted: HashMap::new() };
        module.visit(&mut note);
        Self(note.noted)
    }

    /// Compares with the parameters and their second moments after the step.
    pub(crate) fn after<M: Module>(
        self,
        stage: usize,
        module: &M,
        second_moments: &HashMap<ParamId, f64>,
    ) -> Vec<ParameterHealth> {
        let mut compare = Compare { stage, second_moments, before: self.0, found: Vec::new() };
        module.visit(&mut compare);
        compare.found.sort_by_key(|(index, _)| *index);
        compare.found.into_iter().map(|(_, health)| health).collect()
    }
}

struct Note<'a> {
    path: Vec<String>,
    gradients: &'a GradientsParams,
    noted: HashMap<ParamId, Before>,
}

impl ModuleVisitor for Note<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else { return };
        let (index, path) = (self.noted.len(), self.path.join("."));
        let (value, gradient) = (values(param.val()), values(gradient));
        self.noted.entry(param.id).or_insert(Before { path, index, value, gradient });
    }
}

struct Compare<'a> {
    stage: usize,
    second_moments: &'a HashMap<ParamId, f64>,
    before: HashMap<ParamId, Before>,
    found: Vec<(usize, ParameterHealth)>,
}

impl ModuleVisitor for Compare<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(Before { path, index, value, gradient }) = self.before.remove(&param.id) else { return };
        let after = values(param.val());
        let elements = || gradient.iter().copied().map(f64::from);
        let health = ParameterHealth {
            stage: self.stage,
            path,
            gradient_norm: norm(elements()),
            parameter_norm: norm(after.iter().copied().map(f64::from)),
            update_norm: norm(after.iter().zip(&value).map(|(after, before)| f64::from(*after) - f64::from(*before))),
            second_moment: self.second_moments.get(&param.id).copied(),
            zeros: elements().filter(|element| *element == 0.0).count() as f64 / gradient.len().max(1) as f64,
            histogram: Histogram::of(elements()),
        };
        self.found.push((index, health));
    }
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.inner().into_data();
    data.as_slice::<f32>().map_or_else(|_| data.iter::<f32>().collect(), <[f32]>::to_vec)
}

fn norm(elements: impl Iterator<Item = f64>) -> f64 {
    elements.map(|element| element * element).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_in_powers_of_two() {
        let histogram = Histogram::of([0.0, 1.0, -1.5, 2.0, 1e-30, 1e30].into_iter());
        let counted: Vec<_> = histogram.bins().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(0.0, 1), (1.0, 2), (2.0, 1), (2.0_f64.powi(6), 1)]);
    }
}
