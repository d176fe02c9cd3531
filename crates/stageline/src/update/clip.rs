//! Gradient clipping: by the global norm (the norm of all gradients of all stages), or by value.

use burn::module::Module;
use burn::optim::GradientsParams;

use stageline_nn::params::visit_floats;

/// The method of gradient clipping: by the global norm, or element by element. Gradients are clipped once per step,
/// after they are summed over all micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Scales all gradients down so that their global norm (the Euclidean norm of all gradients of all stages) is at
    /// most `max`, the value of this variant (Pascanu et al., 2013,
    /// [arXiv:1211.5063](https://arxiv.org/abs/1211.5063)). Every gradient is multiplied by `max / (norm + 1e-6)` if
    /// that coefficient is below 1, as PyTorch's `clip_grad_norm_` does.
    GlobalNorm(f64),
    /// Clamps every element of every gradient to `[-max, max]`, where `max` is the value of this variant, as PyTorch's
    /// `clip_grad_value_` does.
    Value(f64),
}

impl Clip {
    /// Returns the clipping bound: the maximum global norm, or the maximum magnitude of an element.
    pub(crate) fn bound(self) -> f64 {
        let (Self::GlobalNorm(bound) | Self::Value(bound)) = self;
        bound
    }

    /// Returns the clipping operation for a step whose gradients have the global norm `norm` (over all stages) before
    /// clipping.
    pub(crate) fn scaling(self, norm: f64) -> Scaling {
        match self {
            Self::GlobalNorm(max) if norm + EPSILON > max => Scaling::By(max / (norm + EPSILON)),
            Self::GlobalNorm(_) => Scaling::Keep,
            Self::Value(max) => Scaling::Within(max),
        }
    }
}

/// The small constant that gradient clipping adds to the global norm to avoid a division by 0, as in PyTorch.
const EPSILON: f64 = 1e-6;

/// The clipping of a step's gradients, which is the same in all stages: none, scaling by a coefficient, or clamping
/// element by element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    /// Leaves the gradients unchanged, because they are within the clipping bound or clipping is off.
    Keep,
    /// Multiplies every gradient element by this coefficient.
    By(f64),
    /// Clamps every gradient element to `[-max, max]`, where `max` is the value of this variant.
    Within(f64),
}

impl Scaling {
    pub(crate) fn apply<M: Module>(self, module: &M, mut gradients: GradientsParams) -> GradientsParams {
        if self == Self::Keep {
            return gradients;
        }
        let mut scaled = GradientsParams::new();
        visit_floats(module, |param| {
            // A parameter that a module uses twice has only one gradient, so the second visit finds nothing.
            let Some(gradient) = param.take_gradient(&mut gradients) else { return };
            let gradient = gradient.map(|gradient| match self {
                Self::Keep => gradient,
                Self::By(factor) => gradient.mul_scalar(factor),
                Self::Within(bound) => gradient.clamp(-bound, bound),
            });
            param.put_gradient(&mut scaled, gradient);
        });
        scaled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gradients_above_the_maximum_norm_are_scaled() {
        assert_eq!(Clip::GlobalNorm(1.0).scaling(0.5), Scaling::Keep);
        assert_eq!(Clip::GlobalNorm(1.0).scaling(0.0), Scaling::Keep);
        assert_eq!(Clip::GlobalNorm(1.0).scaling(4.0 - EPSILON), Scaling::By(0.25));
        assert_eq!(Clip::Value(2.0).scaling(0.5), Scaling::Within(2.0));
    }
}
