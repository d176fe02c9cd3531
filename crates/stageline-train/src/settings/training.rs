//! A training run's hyperparameters ([`Training`]).

use std::num::NonZero;

use anyhow::{Context, Result};
use stageline::{Clip, LossScale, OnNonFinite, WarmupDecay};

use super::flags::TrainingFlags;
use super::rate::Rate;
use super::values::{NonFiniteName, OptimizerName};

/// A training run's hyperparameters: steps, learning rate, optimizer and batch size.
pub struct Training {
    /// The number of training steps. With `epochs`, [`count_epochs`](Self::count_epochs) sets it.
    pub steps: usize,
    /// The number of epochs (passes over the training data), if `--epochs` decides the number of steps; 0 if `--steps`
    /// does.
    pub epochs: f64,
    pub learning_rate: WarmupDecay,
    rate: Rate,
    pub optimizer: OptimizerName,
    /// AdamW's `[beta1, beta2]`: the decay rates of the moving averages of the gradient and of its square.
    pub betas: [f64; 2],
    pub epsilon: f64,
    pub weight_decay: f32,
    pub clip: Option<Clip>,
    pub loss_scale: Option<LossScale>,
    pub on_non_finite: OnNonFinite,
    pub health_every: usize,
    pub noise_every: usize,
    pub validate_every: usize,
    /// The number of consecutive evaluations without a lower validation loss after which training stops early; `None`
    /// trains to the last step.
    pub patience: Option<NonZero<usize>>,
    /// The number of micro-batches (M) on which each replica trains in a step.
    pub micro_batches: usize,
    pub micro_batch_size: usize,
    pub gradient_groups: Option<usize>,
    /// The number of samples in a training step, over all micro-batches and replicas.
    pub batch_size: usize,
    pub tuned_for: usize,
}

impl Training {
    /// Takes the hyperparameters from the flags. The flags must have passed `check`.
    ///
    /// # Errors
    /// Returns an error if the warm-up or the decay does not fit into the learning-rate schedule.
    pub fn of(flags: &TrainingFlags) -> Result<Self> {
        let rate = Rate::of(flags);
        Ok(Self {
            steps: flags.steps,
            epochs: flags.epochs,
            learning_rate: rate.before_data()?,
            rate,
            optimizer: flags.optimizer,
            betas: [flags.beta1.unwrap_or(0.9), flags.beta2.unwrap_or(0.999)],
            epsilon: flags.epsilon.unwrap_or(1e-8),
            weight_decay: flags.weight_decay,
            health_every: flags.health_every,
            noise_every: flags.noise_every,
            validate_every: flags.validate_every,
            patience: NonZero::new(flags.patience),
            clip: (flags.clip > 0.0).then_some(Clip::GlobalNorm(flags.clip)),
            loss_scale: flags.loss_scale.map(|scale| scale.0),
            on_non_finite: on_non_finite(flags.on_non_finite),
            micro_batches: flags.micro_batches,
            micro_batch_size: flags.micro_batch_size,
            gradient_groups: flags.gradient_groups,
            batch_size: flags.batch_size(),
            tuned_for: flags.tuned_for(),
        })
    }

    /// Whether `--validate-every` asks for an evaluation of the held-out samples after `steps` training steps.
    pub fn validates_after(&self, steps: usize) -> bool {
        steps > 0 && self.validate_every > 0 && steps.is_multiple_of(self.validate_every)
    }

    /// Returns a warning if training continues at the lowest learning rate beyond the end of the learning-rate
    /// schedule. Returns `None` if training ends no later than the schedule, or if the schedule has no decay.
    pub fn beyond_the_schedule(&self) -> Option<String> {
        let (schedule, steps) = (self.rate.steps?, self.steps);
        let lowest = self.learning_rate.at(schedule as u64);
        // A schedule without a decay does not lower the rate.
        let is_beyond = steps > schedule && lowest < self.rate.peak;
        is_beyond.then(|| {
            format!(
                "the learning rate is at its lowest value, {lowest:e}, in the last {} of {steps} steps, because --schedule-steps is \
                 {schedule}",
                steps - schedule
            )
        })
    }

    /// Converts `--epochs` to a number of steps, rounded up and at least 1, given the number of `samples` in an epoch.
    /// The learning-rate schedule gets the same length, unless `--schedule-steps` is given. Returns the schedule's
    /// length in steps. Does nothing and returns `None` if `--epochs` is unset.
    ///
    /// # Errors
    /// Returns an error if the data has no epochs, or if the warm-up or the decay does not fit into the schedule.
    pub fn count_epochs(&mut self, samples: Option<u64>) -> Result<Option<usize>> {
        if self.epochs == 0.0 {
            return Ok(None);
        }
        let samples = samples.context("--epochs: the data does not tell how many samples it has; give --steps")?;
        // Without the subtraction, rounding errors would add a step: 1.1 epochs of 10 samples would become 12 samples.
        let steps = (self.epochs * samples as f64 / self.batch_size as f64 - 1e-9).ceil() as usize;
        self.steps = steps.max(1);
        let schedule = self.rate.steps.unwrap_or(self.steps);
        self.learning_rate = self.rate.schedule(schedule)?;
        Ok(Some(schedule))
    }
}

fn on_non_finite(name: NonFiniteName) -> OnNonFinite {
    match name {
        NonFiniteName::Stop => OnNonFinite::Stop,
        NonFiniteName::Skip => OnNonFinite::Skip,
    }
}
