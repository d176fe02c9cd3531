//! The settings of the learning-rate schedule ([`Rate`]).

use anyhow::{Context, Result};
use stageline::{Decay, WarmupDecay};

use super::flags::TrainingFlags;
use super::values::{DecayName, Length};

/// The flags of the learning-rate schedule. The schedule itself is made later, when the number of steps is known.
pub struct Rate {
    pub peak: f64,
    lowest: f64,
    warm_up: Length,
    decay: Decay,
    /// Length of the learning rate's decay; `None` decays over all steps after the warm-up.
    decay_length: Option<Length>,
    /// Length of the learning-rate schedule in steps; `None` if it is that of `--epochs`, which depends on the data.
    pub steps: Option<usize>,
    /// Number of samples in a training step, to convert schedule lengths in samples to steps.
    batch_size: usize,
}

impl Rate {
    pub fn of(flags: &TrainingFlags) -> Self {
        let has_steps = flags.epochs == 0.0 || flags.schedule_steps.is_some();
        Self {
            peak: flags.learning_rate,
            lowest: flags.lowest_rate.unwrap_or(flags.learning_rate / 10.0),
            warm_up: flags.warm_up,
            decay: match flags.decay {
                DecayName::Cosine => Decay::Cosine,
                DecayName::Linear => Decay::Linear,
                DecayName::Sqrt => Decay::Sqrt,
                DecayName::None => Decay::None,
            },
            decay_length: flags.decay_length,
            steps: has_steps.then(|| flags.schedule_steps()),
            batch_size: flags.batch_size(),
        }
    }

    /// Returns the learning-rate schedule, and checks its settings, before the data is opened. If the length depends on
    /// the data (`--epochs`), the schedule is a placeholder, and only settings independent of the length are checked.
    ///
    /// # Errors
    /// Returns the errors of [`schedule`](Self::schedule).
    pub fn before_data(&self) -> Result<WarmupDecay> {
        match self.steps {
            Some(steps) => self.schedule(steps),
            None => WarmupDecay::new(self.peak, 0, 1)?.down_to(self.lowest).context("--lowest-rate"),
        }
    }

    /// Returns the learning-rate schedule over `steps` steps: a linear warm-up to the peak, a phase at the peak, and a
    /// decay to the lowest rate.
    ///
    /// # Errors
    /// Returns an error if the warm-up and the decay together are longer than the schedule, or if the lowest rate is
    /// above the peak.
    pub fn schedule(&self, steps: usize) -> Result<WarmupDecay> {
        let in_steps = |length: Length| length.steps(steps, self.batch_size);
        let schedule = WarmupDecay::new(self.peak, in_steps(self.warm_up), steps).context("--warm-up")?;
        let schedule = schedule.decay(self.decay).down_to(self.lowest).context("--lowest-rate")?;
        match self.decay_length {
            Some(length) => schedule.decay_steps(in_steps(length)).context("--decay-length"),
            None => Ok(schedule),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline::{Decay, WarmupDecay};

    use crate::settings::job::Job;

    fn rates(flags: &str) -> Result<WarmupDecay, String> {
        Ok(Job::of_line(&format!("--learning-rate 0.01 --steps 500 {flags}"))?.training.learning_rate)
    }

    #[test]
    fn lengths_are_steps_samples_or_shares_of_the_schedule() {
        // A step has 8 x 4 = 32 samples, so 100 samples take 4 steps.
        let expected = |steps: usize| WarmupDecay::new(0.01, steps, 500).unwrap().down_to(0.01 / 10.0);
        assert_eq!(rates("--warm-up samples:100").unwrap(), expected(4).unwrap());
        assert_eq!(rates("--warm-up samples:100 --micro-batches 1").unwrap(), expected(25).unwrap());
        assert_eq!(rates("--warm-up 7").unwrap(), expected(7).unwrap());
        assert_eq!(rates("--warm-up 3%").unwrap(), expected(15).unwrap());
        assert_eq!(rates("").unwrap(), expected(50).unwrap());
        for wrong in ["samples:few", "rows:3", "101%", "-1%", "%", "1.5"] {
            assert!(rates(&format!("--warm-up={wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn steps_after_the_schedule_are_named() {
        let warning = |flags: &str| Job::of_line(flags).unwrap().training.beyond_the_schedule();
        let expected = "the learning rate is at its lowest value, 1e-4, in the last 50 of 150 steps, because --schedule-steps \
                        is 100";
        assert_eq!(warning("--learning-rate 1e-3 --steps 150 --schedule-steps 100").unwrap(), expected);
        for flags in ["--steps 150", "--steps 50", "--steps 150 --schedule-steps 100 --decay none", "--epochs 3"] {
            assert_eq!(warning(flags), None, "{flags}");
        }
    }

    #[test]
    fn a_decay_has_a_shape_a_length_and_a_lowest_rate() {
        let expected = WarmupDecay::new(0.01, 0, 500).unwrap().decay(Decay::Linear).decay_steps(100).unwrap();
        assert_eq!(rates("--warm-up 0 --decay linear --decay-length 20% --lowest-rate 0"), Ok(expected));
        for (name, decay) in [("cosine", Decay::Cosine), ("sqrt", Decay::Sqrt), ("none", Decay::None)] {
            let expected = WarmupDecay::new(0.01, 50, 500).unwrap().down_to(0.01 / 10.0).unwrap().decay(decay);
            assert_eq!(rates(&format!("--decay {name}")), Ok(expected));
        }
        for (flags, flag) in [
            ("--warm-up 501", "--warm-up: 501 steps"),
            ("--decay-length 460", "--decay-length: 50 steps of warm-up and 460 of decay"),
            ("--lowest-rate 0.02", "--lowest-rate: the lowest learning rate is 0.02"),
            ("--epochs 1 --lowest-rate 0.02", "--lowest-rate: the lowest learning rate is 0.02"),
        ] {
            let error = rates(flags).unwrap_err();
            assert!(error.starts_with(flag), "{flags}: {error}");
        }
    }
}
