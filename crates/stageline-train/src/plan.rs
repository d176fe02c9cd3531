//! Chooses the plan of a training run (a named schedule, a plan from a file, or the plan that a search finds), and the
//! device of every stage under that plan.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::Device;
use stageline::schedule::{Costs as PlanCosts, Memory, Plan, Schedule, StageCost, best, short_plan};
use stageline::{Costs, Cut};

use crate::model::Model;
use crate::settings::job::Job;
use crate::settings::running::Running;
use crate::settings::training::Training;
use crate::settings::values::{CutBy, ScheduleBy};
use crate::terminal::say;

/// The chosen pipeline plan of a training run: the pipeline schedule, the number of stages, and the partition of the
/// model's layers into these stages.
#[derive(Clone)]
pub struct Planned {
    /// The pipeline schedule, which gives the order of forward and backward passes on each worker.
    pub schedule: Arc<dyn Schedule + Send + Sync>,
    /// The number of stages of the whole model. In some schedules a worker has several stages, which are called chunks.
    pub stages: usize,
    /// The cut, which is the partition of the model's layers into stages; `None` for a model that the user has cut into
    /// stages by hand.
    pub cut: Option<Cut>,
}

/// Why a program needs the costs of a model's layers. The reason decides whether [`costs`] runs the layers.
#[derive(Clone, Copy)]
pub enum Purpose {
    /// The program builds a pipeline without training it. By default, its stages have about equally many parameters,
    /// so no layer is run.
    Pipeline,
    /// The program trains the model. By default, the stages balance FLOPs and parameters, so each layer is run to count
    /// FLOPs.
    Training {
        /// Whether the run writes a log or an HTML page, which contain the FLOPs of the layers.
        is_written: bool,
    },
}

/// Returns the costs of each layer of the model: FLOPs and parameters, and with `--cut measured` the times on the first
/// device. Returns `None` for a model that is cut by hand.
///
/// Layers are run on `sample`, the input of one sample, if their FLOPs or times are needed. `--cut measured` and
/// `--schedule search` need them, and in a training run the default cut, the log, the HTML page and the model FLOP
/// utilisation. Layers are also run if [`Model::sizes`] returns `None`. Otherwise no layer is run, and all FLOPs are 0.
pub fn costs<M: Model>(model: &M, sample: M::Input, job: &Job, purpose: Purpose) -> Option<Costs> {
    let Running { cut, schedule, devices, peak_flops, .. } = &job.running;
    let is_measured = *cut == CutBy::Measured;
    let needs_flops = match purpose {
        Purpose::Pipeline => false,
        Purpose::Training { is_written } => is_written || peak_flops.is_some() || *cut == CutBy::Counted,
    };
    let are_run = needs_flops || is_measured || matches!(schedule, ScheduleBy::Search);
    let sizes = if are_run { None } else { model.sizes() };
    sizes.or_else(|| model.costs(sample, is_measured.then(|| &devices[0])))
}

/// Chooses the pipeline schedule, the number of stages and the cut (the partition of the layers into stages) from the
/// settings of a training run. `costs` are the costs of the model's layers; `None` for a model that is cut by hand.
///
/// # Errors
/// Returns an error in these cases:
///
/// - The schedule does not allow the number of chunks (stages of a worker).
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
            // A stage needs a layer of its own.
            let most_chunks = costs.map_or(1, |costs| costs.layers().len() / workers);
            let speeds = running.speeds.as_ref().map(|speeds| worker_speeds(speeds, running.replicas, workers));
            let costs = stage_costs(costs, &speeds.unwrap_or_else(|| Ok(vec![1.0; workers]))?)?;
            let found =
                best(micro_batches, &costs, &Memory::unlimited(workers), most_chunks).context("--schedule search")?;
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

/// Returns the cut (partition) of the model into stages that the flags request. Returns `None` for a model that the
/// user has cut by hand.
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

/// Returns the index, from 0, of the device on which the worker with the index `worker` runs. Workers are counted over
/// all replicas. The `workers` workers share the `used` devices evenly and in order. If there are fewer devices than
/// workers, consecutive workers share a device.
fn device_of_worker(worker: usize, used: usize, workers: usize) -> usize {
    worker * used / workers
}

/// Returns the relative speed of each worker of a replica. `speeds` holds the relative speed of each entry in the list
/// `--device`. Workers on the same entry share its speed. With several replicas, the result is the lowest speed of the
/// workers with the same index in their replicas.
///
/// # Errors
/// Returns an error if `--device` names more devices than there are workers.
fn worker_speeds(speeds: &[f64], replicas: usize, workers: usize) -> Result<Vec<f64>> {
    let (used, all) = (speeds.len(), replicas * workers);
    check_devices(used, all)?;
    let device = |worker: usize| device_of_worker(worker, used, all);
    let of_one = |worker: usize| {
        let sharing = (0..all).filter(|other| device(*other) == device(worker)).count();
        speeds[device(worker)] / sharing as f64
    };
    let slowest = |worker: usize| {
        let copies = (0..replicas).map(|replica| of_one(replica * workers + worker));
        copies.fold(f64::INFINITY, f64::min)
    };
    Ok((0..workers).map(slowest).collect())
}

/// Returns the cut of the layers into the stages of a plan by their costs and by `--speeds`. `shape` is the number of
/// stages and of micro-batches. A plan with one stage on each worker has the most even stages, and another plan those of
/// the shortest simulated step.
fn cut_of(costs: &Costs, schedule: &dyn Schedule, shape: (usize, usize), running: &Running) -> Result<Cut> {
    let (stages, micro_batches) = shape;
    let is_even = running.speeds.is_none() && stages == running.workers;
    if is_even || stages > costs.layers().len() {
        return Ok(costs.cut(stages)?);
    }
    // A plan that does not complete is refused later, with its reason.
    let Some(plan) = short_plan(schedule, stages, micro_batches) else { return Ok(costs.cut(stages)?) };
    let placement = plan.placement();
    let speeds = match &running.speeds {
        Some(speeds) => {
            let of_worker = worker_speeds(speeds, running.replicas, placement.workers())?;
            (0..stages).map(|stage| of_worker[placement.worker(stage)]).collect()
        }
        None => vec![1.0; stages],
    };
    Ok(costs.cut_of(&plan, &speeds)?)
}

/// Returns an error if `--device` lists more devices than there are workers, over all replicas.
fn check_devices(used: usize, workers: usize) -> Result<()> {
    ensure!(
        used <= workers,
        "--device: {used} devices for {workers} workers; name at most {workers}, or raise --stages or --replicas"
    );
    Ok(())
}

/// Returns the assumed costs of one stage per worker, with which `--schedule search` compares plans. Their unit is the
/// mean time of a forward pass. A backward pass takes twice as long as a forward pass, and each half of a split
/// backward pass as long as a forward pass. `speeds` holds the relative speed of every worker.
fn stage_costs(costs: Option<&Costs>, speeds: &[f64]) -> Result<PlanCosts> {
    let workers = speeds.len();
    let Some(costs) = costs else { return Ok(PlanCosts::uniform(workers, 1.0, 2.0)) };
    let layers = costs.layers();
    let work = |layer: usize| match layers[layer].time {
        Some(time) => time.as_secs_f64() / 3.0,
        None => layers[layer].flops,
    };
    let ranges = costs.cut_for(speeds)?.ranges(layers.len())?;
    let forward = |(range, speed): (Range<usize>, &f64)| range.map(work).sum::<f64>() / speed;
    let forwards: Vec<f64> = ranges.into_iter().zip(speeds).map(forward).collect();
    let mean = forwards.iter().sum::<f64>() / workers as f64;
    ensure!(mean > 0.0, "--schedule search: no layer of the model reports FLOPs; give --cut measured");
    let stages = forwards.into_iter().map(|forward| StageCost::new(forward / mean, forward / mean, forward / mean));
    Ok(PlanCosts::by_stage(stages.collect()))
}

/// A published schedule with the number of stages per worker that `--chunks` gives, instead of its default.
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
    /// Returns the device of every stage, as one list of stages for each replica. The workers of all replicas share the
    /// devices evenly, and all stages of a worker are on its device.
    ///
    /// # Errors
    /// Returns an error if the schedule has no plan for these numbers of stages and micro-batches, or if `--device`
    /// lists more devices than there are workers.
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

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use burn::tensor::Tensor;

    use super::*;
    use crate::support::counted_row;

    /// Tests when the layers of a model are run to find their FLOPs. With a list as `--cut`, they are run only if FLOPs
    /// are needed, for example for a log or a schedule search. Without a list, they are always run.
    #[test]
    fn no_layer_is_run_for_a_list_cut_whose_flops_nobody_needs() {
        let counter = Arc::new(AtomicUsize::new(0));
        let row = counted_row(&counter);
        let forwards = |flags: &str, is_written: bool| {
            counter.store(0, Ordering::Relaxed);
            let (job, sample) = (Job::of_line(flags).unwrap(), Tensor::zeros([1, 2], &Device::flex()));
            let costs = costs(&row, sample, &job, Purpose::Training { is_written }).unwrap();
            assert_eq!((costs.layers().len(), costs.parameters()), (4, 4 * 6), "{flags}");
            counter.load(Ordering::Relaxed)
        };
        assert_eq!(forwards("--cut 0,2", false), 0);
        assert_eq!(forwards("--cut 0,2", true), 4);
        assert_eq!(forwards("--cut 0,2 --peak-tflops 1", false), 4);
        assert_eq!(forwards("--cut 0,2 --schedule search", false), 4);
        assert_eq!(forwards("", false), 4);
    }

    /// Tests a model whose pipeline is built without a training. Its layers are run only for `--cut measured` and for
    /// `--schedule search`.
    #[test]
    fn no_layer_is_run_for_the_cut_of_a_model_that_is_not_trained() {
        let counter = Arc::new(AtomicUsize::new(0));
        let row = counted_row(&counter);
        let forwards = |flags: &str| {
            counter.store(0, Ordering::Relaxed);
            let (job, sample) = (Job::of_line(flags).unwrap(), Tensor::zeros([1, 2], &Device::flex()));
            let costs = costs(&row, sample, &job, Purpose::Pipeline).unwrap();
            let planned = choose(&job.running, &job.training, Some(&costs)).unwrap();
            assert_eq!((costs.layers().len(), costs.parameters()), (4, 4 * 6), "{flags}");
            assert_eq!(planned.cut.unwrap().stages(), planned.stages, "{flags}");
            counter.load(Ordering::Relaxed)
        };
        assert_eq!(forwards("--stages 2"), 0);
        assert_eq!(forwards("--stages 2 --cut 0,3"), 0);
        assert_eq!(forwards("--stages 2 --peak-tflops 1"), 0);
        assert_eq!(forwards("--stages 2 --schedule search"), 4);
        assert!(forwards("--stages 2 --cut measured") > 4);
    }
}

#[cfg(test)]
mod speeds {
    use super::*;

    #[test]
    fn workers_on_one_device_share_its_speed() {
        assert_eq!(worker_speeds(&[3.0], 1, 3).unwrap(), [1.0, 1.0, 1.0]);
        assert_eq!(worker_speeds(&[1.0, 4.0], 1, 3).unwrap(), [0.5, 0.5, 4.0]);
        assert_eq!(worker_speeds(&[1.0, 2.0, 3.0], 1, 3).unwrap(), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn a_stage_is_as_slow_as_its_slowest_replica() {
        assert_eq!(worker_speeds(&[1.0, 4.0, 2.0, 3.0], 2, 2).unwrap(), [1.0, 3.0]);
    }

    #[test]
    fn more_devices_than_workers_are_rejected() {
        let error = worker_speeds(&[1.0; 3], 1, 2).unwrap_err().to_string();
        assert!(error.contains("3 devices for 2 workers"), "{error}");
    }
}
