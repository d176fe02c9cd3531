//! The factor that keeps small gradients within the range of f16.

use stageline_checkpoint::LossScale as State;

use crate::update::precision::Precision;

/// What the loss is multiplied by before its backward, after it was divided by the weight of the step; gradients are divided
/// by it once they are added up (Micikevicius et al., 2018, [arXiv:1710.03740](https://arxiv.org/abs/1710.03740)). Powers of
/// two change no bit of a gradient that neither overflows nor underflows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// Always the same.
    Fixed(f64),
    /// As large as gradients allow.
    Dynamic(DynamicLossScale),
}

/// A scale that falls when gradients overflow, and rises after many steps in which they did not; the defaults are those of
/// PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicLossScale {
    /// The first scale; 65536.
    pub initial: f64,
    /// What a scale is multiplied by when it rises; 2.
    pub growth: f64,
    /// What it is multiplied by when it falls; 0.5.
    pub back_off: f64,
    /// After how many steps without an overflow it rises; 2000.
    pub growth_interval: usize,
    /// Below this it does not fall: a step that overflows here is not finite for another reason; 1.
    pub lowest: f64,
}

impl Default for DynamicLossScale {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2.0, back_off: 0.5, growth_interval: 2000, lowest: 1.0 }
    }
}

impl LossScale {
    /// What a precision needs.
    pub(crate) fn of(precision: Precision) -> Self {
        match precision {
            Precision::Full | Precision::Bf16 => Self::Fixed(1.0),
            Precision::F16 => Self::Dynamic(DynamicLossScale::default()),
        }
    }

    /// Whether all its numbers can be.
    pub(crate) fn is_sound(self) -> bool {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        match self {
            Self::Fixed(scale) => positive(scale),
            Self::Dynamic(DynamicLossScale { initial, growth, back_off, growth_interval, lowest }) => {
                let moves = growth > 1.0 && growth.is_finite() && (0.0..1.0).contains(&back_off) && back_off > 0.0;
                positive(initial) && positive(lowest) && lowest <= initial && moves && growth_interval > 0
            }
        }
    }
}

/// The scale from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scaler {
    config: LossScale,
    scale: f64,
    /// Steps without an overflow since it last changed.
    calm: usize,
}

impl Scaler {
    pub(crate) fn new(config: LossScale) -> Self {
        let (LossScale::Fixed(scale) | LossScale::Dynamic(DynamicLossScale { initial: scale, .. })) = config;
        Self { config, scale, calm: 0 }
    }

    /// Where it was, if it moves.
    pub(crate) fn resumed(config: LossScale, state: Option<State>) -> Self {
        let fresh = Self::new(config);
        match (config, state) {
            (LossScale::Dynamic(_), Some(State { scale, good_steps })) => {
                Self { scale, calm: good_steps as usize, ..fresh }
            }
            _ => fresh,
        }
    }

    /// Where it is, if it moves.
    pub(crate) fn state(&self) -> Option<State> {
        let LossScale::Dynamic(_) = self.config else { return None };
        Some(State { scale: self.scale, good_steps: self.calm as u64 })
    }

    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// A step has stepped.
    pub(crate) fn stepped(&mut self) {
        let LossScale::Dynamic(DynamicLossScale { growth, growth_interval, .. }) = self.config else { return };
        self.calm = self.calm.saturating_add(1);
        if self.calm >= growth_interval {
            *self = Self { scale: self.scale * growth, calm: 0, ..*self };
        }
    }

    /// Gradients overflowed; whether a lower scale can help, which it then is.
    pub(crate) fn back_off(&mut self) -> bool {
        let LossScale::Dynamic(DynamicLossScale { back_off, lowest, .. }) = self.config else { return false };
        let can = self.scale > lowest;
        if can {
            *self = Self { scale: (self.scale * back_off).max(lowest), calm: 0, ..*self };
        }
        can
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_falls_at_once_and_rises_slowly() {
        let config = DynamicLossScale { initial: 8.0, growth_interval: 3, lowest: 2.0, ..DynamicLossScale::default() };
        let mut scaler = Scaler::new(LossScale::Dynamic(config));
        let mut scales = Vec::new();
        for overflows in [true, false, false, false, false, false, true, false, false, false, true, true] {
            if overflows {
                scaler.back_off();
            } else {
                scaler.stepped();
            }
            scales.push(scaler.scale());
        }
        assert_eq!(scales, [4.0, 4.0, 4.0, 8.0, 8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 4.0, 2.0]);
        assert!(!scaler.back_off(), "it cannot fall further");
        let mut fixed = Scaler::new(LossScale::Fixed(3.0));
        assert!(!fixed.back_off() && fixed.scale() == 3.0);
    }

    #[test]
    fn scales_that_cannot_be_are_refused() {
        let dynamic = DynamicLossScale::default();
        assert!(LossScale::Dynamic(dynamic).is_sound() && LossScale::Fixed(0.5).is_sound());
        for refused in [
            LossScale::Fixed(0.0),
            LossScale::Fixed(f64::NAN),
            LossScale::Dynamic(DynamicLossScale { growth: 1.0, ..dynamic }),
            LossScale::Dynamic(DynamicLossScale { back_off: 1.0, ..dynamic }),
            LossScale::Dynamic(DynamicLossScale { back_off: 0.0, ..dynamic }),
            LossScale::Dynamic(DynamicLossScale { growth_interval: 0, ..dynamic }),
            LossScale::Dynamic(DynamicLossScale { lowest: 1e9, ..dynamic }),
            LossScale::Dynamic(DynamicLossScale { initial: f64::INFINITY, ..dynamic }),
        ] {
            assert!(!refused.is_sound(), "{refused:?}");
        }
    }
}
