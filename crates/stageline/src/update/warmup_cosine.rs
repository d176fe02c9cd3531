//! [`WarmupCosine`]: a learning rate schedule with a linear warm-up, a cosine decay, and a constant end.

use std::f64::consts::PI;

use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};

/// The key for the number of optimizer steps taken, in the stored record of a learning rate schedule.
const TAKEN: &str = "taken";

/// A learning rate schedule: a linear warm-up to a peak, then half a cosine down to a lowest rate. All later steps have
/// the lowest rate.
///
/// The schedule counts optimizer steps: a step that is skipped because a gradient is not finite does not count, and the
/// number of micro-batches does not matter. burn's own cosine has no end: after its last step the rate rises again.
///
/// With `w` steps of warm-up and `n` steps in all, step `k` (from 0) has the rate
///
/// - `peak x (k + 1) / (w + 1)` for `k < w`,
/// - `lowest + (peak - lowest) x (1 + cos(pi x (k - w) / (n - w))) / 2` for `w <= k < n` (Loshchilov and Hutter, 2017,
///   [arXiv:1608.03983](https://arxiv.org/abs/1608.03983)),
/// - `lowest` for `k >= n`.
///
/// ```
/// use burn::optim::AdamWConfig;
/// use burn::tensor::Device;
/// use stageline::{StageConfig, WarmupCosine};
///
/// # fn main() -> Result<(), stageline::WarmupCosineError> {
/// let learning_rate = WarmupCosine::new(3e-4, 100, 2000)?.down_to(3e-5)?;
/// assert_eq!(learning_rate.at(100), 3e-4);
/// assert_eq!(learning_rate.at(1_000_000), 3e-5);
/// let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), learning_rate);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WarmupCosine {
    peak: f64,
    lowest: f64,
    warm_up: u64,
    steps: u64,
    taken: u64,
}

impl WarmupCosine {
    /// Returns a schedule of `steps` optimizer steps. The learning rate rises to `peak` in the first `warm_up` steps,
    /// and falls to 0 in the others.
    ///
    /// # Errors
    /// Returns [`WarmupCosineError`] if `peak` is not above 0 and finite, or if `warm_up` is larger than `steps`.
    pub fn new(peak: f64, warm_up: usize, steps: usize) -> Result<Self, WarmupCosineError> {
        if !(peak > 0.0 && peak.is_finite()) {
            return Err(WarmupCosineError::Peak { peak });
        }
        if warm_up > steps {
            return Err(WarmupCosineError::WarmUp { warm_up, steps });
        }
        Ok(Self { peak, lowest: 0.0, warm_up: warm_up as u64, steps: steps as u64, taken: 0 })
    }

    /// Sets the learning rate at the end of the cosine, the lowest one, to `lowest` instead of 0.
    ///
    /// # Errors
    /// Returns [`WarmupCosineError`] if `lowest` is not between 0 and the peak.
    pub fn down_to(self, lowest: f64) -> Result<Self, WarmupCosineError> {
        if !(0.0..=self.peak).contains(&lowest) {
            return Err(WarmupCosineError::Lowest { lowest, peak: self.peak });
        }
        Ok(Self { lowest, ..self })
    }

    /// Returns the learning rate of the schedule (warm-up, then cosine) for the optimizer step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let Self { peak, lowest, warm_up, steps, .. } = *self;
        if step < warm_up {
            return peak * (step + 1) as f64 / (warm_up as f64 + 1.0);
        }
        if step >= steps {
            return lowest;
        }
        if step == warm_up {
            return peak;
        }
        let fallen = (step - warm_up) as f64 / (steps - warm_up) as f64;
        (lowest + (peak - lowest) * (1.0 + (PI * fallen).cos()) / 2.0).clamp(lowest, peak)
    }
}

impl LrScheduler for WarmupCosine {
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

/// The error for invalid settings of a [`WarmupCosine`] learning rate schedule.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WarmupCosineError {
    /// The error that the peak learning rate of a schedule is not a finite number above 0.
    #[error("the peak learning rate is {peak}; give a finite number above 0")]
    Peak {
        /// The invalid peak learning rate.
        peak: f64,
    },
    /// The error that the lowest learning rate of a schedule is not between 0 and its peak.
    #[error("the lowest learning rate is {lowest}; give a number from 0 to the peak, {peak}")]
    Lowest {
        /// The invalid lowest learning rate.
        lowest: f64,
        /// The peak learning rate of the schedule. The lowest learning rate must not exceed it.
        peak: f64,
    },
    /// The error that the warm-up of a learning rate schedule has more steps than the whole schedule.
    #[error("{warm_up} steps of warm-up do not fit a schedule of {steps} steps; give fewer, or a longer schedule")]
    WarmUp {
        /// The invalid number of warm-up steps, which exceeds the number of steps of the whole schedule.
        warm_up: usize,
        /// The number of optimizer steps of the whole learning rate schedule. The warm-up alone has more steps, so the
        /// schedule is invalid.
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
        let schedule = WarmupCosine::new(1.0, 3, 15).unwrap().down_to(0.25).unwrap();
        let expected = [(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (7, 0.8125), (9, 0.625), (11, 0.4375), (15, 0.25)];
        for (step, rate) in expected {
            assert!((schedule.at(step) - rate).abs() < 1e-15, "step {step}: {}, expected {rate}", schedule.at(step));
        }
    }

    proptest! {
        /// Tests that a learning rate schedule of any length rises to the peak, falls to the lowest rate, and stays
        /// there.
        #[test]
        fn a_schedule_rises_once_and_falls_once(
            warm_up in 0_usize..50,
            rest in 0_usize..200,
            lowest in 0.0..1.0,
            beyond in 0_u64..u64::MAX / 2,
        ) {
            let steps = warm_up + rest;
            let schedule = WarmupCosine::new(1.0, warm_up, steps).unwrap().down_to(lowest).unwrap();
            let rates: Vec<_> = (0..steps as u64 + 10).map(|step| schedule.at(step)).collect();
            prop_assert!(rates[..warm_up].is_sorted() && rates[warm_up..].is_sorted_by(|a, b| a >= b));
            prop_assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)));
            prop_assert!(rest == 0 || rates[warm_up] == 1.0);
            prop_assert_eq!(schedule.at(steps as u64 + beyond), lowest);
        }
    }

    #[test]
    fn a_record_resumes_where_it_was_taken() {
        let new = || ModuleLrScheduler::new(WarmupCosine::new(1e-3, 4, 20).unwrap());
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
            assert!(matches!(WarmupCosine::new(peak, 0, 1), Err(WarmupCosineError::Peak { .. })));
        }
        let too_long = WarmupCosine::new(1.0, 3, 2).unwrap_err();
        assert!(too_long.to_string().starts_with("3 steps of warm-up do not fit a schedule of 2 steps"), "{too_long}");
        for lowest in [-1e-9, 1.5, f64::NAN] {
            let error = WarmupCosine::new(1.0, 0, 1).unwrap().down_to(lowest).unwrap_err();
            assert!(matches!(error, WarmupCosineError::Lowest { .. }), "{error}");
        }
    }
}
