//! [`WarmupDecay`]: a learning-rate schedule with a linear warm-up, a decay, and a constant rate after the decay.

use std::f64::consts::PI;

use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};

/// Key, in a learning-rate schedule's saved record, of the number of optimizer steps taken so far.
const TAKEN: &str = "taken";

/// The shape of a learning rate's decay from its peak to its lowest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    /// Lowers the learning rate along half a cosine (Loshchilov and Hutter, 2017,
    /// [arXiv:1608.03983](https://arxiv.org/abs/1608.03983)).
    #[default]
    Cosine,
    /// Lowers the learning rate linearly.
    Linear,
    /// Lowers the learning rate as `1 - sqrt(t)`, where `t` is the completed fraction of the decay, so it falls fastest
    /// at first. This shape is for a decay at the end of a constant learning rate (Hägele and others, 2024,
    /// [arXiv:2405.18392](https://arxiv.org/abs/2405.18392)).
    Sqrt,
    /// Keeps the learning rate at its peak in all steps after the warm-up.
    None,
}

impl Decay {
    /// Returns the learning rate, normalised so that its peak is 1 and its lowest value is 0. `over` is the completed
    /// fraction of the decay, from 0 to 1.
    fn left(self, over: f64) -> f64 {
        match self {
            Self::Cosine => (1.0 + (PI * over).cos()) / 2.0,
            Self::Linear => 1.0 - over,
            Self::Sqrt => 1.0 - over.sqrt(),
            Self::None => 1.0,
        }
    }
}

/// A learning-rate schedule: a linear warm-up, a constant phase at the peak, and a decay to a lowest rate, which all
/// later steps keep. Without [`decay_steps`](Self::decay_steps), the decay begins right after the warm-up. With it,
/// only the last steps decay, as in a warmup-stable-decay (WSD) schedule.
///
/// The schedule counts optimizer steps, independently of the number of micro-batches. A step that is skipped because a
/// gradient is not finite does not count. Unlike burn's own cosine schedule, the rate does not rise again after the
/// last step.
///
/// With `w` steps of warm-up, `d` steps of decay and `n` steps in all, step `k` (from 0) has the rate
///
/// - `peak x (k + 1) / (w + 1)` for `k < w`,
/// - `peak` for `w <= k < n - d`,
/// - `lowest + (peak - lowest) x left((k - (n - d)) / d)` for `n - d <= k < n`,
/// - `lowest` for `k >= n`,
///
/// where `left(t)` is `(1 + cos(pi x t)) / 2`, `1 - t` or `1 - sqrt(t)`: see [`Decay`]. With [`Decay::None`], the rate
/// is `peak` for all `k >= w`.
///
/// ```
/// use burn::optim::AdamWConfig;
/// use burn::tensor::Device;
/// use stageline::{Decay, StageConfig, WarmupDecay};
///
/// # fn main() -> Result<(), stageline::WarmupDecayError> {
/// let learning_rate = WarmupDecay::new(3e-4, 100, 2000)?.down_to(3e-5)?;
/// assert_eq!(learning_rate.at(100), 3e-4);
/// assert_eq!(learning_rate.at(1_000_000), 3e-5);
/// let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), learning_rate);
///
/// let stable = WarmupDecay::new(3e-4, 100, 2000)?.decay(Decay::Linear).decay_steps(400)?;
/// assert_eq!(stable.at(1600), 3e-4);
/// assert_eq!(stable.at(1800), 1.5e-4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WarmupDecay {
    peak: f64,
    lowest: f64,
    warm_up: u64,
    steps: u64,
    decay: Decay,
    /// Zero-based index of the first step of the decay.
    decays_from: u64,
    taken: u64,
}

impl WarmupDecay {
    /// Creates a schedule of `steps` optimizer steps. The learning rate rises to `peak` in the first `warm_up` steps,
    /// and then falls to 0 along half a cosine.
    ///
    /// # Errors
    /// Returns [`WarmupDecayError`] if `peak` is not above 0 and finite, or if `warm_up` is larger than `steps`.
    pub fn new(peak: f64, warm_up: usize, steps: usize) -> Result<Self, WarmupDecayError> {
        if !(peak > 0.0 && peak.is_finite()) {
            return Err(WarmupDecayError::Peak { peak });
        }
        if warm_up > steps {
            return Err(WarmupDecayError::WarmUp { warm_up, steps });
        }
        let (warm_up, steps) = (warm_up as u64, steps as u64);
        Ok(Self { peak, lowest: 0.0, warm_up, steps, decay: Decay::default(), decays_from: warm_up, taken: 0 })
    }

    /// Sets the shape of the learning rate's decay after the warm-up. The default is [`Decay::Cosine`].
    #[must_use]
    pub fn decay(self, decay: Decay) -> Self {
        Self { decay, ..self }
    }

    /// Sets the number of decay steps at the end of the schedule; the rate stays at the peak before them. By default,
    /// all steps after the warm-up decay.
    ///
    /// # Errors
    /// Returns [`WarmupDecayError`] if the warm-up and the decay together have more steps than the schedule.
    pub fn decay_steps(self, decay_steps: usize) -> Result<Self, WarmupDecayError> {
        let most = self.steps - self.warm_up;
        if decay_steps as u64 > most {
            let (warm_up, steps) = (self.warm_up as usize, self.steps as usize);
            return Err(WarmupDecayError::DecaySteps { decay_steps, warm_up, steps });
        }
        Ok(Self { decays_from: self.steps - decay_steps as u64, ..self })
    }

    /// Sets the lowest learning rate, which is reached at the end of the decay and kept afterwards. The default is 0.
    ///
    /// # Errors
    /// Returns [`WarmupDecayError`] if `lowest` is not between 0 and the peak.
    pub fn down_to(self, lowest: f64) -> Result<Self, WarmupDecayError> {
        if !(0.0..=self.peak).contains(&lowest) {
            return Err(WarmupDecayError::Lowest { lowest, peak: self.peak });
        }
        Ok(Self { lowest, ..self })
    }

    /// Returns the learning rate of the schedule for the optimizer step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let Self { peak, lowest, warm_up, steps, decay, decays_from, .. } = *self;
        if step < warm_up {
            return peak * (step + 1) as f64 / (warm_up as f64 + 1.0);
        }
        if decay == Decay::None || step < decays_from {
            return peak;
        }
        if step >= steps {
            return lowest;
        }
        if step == decays_from {
            return peak;
        }
        let over = (step - decays_from) as f64 / (steps - decays_from) as f64;
        (lowest + (peak - lowest) * decay.left(over)).clamp(lowest, peak)
    }
}

impl LrScheduler for WarmupDecay {
    fn step(&mut self) -> f64 {
        let rate = self.at(self.taken);
        self.taken = self.taken.saturating_add(1);
        rate
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar(TAKEN, self.taken)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        if let Some(taken) = record.scalar(TAKEN) {
            self.taken = taken;
        }
    }
}

/// The error for invalid settings of a [`WarmupDecay`] learning-rate schedule.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WarmupDecayError {
    /// The peak learning rate is not a finite number above 0.
    #[error("the peak learning rate is {peak}; give a finite number above 0")]
    Peak {
        /// The invalid peak learning rate.
        peak: f64,
    },
    /// The lowest learning rate is not between 0 and the peak learning rate.
    #[error("the lowest learning rate is {lowest}; give a number from 0 to the peak, {peak}")]
    Lowest {
        /// The invalid lowest learning rate.
        lowest: f64,
        /// The peak learning rate of the schedule. The lowest learning rate must not exceed it.
        peak: f64,
    },
    /// The warm-up has more steps than the whole learning-rate schedule.
    #[error("{warm_up} steps of warm-up do not fit a schedule of {steps} steps; give fewer, or a longer schedule")]
    WarmUp {
        /// The invalid number of warm-up steps, which exceeds the number of steps of the whole schedule.
        warm_up: usize,
        /// The number of optimizer steps of the whole learning-rate schedule, which is less than `warm_up`.
        steps: usize,
    },
    /// The warm-up and the decay together have more steps than the whole learning-rate schedule.
    #[error(
        "{warm_up} steps of warm-up and {decay_steps} of decay do not fit a schedule of {steps} steps; give fewer, or a longer \
         schedule"
    )]
    DecaySteps {
        /// The rejected number of decay steps, which do not fit into the schedule after the warm-up.
        decay_steps: usize,
        /// The number of warm-up steps of the rejected schedule.
        warm_up: usize,
        /// The number of steps of the whole rejected schedule, which is less than `warm_up + decay_steps`.
        steps: usize,
    },
}

#[cfg(test)]
mod tests {
    use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
    use proptest::prelude::*;

    use super::*;

    /// Tests the learning rate schedule at steps whose rates can be computed by hand. At such a step, the argument of
    /// the cosine is 0, pi/3, pi/2 or 2 pi/3, for example.
    #[test]
    fn rates_are_those_of_the_closed_form() {
        let schedule = WarmupDecay::new(1.0, 3, 15).unwrap().down_to(0.25).unwrap();
        let expected = [(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (7, 0.8125), (9, 0.625), (11, 0.4375), (15, 0.25)];
        for (step, rate) in expected {
            assert!((schedule.at(step) - rate).abs() < 1e-15, "step {step}: {}, expected {rate}", schedule.at(step));
        }
    }

    #[test]
    fn every_shape_of_decay_is_its_closed_form() {
        let schedule = |decay| WarmupDecay::new(2.0, 4, 20).unwrap().decay(decay).decay_steps(8).unwrap().down_to(1.0);
        for (decay, rates) in [
            (Decay::Linear, [2.0, 1.75, 1.5, 1.25, 1.0]),
            (Decay::Sqrt, [2.0, 1.5, 2.0 - 0.5_f64.sqrt(), 2.0 - 0.75_f64.sqrt(), 1.0]),
            (Decay::Cosine, [2.0, 1.5 + 0.5_f64.sqrt() / 2.0, 1.5, 1.5 - 0.5_f64.sqrt() / 2.0, 1.0]),
            (Decay::None, [2.0; 5]),
        ] {
            let schedule = schedule(decay).unwrap();
            assert!((4..12).all(|step| schedule.at(step) == 2.0), "the peak lasts until the decay");
            for (step, rate) in [12, 14, 16, 18, 20].into_iter().zip(rates) {
                assert!((schedule.at(step) - rate).abs() < 1e-15, "{decay:?} {step}: {}", schedule.at(step));
            }
        }
    }

    proptest! {
        /// Tests that a learning rate schedule of any length rises to the peak, falls to the lowest rate, and stays
        /// there.
        #[test]
        fn a_schedule_rises_once_and_falls_once(
            warm_up in 0_usize..50,
            rest in 0_usize..200,
            decay_steps in 0_usize..200,
            decay in prop::sample::select(&[Decay::Cosine, Decay::Linear, Decay::Sqrt][..]),
            lowest in 0.0..1.0,
            beyond in 0_u64..u64::MAX / 2,
        ) {
            let steps = warm_up + rest;
            let schedule = WarmupDecay::new(1.0, warm_up, steps).unwrap().down_to(lowest).unwrap().decay(decay);
            let schedule = schedule.decay_steps(decay_steps.min(rest)).unwrap();
            let rates: Vec<_> = (0..steps as u64 + 10).map(|step| schedule.at(step)).collect();
            prop_assert!(rates[..warm_up].is_sorted() && rates[warm_up..].is_sorted_by(|a, b| a >= b));
            prop_assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)));
            prop_assert!(rest == 0 || rates[warm_up] == 1.0);
            prop_assert_eq!(schedule.at(steps as u64 + beyond), lowest);
        }
    }

    #[test]
    fn a_record_resumes_where_it_was_taken() {
        let new = || ModuleLrScheduler::new(WarmupDecay::new(1e-3, 4, 20).unwrap());
        let mut whole = new();
        let rates: Vec<_> = (0..30).map(|_| whole.step().base()).collect();
        let mut first = new();
        (0..11).for_each(|_| drop(first.step()));
        let mut second = new().load_record(first.to_record());
        assert_eq!((11..30).map(|_| second.step().base()).collect::<Vec<_>>(), rates[11..]);
    }

    #[test]
    fn contradictory_settings_are_rejected() {
        for peak in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(WarmupDecay::new(peak, 0, 1), Err(WarmupDecayError::Peak { .. })));
        }
        let too_long = WarmupDecay::new(1.0, 3, 2).unwrap_err();
        assert!(too_long.to_string().starts_with("3 steps of warm-up do not fit a schedule of 2 steps"), "{too_long}");
        let error = WarmupDecay::new(1.0, 3, 9).unwrap().decay_steps(7).unwrap_err();
        assert!(
            error.to_string().starts_with("3 steps of warm-up and 7 of decay do not fit a schedule of 9"),
            "{error}"
        );
        for lowest in [-1e-9, 1.5, f64::NAN] {
            let error = WarmupDecay::new(1.0, 0, 1).unwrap().down_to(lowest).unwrap_err();
            assert!(matches!(error, WarmupDecayError::Lowest { .. }), "{error}");
        }
    }
}
