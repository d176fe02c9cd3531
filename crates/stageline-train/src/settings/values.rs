//! The types of command-line flag values that are not plain numbers or paths.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use stageline::schedule::{Schedule, UnknownSchedule, schedule_named};
use stageline::{BlockSet, Cut, CutError, DynamicLossScale, LossScale, Recompute};

/// Values of the flag `--optimizer`. AdamW is this crate's implementation, and Adafactor, Lion and SGD are burn's.
/// `Muon` combines burn's Muon, for the blocks' matrices, with AdamW for all other parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    Adamw,
    Adafactor,
    Lion,
    Muon,
    Sgd,
}

/// Values of the flag `--on-non-finite`: a step whose loss or gradients are NaN or infinite ends the training run with
/// an error (`Stop`), or updates no parameters (`Skip`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NonFiniteName {
    Stop,
    Skip,
}

/// The values of the flag `--fallbacks`: whether an operation without a fast kernel on the stage's device is an error
/// (`Refuse`) or a warning (`Warn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FallbacksName {
    Refuse,
    Warn,
}

/// The value of the flag `--cut`, which decides how the model's layers are partitioned into stages.
#[derive(Clone, Debug, PartialEq)]
pub enum CutBy {
    /// Partition the layers so that the stages have similar FLOPs and numbers of parameters. No layer is timed.
    Counted,
    /// Time each layer on the first device, and partition the layers so that the stages take similar times.
    Measured,
    /// Use the partition that the user gives: a list with the zero-based index of every stage's first layer.
    List(Cut),
}

impl FromStr for CutBy {
    type Err = CutError;

    fn from_str(text: &str) -> Result<Self, CutError> {
        match text {
            "counted" => Ok(Self::Counted),
            "measured" => Ok(Self::Measured),
            list => Ok(Self::List(list.parse()?)),
        }
    }
}

/// The value of the flag `--speeds`: the devices' relative speeds, which decide how many layers each device gets.
#[derive(Clone, Debug, PartialEq)]
pub enum SpeedsBy {
    /// Use the relative speeds that the user gives, one for every entry of `--device`. Each is above 0.
    List(Vec<f64>),
    /// Measure the relative speeds with a matrix product on each device, at the start of the training run.
    Measured,
}

impl FromStr for SpeedsBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "measured" {
            return Ok(Self::Measured);
        }
        let speed = |word: &str| match word.trim().parse::<f64>() {
            Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(speed),
            _ => Err(format!(
                "`{word}` is not a speed; give a number above 0 for each device, such as 1,2,1, or `measured`"
            )),
        };
        Ok(Self::List(text.split(',').map(speed).collect::<Result<_, _>>()?))
    }
}

/// The value of the flag `--schedule`, which chooses the plan: the order of forward and backward passes.
#[derive(Clone)]
pub enum ScheduleBy {
    /// Use a published schedule, such as GPipe or 1F1B, given by its name.
    Name(&'static (dyn Schedule + Sync)),
    /// Search for a plan: use the one with the shortest simulated step of all plans that the search tries.
    Search,
    /// Use the plan in the CSV file at this path.
    File(PathBuf),
}

impl FromStr for ScheduleBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let or_else = |unknown: UnknownSchedule| format!("{unknown}, `search`, or a CSV file with a plan");
        match text {
            "search" => Ok(Self::Search),
            path if path.ends_with(".csv") => Ok(Self::File(path.into())),
            name => schedule_named(name).map(Self::Name).map_err(or_else),
        }
    }
}

/// The values of the flag `--decay`: the shape in which the learning rate falls from its peak to its lowest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecayName {
    Cosine,
    Linear,
    Sqrt,
    None,
}

/// The value of the flags `--warm-up` and `--decay-length`: the length of a phase of the learning-rate schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// A fixed number of training steps.
    Steps(usize),
    /// A number of samples, independent of the batch size. It is converted to training steps, rounded up.
    Samples(usize),
    /// A share, from 0 to 1, of the learning-rate schedule's steps, rounded down to whole steps.
    Share(f64),
}

impl Length {
    /// Returns the length of this phase of the learning-rate schedule in steps. The whole schedule has `schedule` steps
    /// of `batch_size` samples each.
    pub fn steps(self, schedule: usize, batch_size: usize) -> usize {
        match self {
            Self::Steps(steps) => steps,
            Self::Samples(samples) => samples.div_ceil(batch_size),
            // Without the 1e-9, a product just below a whole number would lose a step.
            Self::Share(share) => (share * schedule as f64 + 1e-9) as usize,
        }
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = |text: &str| text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
        let found = match (text.strip_prefix("samples:"), text.strip_suffix('%')) {
            (Some(samples), _) => samples.parse().ok().map(Self::Samples),
            (None, Some(text)) => percent(text).map(|percent| Self::Share(percent / 100.0)),
            (None, None) => text.parse().ok().map(Self::Steps),
        };
        found.ok_or_else(|| {
            format!("`{text}` is no length; give a number of steps, samples:N, or a share of the schedule such as 10%")
        })
    }
}

/// The value of the flag `--loss-scale`: the fixed or dynamic factor by which the loss is multiplied before the
/// backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaleBy(pub LossScale);

impl FromStr for LossScaleBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "dynamic" => Ok(Self(LossScale::Dynamic(DynamicLossScale::default()))),
            Ok(factor) if is_f32_above_0(factor) => Ok(Self(LossScale::Fixed(factor))),
            _ => {
                Err(format!("`{text}` is not a loss scale; give a number above 0 that f32 can represent, or `dynamic`"))
            }
        }
    }
}

/// Whether a number is still above 0 and finite in f32, the dtype in which losses and optimizers compute.
pub(super) fn is_f32_above_0(number: f64) -> bool {
    let number = number as f32;
    number > 0.0 && number.is_finite()
}

/// The values of the flag `--flush`: whether a stage that has finished its part of a step waits for the other stages
/// (`Together`) or begins the next step (`Ahead`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlushName {
    Together,
    Ahead,
}

/// The value of the flag `--recompute`, which chooses the activations that stages recompute in backward passes
/// (activation checkpointing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecomputeBy {
    /// Use a fixed recomputation policy, which names the activations to recompute.
    Policy(Recompute),
    /// `--recompute auto`: stages recompute only as many activations as needed for the training run to fit into the
    /// memory of its devices.
    Auto,
}

impl FromStr for RecomputeBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "`{text}` is not a choice; give none, selective, feed-forward, full, first:N, every:N, blocks:LIST (such as \
                 blocks:0,2,3), segments:N, sqrt or auto"
            )
        };
        let policy = match text.split_once(':') {
            Some(("first", blocks)) => Recompute::Blocks(blocks.parse().map_err(|_| unknown())?),
            Some(("every", n)) => Recompute::EveryNth(n.parse().map_err(|_| unknown())?),
            Some(("segments", n)) => Recompute::Segments(n.parse().map_err(|_| unknown())?),
            Some(("blocks", list)) => {
                let blocks = list.split(',').map(|block| block.trim().parse().map_err(|_| unknown()));
                let blocks = blocks.collect::<Result<Vec<usize>, _>>()?;
                Recompute::Only(BlockSet::new(blocks).map_err(|error| error.to_string())?)
            }
            Some(_) => return Err(unknown()),
            None => match text {
                "sqrt" => Recompute::SquareRoot,
                "none" => Recompute::Nothing,
                "selective" => Recompute::Selective,
                "feed-forward" => Recompute::FeedForward,
                "full" => Recompute::Full,
                "auto" => return Ok(Self::Auto),
                _ => return Err(unknown()),
            },
        };
        Ok(Self::Policy(policy))
    }
}

impl RecomputeBy {
    /// Returns the recomputation policy to build the pipeline with. For `Auto` it recomputes nothing; the final policy
    /// is chosen later, by the memory estimate.
    pub fn policy(self) -> Recompute {
        match self {
            Self::Policy(policy) => policy,
            Self::Auto => Recompute::Nothing,
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::num::NonZero;

    use stageline::{Fallbacks, OnNonFinite};

    use super::*;
    use crate::settings::job::Job;

    #[test]
    fn every_choice_of_recomputation_is_a_policy_of_the_library() {
        let recompute = |text: &str| Job::of_line(&format!("--recompute {text}")).unwrap().running.recompute;
        let three = NonZero::new(3).unwrap();
        for (text, policy) in [
            ("none", Recompute::Nothing),
            ("selective", Recompute::Selective),
            ("feed-forward", Recompute::FeedForward),
            ("full", Recompute::Full),
            ("first:3", Recompute::Blocks(3)),
            ("every:3", Recompute::EveryNth(three)),
            ("blocks:0,2,3", Recompute::Only(BlockSet::new([0, 2, 3]).unwrap())),
            ("segments:3", Recompute::Segments(three)),
            ("sqrt", Recompute::SquareRoot),
        ] {
            assert_eq!((recompute(text), recompute(text).policy()), (RecomputeBy::Policy(policy), policy), "{text}");
        }
        assert_eq!((recompute("auto"), recompute("auto").policy()), (RecomputeBy::Auto, Recompute::Nothing));
        for wrong in ["all", "every:0", "segments:0", "first:x", "blocks:128", "blocks:", "first"] {
            assert!(Job::of_line(&format!("--recompute {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reactions_to_steps_that_are_not_finite_are_those_of_the_library() {
        let reaction = |flags: &str| Job::of_line(flags).unwrap().training.on_non_finite;
        assert_eq!(reaction("--on-non-finite stop"), OnNonFinite::Stop);
        assert_eq!(reaction("--on-non-finite skip"), OnNonFinite::Skip);
        assert_eq!(reaction(""), OnNonFinite::Stop);
        assert!(Job::of_line("--on-non-finite ignore").is_err());
    }

    #[test]
    fn reactions_to_missing_kernels_are_those_of_the_library() {
        let reaction = |flags: &str| Job::of_line(flags).unwrap().running.fallbacks;
        assert_eq!(reaction("--fallbacks refuse"), Some(Fallbacks::Refuse));
        assert_eq!(reaction("--fallbacks warn"), Some(Fallbacks::Warn));
        assert_eq!(reaction(""), None);
        assert!(Job::of_line("--fallbacks ignore").is_err());
    }

    #[test]
    fn loss_scales_are_fixed_numbers_or_dynamic() {
        let scale = |flags: &str| Job::of_line(flags).unwrap().training.loss_scale;
        assert_eq!(scale("--loss-scale 1024"), Some(LossScale::Fixed(1024.0)));
        assert_eq!(scale("--loss-scale dynamic"), Some(LossScale::Dynamic(DynamicLossScale::default())));
        assert_eq!(scale(""), None);
        for wrong in ["0", "-1", "inf", "NaN", "static"] {
            assert!(Job::of_line(&format!("--loss-scale={wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_optimizer_has_its_name() {
        let optimizer = |flags: &str| Job::of_line(flags).unwrap().training.optimizer;
        for (name, expected) in [
            ("adamw", OptimizerName::Adamw),
            ("adafactor", OptimizerName::Adafactor),
            ("lion", OptimizerName::Lion),
            ("muon", OptimizerName::Muon),
            ("sgd", OptimizerName::Sgd),
        ] {
            assert_eq!(optimizer(&format!("--optimizer {name}")), expected);
        }
        assert_eq!(optimizer(""), OptimizerName::Adamw);
    }

    #[test]
    fn undo_is_another_name_of_rollback() {
        let rollback = |flags: &str| Job::of_line(flags).unwrap().running.rollback;
        assert!(rollback("") && rollback("--undo true"));
        assert!(!rollback("--undo false") && !rollback("--rollback false"));
    }
}

#[cfg(test)]
mod speeds {
    use super::*;

    #[test]
    fn speeds_are_a_list_of_numbers_above_zero() {
        assert_eq!("1, 2.5,1".parse(), Ok(SpeedsBy::List(vec![1.0, 2.5, 1.0])));
        assert_eq!("measured".parse(), Ok(SpeedsBy::Measured));
        for text in ["", "1,0", "1,-2", "1,fast", "nan", "inf"] {
            let error = text.parse::<SpeedsBy>().unwrap_err();
            assert!(error.contains("is not a speed; give a number above 0"), "{text}: {error}");
        }
    }
}
