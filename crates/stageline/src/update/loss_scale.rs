//! Loss scaling: the loss is multiplied by a factor before the backward pass, which keeps small gradients within the
//! range of f16.

use std::ops::RangeInclusive;

use stageline_checkpoint::LossScale as State;

use crate::update::precision::Precision;

/// The loss scale: a coefficient that multiplies each micro-batch's loss before the backward pass, so that small
/// gradients do not underflow (Micikevicius et al., 2018, [arXiv:1710.03740](https://arxiv.org/abs/1710.03740)). Before
/// that, the loss is divided by the step's total loss weight (usually its number of unmasked targets).
///
/// The summed gradients are divided by the same coefficient. A scale that is a power of two changes no bit of a
/// gradient that neither overflows nor underflows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// Keeps the loss scale at this value throughout the training run.
    Fixed(f64),
    /// Lowers the loss scale when gradients overflow, and raises it after many steps without an overflow, like
    /// PyTorch's `GradScaler`.
    Dynamic(DynamicLossScale),
}

/// The settings of a loss scale that falls when gradients overflow, and rises after many steps without an overflow. The
/// defaults are the values of PyTorch's `GradScaler`, which has no lowest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicLossScale {
    /// The loss scale of the first step. The default is 65536.
    pub initial: f64,
    /// The factor, above 1, that multiplies the loss scale after `growth_interval` steps without an overflow. The
    /// default is 2.
    pub growth: f64,
    /// The factor, above 0 and below 1, that multiplies the loss scale after a step with an overflow. The default is
    /// 0.5.
    pub back_off: f64,
    /// The number of consecutive training steps without an overflow before the loss scale rises. The default is 2000.
    pub growth_interval: usize,
    /// The smallest loss scale. The default is 1. If gradients still overflow at this scale, the loss scale is not the
    /// cause.
    pub lowest: f64,
}

impl Default for DynamicLossScale {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2.0, back_off: 0.5, growth_interval: 2000, lowest: 1.0 }
    }
}

impl DynamicLossScale {
    /// Returns the range of values that this loss scale can have: from its lowest value to the largest f32 value,
    /// because losses are scaled in f32.
    pub(crate) fn range(self) -> RangeInclusive<f64> {
        self.lowest..=f64::from(f32::MAX)
    }
}

impl LossScale {
    /// Returns the default loss scale for forward and backward passes in the given precision: dynamic for f16, and
    /// fixed at 1 for all others.
    pub(crate) fn of(precision: Precision) -> Self {
        match precision {
            Precision::Full | Precision::Bf16 => Self::Fixed(1.0),
            Precision::F16 => Self::Dynamic(DynamicLossScale::default()),
        }
    }

    /// Whether all settings of the loss scale are valid. A fixed scale must be positive, and within the range of normal
    /// f32 numbers, because losses are scaled in f32. A dynamic scale needs all of the following:
    ///
    /// - a `lowest` within that range,
    /// - an `initial` value from `lowest` to the largest f32 number,
    /// - a finite `growth` above 1,
    /// - a `back_off` between 0 and 1 (both excluded),
    /// - a `growth_interval` of at least 1.
    pub(crate) fn is_sound(self) -> bool {
        let positive = |value: f64| (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&value);
        match self {
            Self::Fixed(scale) => positive(scale),
            Self::Dynamic(config) => {
                let DynamicLossScale { initial, growth, back_off, growth_interval, lowest } = config;
                let moves = growth > 1.0 && growth.is_finite() && (0.0..1.0).contains(&back_off) && back_off > 0.0;
                positive(lowest) && config.range().contains(&initial) && moves && growth_interval > 0
            }
        }
    }
}

/// The current loss scale of a training run. A dynamic scale falls after a step with an overflow, and rises after many
/// steps without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scaler {
    config: LossScale,
    scale: f64,
    /// Number of consecutive training steps without an overflow, counted from the last overflow or the last increase of
    /// the loss scale.
    calm: usize,
}

impl Scaler {
    pub(crate) fn new(config: LossScale) -> Self {
        let (LossScale::Fixed(scale) | LossScale::Dynamic(DynamicLossScale { initial: scale, .. })) = config;
        Self { config, scale, calm: 0 }
    }

    /// Creates the loss scale of a resumed training run. A dynamic scale continues from `state`, its value in the
    /// checkpoint. Without that value, it starts as configured.
    pub(crate) fn resumed(config: LossScale, state: Option<State>) -> Self {
        let fresh = Self::new(config);
        match (config, state) {
            (LossScale::Dynamic(_), Some(State { scale, good_steps })) => {
                Self { scale, calm: good_steps as usize, ..fresh }
            }
            _ => fresh,
        }
    }

    /// Returns the current loss scale and its count of steps without an overflow, to be stored in a checkpoint. `None`
    /// if the scale is fixed.
    pub(crate) fn state(&self) -> Option<State> {
        let LossScale::Dynamic(_) = self.config else { return None };
        Some(State { scale: self.scale, good_steps: self.calm as u64 })
    }

    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// Counts a training step without an overflow. A dynamic loss scale rises after enough such steps.
    pub(crate) fn stepped(&mut self) {
        let LossScale::Dynamic(config) = self.config else { return };
        let DynamicLossScale { growth, growth_interval, .. } = config;
        self.calm = self.calm.saturating_add(1);
        if self.calm >= growth_interval {
            *self = Self { scale: (self.scale * growth).min(*config.range().end()), calm: 0, ..*self };
        }
    }

    /// Lowers a dynamic loss scale after a step with an overflow. Returns whether it was lowered: false if the scale is
    /// fixed or already at its lowest value.
    pub(crate) fn back_off(&mut self) -> bool {
        let LossScale::Dynamic(DynamicLossScale { back_off, lowest, .. }) = self.config else { return false };
        let can = self.scale > lowest;
        *self = Self { scale: if can { (self.scale * back_off).max(lowest) } else { self.scale }, calm: 0, ..*self };
        can
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_scale_falls_at_once_and_rises_slowly() {
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
        scaler.stepped();
        scaler.stepped();
        assert!(!scaler.back_off(), "the scale cannot fall below the lowest one");
        scaler.stepped();
        assert_eq!(scaler.scale(), 2.0, "an overflow at the lowest scale ends the count of calm steps, too");
        let mut fixed = Scaler::new(LossScale::Fixed(3.0));
        assert!(!fixed.back_off() && fixed.scale() == 3.0);
    }

    #[test]
    fn invalid_scales_are_rejected() {
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
