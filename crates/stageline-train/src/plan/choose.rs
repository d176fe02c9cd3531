//! A training run's chosen plan ([`Planned`]), with its cut and the device of every stage.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::Device;
use stageline::schedule::{Plan, Schedule, short_plan};
use stageline::{Costs, Cut};

use super::search::search;
use super::workers::{check_devices, device_of_worker, stage_speeds};
use crate::settings::running::Running;
use crate::settings::training::Training;
use crate::settings::values::{CutBy, ScheduleBy};
use crate::terminal::say;

/// A training run's chosen plan: the pipeline schedule, the number of stages, and the partition of the model's layers
/// into these stages.
#[derive(Clone)]
pub struct Planned {
    /// The pipeline schedule, which gives the order of forward and backward passes on each worker.
    pub schedule: Arc<dyn Schedule + Send + Sync>,
    /// Number of stages of the whole model. Some schedules have several stages (chunks) per worker.
    pub stages: usize,
    /// The cut: the partition of the model's layers into stages. `None` for a hand-cut model, whose program defines the
    /// stages.
    pub cut: Option<Cut>,
}

/// Chooses the pipeline schedule, the number of stages and the cut (the partition of the layers into stages). `costs`
/// are the layers' costs, and `None` for a hand-cut model, whose program defines the stages.
///
/// # Errors
/// Returns an error in these cases:
///
/// - The schedule does not allow the number of chunks (stages per worker).
/// - The cut does not fit the number of stages.
/// - A plan file is invalid or does not fit the settings.
/// - A search finds no plan.
pub fn choose(running: &Running, training: &Training, costs: Option<&Costs>) -> Result<Planned> {
    let (workers, micro_batches) = (running.workers, training.micro_batches);
    let (schedule, stages): (Arc<dyn Schedule + Send + Sync>, usize) = match (&running.schedule, running.chunks) {
        (ScheduleBy::Name(named), Some(chunks)) if chunks != named.chunks() => {
            let fixed = || {
                let (name, own) = (named.name(), named.chunks());
                anyhow!(
                    "--chunks {chunks}: with {name}, a worker has {own} stage(s); leave --chunks out, or give interleaved"
                )
            };
            named.with_chunks(chunks).ok_or_else(fixed)?;
            (Arc::new(Chunked { schedule: *named, chunks }), workers * chunks)
        }
        (ScheduleBy::Name(named), _) => (Arc::new(*named), workers * named.chunks()),
        (_, Some(_)) => return Err(anyhow!("--chunks: a plan has its own number of stages; leave --chunks out")),
        (ScheduleBy::File(path), None) => {
            let shown = || format!("--schedule {}", path.display());
            let text = std::fs::read_to_string(path).with_context(shown)?;
            let plan = Plan::from_csv(&text).with_context(shown)?;
            ensure!(
                plan.workers() == workers && plan.micro_batches() == micro_batches,
                "{}: the plan is for {} workers and {} micro-batches; give --stages {1} --micro-batches {2}",
                shown(),
                plan.workers(),
                plan.micro_batches()
            );
            let stages = plan.stages();
            (Arc::new(plan), stages)
        }
        (ScheduleBy::Search, None) => {
            let found = search(running, micro_batches, costs).context("--schedule search")?;
            say(format_args!(
                "the search found {} with a simulated step {:.1}% above the lower bound",
                found.schedule,
                100.0 * found.above_bound()
            ))?;
            let plan = found.checked.plan().clone();
            let stages = plan.stages();
            (Arc::new(plan), stages)
        }
    };
    let cut = cut(running, &*schedule, stages, micro_batches, costs)?;
    Ok(Planned { schedule, stages, cut })
}

/// Returns the cut that the flags request: a partition of the model's layers into stages. Returns `None` for a hand-cut
/// model, whose program defines the stages.
///
/// # Errors
/// Returns an error if the list of `--cut` has a different number of stages than the plan, or if the model has fewer
/// layers than stages. For a model that is cut by hand, `--cut measured` and `--speeds` are errors.
fn cut(
    running: &Running,
    schedule: &dyn Schedule,
    stages: usize,
    micro_batches: usize,
    costs: Option<&Costs>,
) -> Result<Option<Cut>> {
    Ok(match (&running.cut, costs, &running.speeds) {
        (CutBy::List(cut), ..) => {
            ensure!(
                cut.stages() == stages,
                "--cut {cut}: it has {} stages, and the plan has {stages}; give one first layer for each stage",
                cut.stages()
            );
            Some(cut.clone())
        }
        (CutBy::Counted | CutBy::Measured, Some(costs), _) => {
            let (layers, workers) = (costs.layers().len(), running.workers);
            let each = stages / workers.max(1);
            let most = layers / each.max(1);
            ensure!(
                stages <= layers || each < 2 || most == 0,
                "--stages {workers}: with {}, a worker has {each} stages, and {layers} layers (the first and the last included) cannot be \
                 cut into {stages}; give at most --stages {most}",
                schedule.name()
            );
            Some(cut_of(costs, schedule, (stages, micro_batches), running)?)
        }
        (CutBy::Measured, None, _) => {
            return Err(anyhow!("--cut measured: this model is cut by hand; leave --cut out"));
        }
        (CutBy::Counted, None, Some(_)) => {
            return Err(anyhow!("--speeds: this model is cut by hand; leave --speeds out"));
        }
        (CutBy::Counted, None, None) => None,
    })
}

/// Computes the cut (partition of the layers into stages) from the layers' costs: measured times, or else FLOPs and
/// parameters. `shape` holds the numbers of stages and micro-batches.
/// - With one stage per worker and no `--speeds`, the stages' costs are balanced.
/// - Otherwise the cut shortens the plan's simulated step, at the workers' `--speeds`.
/// - If the schedule has no plan of this shape, the stages' costs are balanced too.
fn cut_of(costs: &Costs, schedule: &dyn Schedule, shape: (usize, usize), running: &Running) -> Result<Cut> {
    let (stages, micro_batches) = shape;
    let is_even = running.speeds.is_none() && stages == running.workers;
    if is_even || stages > costs.layers().len() {
        return Ok(costs.cut(stages)?);
    }
    // The reason for a missing or deadlocked plan is reported by a later check.
    let Some(plan) = short_plan(schedule, stages, micro_batches) else { return Ok(costs.cut(stages)?) };
    let speeds = stage_speeds(running, &plan.placement())?;
    Ok(costs.cut_of(&plan, &speeds)?)
}

/// A published schedule with `--chunks` stages per worker instead of its default number.
struct Chunked {
    schedule: &'static (dyn Schedule + Sync),
    chunks: usize,
}

impl Chunked {
    fn inner(&self) -> Box<dyn Schedule> {
        self.schedule.with_chunks(self.chunks).expect("checked when the flags were read")
    }
}

impl Schedule for Chunked {
    fn name(&self) -> &'static str {
        self.schedule.name()
    }

    fn plan(&self, stages: usize, micro_batches: usize) -> Result<Plan, stageline::schedule::ScheduleError> {
        self.inner().plan(stages, micro_batches)
    }

    fn chunks(&self) -> usize {
        self.chunks
    }
}

impl Planned {
    /// Returns, for each replica, the device of every stage. All stages of a worker are on its device, and the workers
    /// of all replicas share the devices evenly.
    ///
    /// # Errors
    /// Returns an error if the schedule has no plan for this number of stages and micro-batches, or if `--device` lists
    /// more devices than there are workers.
    pub fn devices(&self, running: &Running, micro_batches: usize) -> Result<Vec<Vec<Device>>> {
        let placement = self.schedule.plan(self.stages, micro_batches)?.placement();
        let workers = running.replicas * placement.workers();
        let used = running.devices.len();
        check_devices(used, workers)?;
        let device = |worker: usize| running.devices[device_of_worker(worker, used, workers)].clone();
        let of_replica = |replica: usize| {
            let first = replica * placement.workers();
            (0..self.stages).map(|stage| device(first + placement.worker(stage))).collect()
        };
        Ok((0..running.replicas).map(of_replica).collect())
    }
}
