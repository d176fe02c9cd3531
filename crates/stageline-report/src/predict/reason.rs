//! Explains why the settings of one predicted training run are recommended, by comparing its predicted measurements
//! with those of another one.

use super::trainings::PredictedTraining;

/// Smallest factor (1.03) at which a recommendation's reason still names the lesser of two advantages (fewer tokens,
/// higher throughput). An advantage below 3% is not worth mentioning.
const NAMED: f64 = 1.03;

/// Two predicted training runs that reach the same loss with different settings: the recommended one (`training`), and
/// the `other` one that the recommendation's reason compares it with.
pub(super) struct Compared<'a> {
    pub(super) training: &'a PredictedTraining,
    pub(super) other: &'a PredictedTraining,
}

impl Compared<'_> {
    /// Returns the part of a sentence that compares the two training runs, such as `1.5 times faster to the same loss
    /// than`. The caller appends the name of the other one.
    pub(super) fn faster(&self) -> String {
        let seconds = |training: &PredictedTraining| training.seconds().unwrap_or(f64::NAN);
        let times = seconds(self.other) / seconds(self.training);
        match times {
            ..0.995 => format!("{:.0}% slower to the same loss than", 100.0 * (1.0 / times - 1.0)),
            ..1.005 => "as fast to the same loss as".to_owned(),
            ..1.1 => format!("{:.0}% faster to the same loss than", 100.0 * (times - 1.0)),
            _ => format!("{times:.1} times faster to the same loss than"),
        }
    }

    /// Returns the throughput of `training` divided by the throughput of the `other` training run.
    pub(super) fn throughput(&self) -> f64 {
        self.training.tokens_per_s() / self.other.tokens_per_s()
    }

    /// Returns a clause that says why `training` reaches the loss sooner than `other`, such as `because it needs 20%
    /// fewer tokens`. A training run's time is its number of tokens divided by its throughput. So the possible reasons
    /// are fewer tokens and a higher throughput, which may come from a smaller bubble. The larger of these two
    /// advantages comes first, and the smaller one is left out if its factor is below [`NAMED`].
    pub(super) fn because(&self) -> String {
        let unit = self.training.prediction.unit;
        let tokens = |training: &PredictedTraining| training.tokens().unwrap_or(f64::NAN);
        let (fewer_tokens, faster) = (tokens(self.other) / tokens(self.training), self.throughput());
        let of_tokens = || format!("it needs {:.0}% fewer {unit}", 100.0 * (1.0 - 1.0 / fewer_tokens));
        let of_rate = || {
            let [bubble, other] = [self.training, self.other].map(|training| 100.0 * training.prediction.bubble);
            if other - bubble >= 0.5 {
                return format!("its bubble is {bubble:.0}% instead of {other:.0}%");
            }
            let [rate, slower] = [self.training, self.other].map(PredictedTraining::tokens_per_s);
            format!("it trains {rate:.0} {unit} a second instead of {slower:.0}")
        };
        let has_both = fewer_tokens.min(faster) >= NAMED;
        match (fewer_tokens > faster, has_both) {
            (true, true) => format!("because {}, and {}", of_tokens(), of_rate()),
            (false, true) => format!("because {}, and {}", of_rate(), of_tokens()),
            (true, false) => format!("because {}", of_tokens()),
            (false, false) => format!("because {}", of_rate()),
        }
    }
}

/// Returns the indices of the predicted training runs that `fits` accepts and that are about as fast as `shortest`:
/// longer by at most the fraction `longer` (0.1 for 10%).
pub(super) fn about_as_short(
    trainings: &[PredictedTraining],
    shortest: &PredictedTraining,
    longer: f64,
    fits: impl Fn(&PredictedTraining) -> bool,
) -> Vec<usize> {
    let least = shortest.seconds().unwrap_or(f64::INFINITY);
    let is_about = |training: &PredictedTraining| training.seconds().is_some_and(|time| time <= (1.0 + longer) * least);
    (0..trainings.len()).filter(|at| fits(&trainings[*at]) && is_about(&trainings[*at])).collect()
}

#[cfg(test)]
mod tests {
    use super::super::prediction::Prediction;
    use super::*;
    use crate::log::record::Unit;

    #[test]
    fn only_trainings_of_about_the_same_time_are_called_as_fast() {
        let of_steps = |steps: f64| {
            let (peak_live, peak_bytes, cut) = (Vec::new(), None, Vec::new());
            let prediction = Prediction {
                step: 1.0,
                bubble: 0.0,
                tokens_per_s: 1.0,
                unit: Unit::Tokens,
                peak_live,
                peak_bytes,
                cut,
            };
            PredictedTraining { micro_batches: 1, batch: 1.0, prediction, steps: Some(steps) }
        };
        for (steps, expected) in [
            (80.0, "25% slower to the same loss than"),
            (99.0, "1% slower to the same loss than"),
            (99.6, "as fast to the same loss as"),
            (100.4, "as fast to the same loss as"),
            (105.0, "5% faster to the same loss than"),
            (150.0, "1.5 times faster to the same loss than"),
        ] {
            let compared = Compared { training: &of_steps(100.0), other: &of_steps(steps) };
            assert_eq!(compared.faster(), expected, "{steps}");
        }
    }
}
