//! The values that flags of a training take, beside numbers and paths.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use stageline::schedule::{Schedule, UnknownSchedule, schedule_named};
use stageline::{BlockSet, Cut, CutError, DynamicLossScale, LossScale, Recompute};

/// The values of the flag `--optimizer`: AdamW of this crate, and Adafactor, Lion and SGD of burn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    Adamw,
    Adafactor,
    Lion,
    Sgd,
}

/// The values of the flag `--on-non-finite`: a step whose loss or gradients are NaN or infinite ends the training with
/// an error (`Stop`) or updates no parameters (`Skip`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NonFiniteName {
    Stop,
    Skip,
}

/// The value of the flag `--cut`, which decides between which layers the model is cut into stages.
#[derive(Clone, Debug, PartialEq)]
pub enum CutBy {
    /// The cut balances counted FLOPs and parameters between the stages.
    Counted,
    /// The cut balances the measured times of the layers between the stages.
    Measured,
    /// The cut is a list with the number of the first layer of every stage, which the user gives.
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

/// The value of the flag `--schedule`, which chooses the plan of forwards and backwards.
#[derive(Clone)]
pub enum ScheduleBy {
    /// The schedule with this name generates the plan.
    Name(&'static (dyn Schedule + Sync)),
    /// The plan is found by a search: it has the shortest simulated step among the plans of all schedules and
    /// automatically generated ones.
    Search,
    /// The plan is read from the CSV file at this path.
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

/// The value of the flag `--warm-up`: the time over which the learning rate rises to its peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WarmUp {
    /// The warm-up of the learning rate takes this number of steps.
    Steps(usize),
    /// The warm-up of the learning rate takes the number of steps that train on this many samples, rounded up.
    Samples(usize),
}

impl FromStr for WarmUp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = match text.strip_prefix("samples:") {
            Some(samples) => samples.parse().map(Self::Samples),
            None => text.parse().map(Self::Steps),
        };
        found.map_err(|_| format!("`{text}` is not a warm-up; give a number of steps, or samples:N"))
    }
}

/// The value of the flag `--loss-scale`: the factor, fixed or dynamic, by which the loss is multiplied before its
/// backward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaleBy(pub LossScale);

impl FromStr for LossScaleBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "dynamic" => Ok(Self(LossScale::Dynamic(DynamicLossScale::default()))),
            Ok(factor) if factor > 0.0 && f64::is_finite(factor) => Ok(Self(LossScale::Fixed(factor))),
            _ => Err(format!("`{text}` is not a loss scale; give a number above 0, or `dynamic`")),
        }
    }
}

/// The values of the flag `--flush`: whether a stage that has finished its part of a step waits for the other stages
/// (`Together`) or begins the next step (`Ahead`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlushName {
    Together,
    Ahead,
}

/// The value of the flag `--recompute`, which chooses the activations that stages recompute in backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecomputeBy {
    /// The stages recompute the activations that this policy names.
    Policy(Recompute),
    /// The stages recompute only as many activations as needed to fit the training into the memory of its devices.
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
    /// Returns the recomputation policy with which the pipeline is built. For `Auto` this is no recomputation, because
    /// the policy is chosen later, when the memory is estimated.
    pub fn policy(self) -> Recompute {
        match self {
            Self::Policy(policy) => policy,
            Self::Auto => Recompute::Nothing,
        }
    }
}
