//! Smooths the gradient noise scales that a run logs ([`SmoothedNoise`]).

use std::collections::VecDeque;

use stageline::{GradientNoise, NoiseAverage};
use stageline_report::record::{Noise, SignalAndNoise};

/// Effective length of the running averages, in steps with a noise measurement: each has 0.8 times the weight of the
/// next one.
const AVERAGED: f64 = 5.0;

/// Maximum number of steps in the averages: the most recent ones in which the noise was measured. As in
/// `RunLog::noise_scales`, a step is a spike if its gradient norm is more than twice the median of these steps' norms.
const WINDOW: usize = 9;

/// Running averages of the estimated squared gradient norm and gradient noise, over the most recent steps in which the
/// noise was measured. There are averages for the whole model and for each stage.
#[derive(Default)]
pub struct SmoothedNoise {
    /// The most recent steps in which the gradient noise was measured, oldest first; at most `WINDOW`.
    steps: VecDeque<Measured>,
}

/// The gradient norm of a step in which the gradient noise was measured, and the noise estimates for the whole model
/// and for each stage.
struct Measured {
    norm: f64,
    total: SignalAndNoise,
    stages: Vec<SignalAndNoise>,
}

impl SmoothedNoise {
    /// Adds a step in which the noise was measured to the averages, and sets the smoothed noise scales in `noise`, the
    /// step's log record. `gradient_norm` is the step's norm before clipping. Estimates of spikes (steps with a large
    /// norm) are scaled down.
    pub fn smooth(&mut self, noise: &mut Noise, gradient_norm: f64) {
        if self.steps.len() == WINDOW {
            self.steps.pop_front();
        }
        let stages = noise.stages.iter().map(|stage| stage.estimate).collect();
        self.steps.push_back(Measured { norm: gradient_norm, total: noise.total, stages });
        noise.smoothed_scale = self.scale(|step| Some(step.total));
        for (index, stage) in noise.stages.iter_mut().enumerate() {
            stage.smoothed_scale = self.scale(|step| step.stages.get(index).copied());
        }
    }

    /// Returns the noise scale averaged over the most recent steps in which the noise was measured. `of` selects the
    /// estimate to average, such as one stage's. Returns `None` if no step has this estimate, or if the averages give
    /// no valid scale.
    fn scale(&self, of: impl Fn(&Measured) -> Option<SignalAndNoise>) -> Option<f64> {
        let norms = || self.steps.iter().map(|step| step.norm);
        let mut average = NoiseAverage::over(AVERAGED);
        let estimates = self.steps.iter().filter_map(|step| Some(of(step)?.without_spike(step.norm, norms())));
        let add = |estimate: SignalAndNoise| {
            average.add(GradientNoise { squared_norm: estimate.squared_norm, variance: estimate.variance })
        };
        estimates.map(add).last()?.scale()
    }
}

#[cfg(test)]
mod tests {
    use stageline_report::record::StageNoise;

    use super::*;

    fn measured(stages: [(f64, f64); 2]) -> Noise {
        let estimates = stages.map(|(squared_norm, variance)| SignalAndNoise { squared_norm, variance });
        let [squared_norm, variance] = [stages[0].0 + stages[1].0, stages[0].1 + stages[1].1];
        Noise {
            scale: None,
            smoothed_scale: None,
            total: SignalAndNoise { squared_norm, variance },
            stages: estimates.map(|estimate| StageNoise { scale: None, smoothed_scale: None, estimate }).to_vec(),
        }
    }

    /// Tests the smoothed noise scales after two measured steps. The first step counts 0.8 times as much as the second.
    #[test]
    fn noise_scales_are_ratios_of_averages_in_each_stage() {
        let mut smoothed = SmoothedNoise::default();
        let mut scales = |stages| {
            let mut noise = measured(stages);
            smoothed.smooth(&mut noise, 1.0);
            [noise.smoothed_scale, noise.stages[0].smoothed_scale, noise.stages[1].smoothed_scale]
        };
        let near = |found: [Option<f64>; 3], expected: [f64; 3]| {
            let mut pairs = found.into_iter().zip(expected);
            assert!(pairs.all(|(found, expected)| (found.unwrap() / expected - 1.0).abs() < 1e-12), "{found:?}");
        };
        near(scales([(2.0, 8.0), (1.0, 10.0)]), [6.0, 4.0, 10.0]);
        // In this step the squared norm of stage 1 is not above 0, but its average is.
        near(
            scales([(1.0, 16.0), (-0.5, 15.0)]),
            [
                (0.8 * 18.0 + 31.0) / (0.8 * 3.0 + 0.5),
                (0.8 * 8.0 + 16.0) / (0.8 * 2.0 + 1.0),
                (0.8 * 10.0 + 15.0) / 0.3,
            ],
        );
        assert_eq!(scales([(1.0, 1.0), (-9.0, 1.0)])[2], None);
    }

    #[test]
    fn a_spike_does_not_outweigh_the_steps_before_it() {
        let mut smoothed = SmoothedNoise::default();
        let mut scale = |norm: f64| {
            let mut noise = measured([(norm * norm, 10.0 * norm), (0.0, 0.0)]);
            smoothed.smooth(&mut noise, norm);
            noise.smoothed_scale.unwrap()
        };
        let near =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
        (0..8).for_each(|_| near(scale(1.0), 10.0));
        // The spike counts as a step with the norm 2, with the squared norm 4 and the variance 0.4.
        let weight: f64 = (1..9).map(|age| 0.8_f64.powi(age)).sum();
        near(scale(100.0), (10.0 * weight + 0.4) / (weight + 4.0));
        // At the start of a training, a step becomes a spike as soon as most steps have smaller norms.
        let mut smoothed = SmoothedNoise::default();
        let mut scale = |norm: f64| {
            let mut noise = measured([(norm * norm, 10.0 * norm), (0.0, 0.0)]);
            smoothed.smooth(&mut noise, norm);
            noise.smoothed_scale.unwrap()
        };
        near(scale(100.0), 0.1);
        scale(1.0);
        near(scale(1.0), (0.64 * 0.4 + 18.0) / (0.64 * 4.0 + 1.8));
    }
}
