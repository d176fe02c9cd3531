//! Smooths the gradient noise scales that a run logs: [`SmoothedNoise`].

use std::collections::VecDeque;

use stageline::{GradientNoise, NoiseAverage};
use stageline_report::record::{Noise, SignalAndNoise};

/// The length of the running averages of the gradient noise, as a number of measured steps. Each estimate counts 0.8
/// times as much as the next one. The average is as steady as a mean of 9 estimates, because (1 + 0.8) / (1 - 0.8) = 9.
/// This is the window of `RunLog::noise_scales`.
const AVERAGED: f64 = 5.0;

/// Smooths the gradient's squared norm and noise over the measured steps of a run, by running averages. The whole model
/// has an average, and so has each stage.
pub struct SmoothedNoise {
    total: NoiseAverage,
    stages: Vec<NoiseAverage>,
    /// The gradient norms of the latest measured steps, at most [`NEIGHBOURS`].
    norms: VecDeque<f64>,
}

/// The number of measured steps whose median gradient norm tells a spike.
const NEIGHBOURS: usize = 9;

impl SmoothedNoise {
    /// Creates the running averages of the gradient noise for a run that has not measured the noise yet.
    pub fn new() -> Self {
        Self { total: NoiseAverage::over(AVERAGED), stages: Vec::new(), norms: VecDeque::new() }
    }

    /// Adds a measured step to the averages of the gradient noise, and sets the smoothed noise scales of the step's
    /// record. `gradient_norm` is that of the step before clipping. The estimates of a spike are scaled down, as in
    /// `RunLog::noise_scales`.
    pub fn smooth(&mut self, noise: &mut Noise, gradient_norm: f64) {
        self.norms.truncate(NEIGHBOURS - 1);
        self.norms.push_front(gradient_norm);
        let norms = &self.norms;
        let estimate = |estimate: SignalAndNoise| {
            let SignalAndNoise { squared_norm, variance } =
                estimate.without_spike(gradient_norm, norms.iter().copied());
            GradientNoise { squared_norm, variance }
        };
        noise.smoothed_scale = self.total.add(estimate(noise.total)).scale();
        self.stages.resize(noise.stages.len(), NoiseAverage::over(AVERAGED));
        for (average, stage) in self.stages.iter_mut().zip(&mut noise.stages) {
            stage.smoothed_scale = average.add(estimate(stage.estimate)).scale();
        }
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
        let mut smoothed = SmoothedNoise::new();
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
        let mut smoothed = SmoothedNoise::new();
        let mut scale = |norm: f64| {
            let mut noise = measured([(norm * norm, 10.0 * norm), (0.0, 0.0)]);
            smoothed.smooth(&mut noise, norm);
            noise.smoothed_scale.unwrap()
        };
        assert_eq!((0..8).map(|_| scale(1.0)).fold(0.0, f64::max), 10.0);
        // The spike counts as a step with the norm 2, with the squared norm 4 and the variance 0.4.
        let weight: f64 = (1..9).map(|age| 0.8_f64.powi(age)).sum();
        assert!((scale(100.0) - (10.0 * weight + 0.4) / (weight + 4.0)).abs() < 1e-9);
    }
}
