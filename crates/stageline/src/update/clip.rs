//! Gradient clipping: by the global norm (the norm of all gradients of all stages), or by value.

use burn::module::Module;
use burn::optim::GradientsParams;

use stageline_nn::params::visit_floats;

/// The kind of gradient clipping: by the norm of all gradients together, or element by element. Gradients are clipped
/// once per step, after they are summed over all micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Gradient clipping that limits the global norm (the Euclidean norm of all gradients of all stages) to this
    /// maximum `max` (Pascanu et al., 2013, [arXiv:1211.5063](https://arxiv.org/abs/1211.5063)). Every gradient is
    /// multiplied by `max / (norm + 1e-6)` if that factor is below 1, as PyTorch's `clip_grad_norm_` does.
    GlobalNorm(f64),
    /// Gradient clipping that clamps every element of every gradient to the range from minus the given value to the
    /// given value.
    Value(f64),
}

impl Clip {
    /// Returns the bound of the gradient clipping: the largest global norm, or the largest magnitude of an element.
    pub(crate) fn bound(self) -> f64 {
        let (Self::GlobalNorm(bound) | Self::Value(bound)) = self;
        bound
    }

    /// Returns how to clip the gradients of a step. `norm` is their global norm before clipping: the Euclidean norm of
    /// all gradients of all stages.
    pub(crate) fn scaling(self, norm: f64) -> Scaling {
        match self {
            Self::GlobalNorm(max) if norm + EPSILON > max => Scaling::By(max / (norm + EPSILON)),
            Self::GlobalNorm(_) => Scaling::Keep,
            Self::Value(max) => Scaling::Within(max),
        }
    }
}

/// The number that gradient clipping adds to the global norm, as PyTorch does, to avoid a division by 0.
const EPSILON: f64 = 1e-6;

/// The operation that clips the gradients of a step: none, a multiplication by a factor, or a clamp of every element.
/// It is the same for all stages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    /// Clipping changes nothing: the gradients are within the bound, or clipping is off.
    Keep,
    /// Clipping multiplies every element of the gradients by this factor.
    By(f64),
    /// Clipping clamps every element of the gradients to the range from minus this value to this value.
    Within(f64),
}

impl Scaling {
    pub(crate) fn apply<M: Module>(self, module: &M, mut gradients: GradientsParams) -> GradientsParams {
        if self == Self::Keep {
            return gradients;
        }
        let mut scaled = GradientsParams::new();
        visit_floats(module, |param| {
            // The gradient of a parameter that a module uses twice exists once, so the second visit finds nothing.
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
