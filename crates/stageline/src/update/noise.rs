//! The gradient noise, estimated from the gradients of the micro-batches of one step. The noise is the sum of the
//! variances of the gradient's elements for a batch of loss weight 1. The noise scale is this noise divided by the
//! squared norm of the gradient.

/// Estimates of the gradient's squared norm and noise in one training step, for the whole model and for each stage.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NoiseReport {
    /// The estimate of the gradient's squared norm and noise over all parameters of the model.
    pub total: GradientNoise,
    /// The estimates of the gradient's squared norm and noise for each stage, over its parameters, in stage order.
    pub stages: Vec<GradientNoise>,
}

/// An estimate of the gradient's squared norm, and of its noise: the sum of the variances of the gradient's elements
/// for a batch of loss weight 1.
///
/// The estimates of a single step are rough, and the estimated squared norm can even be negative. Average both values
/// over many steps with [`NoiseAverage`], and then take their ratio, the noise scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradientNoise {
    /// The estimated squared norm of the gradient for an infinitely large batch. The estimate is unbiased under two
    /// conditions: the micro-batches are independent, and the variance of each micro-batch's gradient sum is
    /// proportional to its loss weight in the first term of the loss.
    pub squared_norm: f64,
    /// The estimated gradient noise: the sum of the variances of the gradient's elements for a batch of loss weight 1
    /// (usually one unmasked target). This is the trace of that gradient's covariance. The estimate is unbiased under
    /// the same conditions as `squared_norm`.
    pub variance: f64,
}

impl GradientNoise {
    /// Estimates the gradient's squared norm and noise from the gradients of a step's micro-batches, whose loss weights
    /// are `weights`. A micro-batch's gradient is that of its loss sum divided by the step's total weight, so these
    /// gradients add up to the step's gradient. `of_sum` is the squared norm of their sum, and `of_each` is the sum of
    /// their squared norms. Returns `None` unless at least two micro-batches have a weight above 0.
    ///
    /// The gradient of a micro-batch with the fraction f of the total weight W has the expected squared norm f² |G|² +
    /// f S / W. The gradient of the whole step has the expected squared norm |G|² + S / W. Here |G|² is the squared
    /// norm of the true gradient, and S is the gradient noise. With equal fractions this is the estimate of McCandlish
    /// et al., 2018 ([arXiv:1812.06162](https://arxiv.org/abs/1812.06162), appendix A.1).
    pub fn of_micro_batches(weights: &[f64], of_sum: f64, of_each: f64) -> Option<Self> {
        let total: f64 = weights.iter().sum();
        let shares: f64 = weights.iter().map(|weight| (weight / total).powi(2)).sum();
        let weighted = weights.iter().filter(|weight| **weight > 0.0).count();
        (weighted > 1).then(|| Self {
            squared_norm: (of_sum - of_each) / (1.0 - shares),
            variance: total * (of_each - shares * of_sum) / (1.0 - shares),
        })
    }

    /// Returns the noise scale: the loss weight (usually the number of unmasked targets) of a batch whose gradient has
    /// as much noise as signal. Much smaller batches waste no samples, and much larger batches hardly reduce the number
    /// of steps. Returns `None` if the estimated squared norm of the gradient is not above 0.
    pub fn scale(self) -> Option<f64> {
        (self.squared_norm > 0.0).then(|| self.variance.max(0.0) / self.squared_norm)
    }
}

/// Exponential running averages of the gradient's squared norm and noise over the steps of a training run. Add each
/// step's estimate with [`add`](Self::add). The noise scale is the averaged noise divided by the averaged squared norm,
/// because an average of the steps' own ratios would be biased.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseAverage {
    /// Decay of the running average, from 0 to below 1: each new estimate is added as `kept * sum + (1 - kept) *
    /// estimate`.
    kept: f64,
    /// The weighted sum of all estimates of the gradient's squared norm and noise so far. Later estimates have larger
    /// weights.
    sum: GradientNoise,
    /// The sum of the weights of all estimates so far. The running average is the weighted sum of the estimates divided
    /// by this sum.
    weight: f64,
}

impl NoiseAverage {
    /// Creates an empty running average of the gradient's squared norm and noise, over about the last `estimates`
    /// steps. Each estimate has `1 - 1 / estimates` times the weight of the next one. Values of `estimates` below 1
    /// count as 1.
    pub fn over(estimates: f64) -> Self {
        Self { kept: 1.0 - 1.0 / estimates.max(1.0), sum: GradientNoise::default(), weight: 0.0 }
    }

    /// Adds one step's estimate of the gradient's squared norm and noise. Returns the average of all estimates so far.
    pub fn add(&mut self, estimate: GradientNoise) -> GradientNoise {
        let mix = |sum: f64, new: f64| self.kept * sum + (1.0 - self.kept) * new;
        self.sum = GradientNoise {
            squared_norm: mix(self.sum.squared_norm, estimate.squared_norm),
            variance: mix(self.sum.variance, estimate.variance),
        };
        self.weight = mix(self.weight, 1.0);
        GradientNoise { squared_norm: self.sum.squared_norm / self.weight, variance: self.sum.variance / self.weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the estimate of the gradient's squared norm and noise on exact inputs. The inputs belong to a squared norm
    /// of 9 and a noise of 50, and the estimate must return both.
    #[test]
    fn expected_squared_norms_give_the_signal_and_the_noise() {
        let (signal, noise) = (9.0, 50.0);
        for weights in [vec![1.0; 2], vec![128.0; 8], vec![3.0, 0.0, 10.0, 7.0]] {
            let total: f64 = weights.iter().sum();
            let of_sum = signal + noise / total;
            let of_each: f64 =
                weights.iter().map(|weight| (weight / total).powi(2) * signal + weight / total * noise / total).sum();
            let found = GradientNoise::of_micro_batches(&weights, of_sum, of_each).unwrap();
            assert!((found.squared_norm - signal).abs() < 1e-12 && (found.variance - noise).abs() < 1e-10, "{found:?}");
            assert!((found.scale().unwrap() - noise / signal).abs() < 1e-10);
        }
        for weights in [&[][..], &[4.0], &[4.0, 0.0]] {
            assert_eq!(GradientNoise::of_micro_batches(weights, 1.0, 1.0), None);
        }
        assert_eq!(GradientNoise { squared_norm: -1.0, variance: 1.0 }.scale(), None);
    }

    #[test]
    fn the_average_has_no_bias_in_its_first_steps() {
        let mut average = NoiseAverage::over(10.0);
        let step = GradientNoise { squared_norm: 2.0, variance: 6.0 };
        assert_eq!(average.add(step).scale(), Some(3.0));
        let next = average.add(GradientNoise { squared_norm: 4.0, variance: 0.0 });
        // The weight of the first estimate is 0.9 times the weight of the second.
        assert!((next.squared_norm - (0.9 * 2.0 + 4.0) / 1.9).abs() < 1e-12, "{next:?}");
        assert_eq!(NoiseAverage::over(0.0).add(step), step);
    }
}
