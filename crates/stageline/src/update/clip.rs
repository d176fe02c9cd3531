//! Gradients made smaller before the optimizer sees them.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// How gradients are clipped, once a step, after they are added up over all micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// All gradients of all stages together, to this global norm (Pascanu et al., 2013,
    /// [arXiv:1211.5063](https://arxiv.org/abs/1211.5063)): each is multiplied by `max / (norm + 1e-6)` where that is
    /// below 1, as PyTorch's `clip_grad_norm_` does.
    GlobalNorm(f64),
    /// Every element by itself, to between minus this value and this value.
    Value(f64),
}

impl Clip {
    /// The greatest norm or value.
    pub(crate) fn bound(self) -> f64 {
        let (Self::GlobalNorm(bound) | Self::Value(bound)) = self;
        bound
    }

    /// What becomes of gradients of this global norm.
    pub(crate) fn scaling(self, norm: f64) -> Scaling {
        match self {
            Self::GlobalNorm(max) if norm + EPSILON > max => Scaling::By(max / (norm + EPSILON)),
            Self::GlobalNorm(_) => Scaling::Keep,
            Self::Value(max) => Scaling::Within(max),
        }
    }
}

/// PyTorch's guard against a norm of 0.
const EPSILON: f64 = 1e-6;

/// What is done to all gradients of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    Keep,
    /// Multiplied by this.
    By(f64),
    /// Clamped to between minus this and this.
    Within(f64),
}

impl Scaling {
    pub(crate) fn apply<M: Module>(self, module: &M, gradients: GradientsParams) -> GradientsParams {
        if self == Self::Keep {
            return gradients;
        }
        let mut apply = Apply { scaling: self, gradients, scaled: GradientsParams::new() };
        module.visit(&mut apply);
        apply.scaled
    }
}

struct Apply {
    scaling: Scaling,
    gradients: GradientsParams,
    scaled: GradientsParams,
}

impl ModuleVisitor for Apply {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A parameter that a module uses twice is there once.
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
        let scaled = match self.scaling {
            Scaling::Keep => gradient,
            Scaling::By(factor) => gradient.mul_scalar(factor),
            Scaling::Within(bound) => gradient.clamp(-bound, bound),
        };
        self.scaled.register(param.id, scaled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_large_is_scaled() {
        assert_eq!(Clip::GlobalNorm(1.0).scaling(0.5), Scaling::Keep);
        assert_eq!(Clip::GlobalNorm(1.0).scaling(0.0), Scaling::Keep);
        assert_eq!(Clip::GlobalNorm(1.0).scaling(4.0 - EPSILON), Scaling::By(0.25));
        assert_eq!(Clip::Value(2.0).scaling(0.5), Scaling::Within(2.0));
    }
}
