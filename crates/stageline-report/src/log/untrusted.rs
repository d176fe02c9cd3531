//! Validates the plan and the numbers of a log while it is read, because a log may be damaged or come from an untrusted
//! source. Later computations need a complete plan, and times and sizes whose sums are finite.

use stageline_schedule::{Plan, check};

use super::error::LogError;
use super::record::{Run, StageCosts, Step};

/// Maximum number of layers that the model in a log may have, because the time of a search for partitions grows with
/// its square.
const MOST_LAYERS: usize = 4096;

/// Maximum number of data-parallel replicas that a log may have. Products with the number of workers fit into 64 bits.
const MOST_REPLICAS: usize = 1_000_000;

/// Maximum time, size or weight that a log may have. Sums and quotients of smaller numbers are finite.
const MOST: f64 = 1e30;

impl Run {
    /// Parses and checks the run's plan, and checks the numbers in the run's description. Returns an error if the plan
    /// is incomplete, or deadlocks even with channels that hold all micro-batches. Does not check whether the run's own
    /// channels are large enough for the plan. `line` is the number of the description's line in the log, counted from
    /// 1.
    pub(super) fn checked_plan(&self, line: usize) -> Result<Plan, LogError> {
        if self.layers.len() > MOST_LAYERS {
            return Err(LogError::Layers { line, layers: self.layers.len(), most: MOST_LAYERS });
        }
        if self.replicas > MOST_REPLICAS {
            return Err(LogError::Replicas { line, replicas: self.replicas, most: MOST_REPLICAS });
        }
        let weights = self.layers.iter().map(|layer| ("weight", layer.weight));
        within(line, [("tokens_per_micro_batch", self.tokens_per_micro_batch)].into_iter().chain(weights))?;
        let plan = Plan::from_csv(&self.plan).map_err(LogError::Plan)?;
        // Only predictions check whether the run's own channel capacity is enough for the plan, because pages do not
        // need it.
        let capacity = plan.micro_batches();
        Ok(check(plan, capacity).map_err(|error| LogError::InvalidPlan(Box::new(error)))?.plan().clone())
    }
}

impl Step {
    /// Checks the times, sizes and weights of a step, and the stages of its events. Returns [`LogError::Number`] for a
    /// number outside 0 to [`MOST`], and [`LogError::Stage`] for an event of a stage that does not exist in the plan.
    /// `line` is the number of the step's line in the log, counted from 1, and `stages` the number of stages of the
    /// run's plan.
    pub(super) fn check(&self, line: usize, stages: usize) -> Result<(), LogError> {
        let of_step = [
            ("weight", self.weight),
            ("tokens_per_s", self.tokens_per_s),
            ("epoch", self.epoch.unwrap_or(0.0)),
            ("step_seconds", self.step_seconds),
            ("batch_wait_seconds", self.batch_wait_seconds),
        ];
        // The other times of an account (a worker's time by cause) are differences, which may be below 0.
        let of_workers = self.workers.iter().flat_map(|account| [("busy", account.busy), ("asking", account.asking)]);
        within(line, of_step.into_iter().chain(of_workers).chain(self.stages.iter().flat_map(amounts)))?;
        match self.timeline.iter().flatten().find(|event| event.stage >= stages) {
            Some(event) => Err(LogError::Stage { line, stage: event.stage, stages }),
            None => Ok(()),
        }
    }
}

/// Returns the name and value of each cost of a stage that must not be negative, for validation. Activation bytes are
/// left out, because a forward pass may free more memory than it retains.
fn amounts(stage: &StageCosts) -> impl Iterator<Item = (&'static str, f64)> {
    let times = [
        ("forward", stage.forward),
        ("backward", stage.backward),
        ("send_activation", stage.send_activation),
        ("send_gradient", stage.send_gradient),
        ("flush", stage.flush),
    ];
    times.into_iter().chain(stage.output_bytes.map(|bytes| ("output_bytes", bytes)))
}

/// Checks that every value in `fields` (pairs of name and value) is from 0 to [`MOST`]. Returns a [`LogError::Number`]
/// for the first invalid value, such as NaN. `line` is the line number in the log.
fn within(line: usize, fields: impl Iterator<Item = (&'static str, f64)>) -> Result<(), LogError> {
    let mut fields = fields;
    match fields.find(|(_, value)| !(0.0..=MOST).contains(value)) {
        Some((field, value)) => Err(LogError::Number { line, field, value }),
        None => Ok(()),
    }
}
