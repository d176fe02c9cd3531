//! Rejects a training job that would run out of memory, before its first step.

use anyhow::{Error, Result, anyhow, ensure};
use burn::tensor::Device;
use stageline::{DoesNotFit, Lever, MemoryEstimate, Payload, Pipeline, Recompute};

use crate::data::Data;
use crate::kernel_messages::Compiling;
use crate::memory::available::{is_host, memory_of};
use crate::memory::batches::BatchMemory;
use crate::memory::unknown_size::tell_of_unknown_sizes;
use crate::plan::Planned;
use crate::settings::check::LARGEST;
use crate::settings::job::Job;
use crate::settings::values::{CutBy, FlushName, OptimizerName, RecomputeBy};
use crate::terminal::say;

/// Estimates the memory that a training step needs on each device, and rejects a job that does not fit. With
/// `--recompute auto`, also chooses the smallest amount of activation recomputation that fits.
///
/// Measures a training step and then rolls it back; GPUs compile and autotune their kernels in this step, as a message
/// says. Returns `None` if allocated memory cannot be measured.
///
/// # Errors
/// Returns an error that proposes other flags if the job does not fit. Also returns an error if there is no estimate,
/// but `--memory` or `--recompute auto` needs one.
pub fn estimate<Out: Payload, D: Data + ?Sized>(
    pipeline: &mut Pipeline<D::Input, Out, D::Target>,
    data: &D,
    training: &Demand,
) -> Result<Option<MemoryEstimate>> {
    // The measured step also compiles and autotunes the GPUs' kernels.
    let compiling = Compiling::begin(&training.job.running.devices)?;
    let estimated = rehearse(pipeline, data, training)?;
    compiling.end()?;
    if estimated.is_some() {
        tell_of_unknown_sizes(&training.job.running)?;
    }
    Ok(estimated)
}

/// Measures the memory of a training step, which is rolled back, and checks that the job fits into its devices' memory.
/// With `--recompute auto`, also chooses the smallest amount of activation recomputation that fits. Returns `None` if
/// allocated memory cannot be measured.
fn rehearse<Out: Payload, D: Data + ?Sized>(
    pipeline: &mut Pipeline<D::Input, Out, D::Target>,
    data: &D,
    training: &Demand,
) -> Result<Option<MemoryEstimate>> {
    let Demand { job, step, .. } = *training;
    let (batch_size, rows) = (job.training.batch_size, job.training.micro_batch_size);
    let fits = |estimate: &MemoryEstimate| training.check(estimate);
    let auto = job.running.recompute == RecomputeBy::Auto;
    let for_flush = |estimate: MemoryEstimate| match job.running.flush {
        FlushName::Together => estimate,
        FlushName::Ahead => estimate.of_overlapping_steps(),
    };
    // Measures micro-batches of `rows` and of `rows / 2` rows, to separate memory that grows with the rows from the
    // rest.
    let for_rows = |pipeline: &mut Pipeline<D::Input, Out, D::Target>, rows: usize| {
        let mut measure = |rows| {
            Ok::<_, Error>(
                pipeline.estimate_memory(data.batch(step, batch_size / job.training.micro_batch_size * rows)?)?,
            )
        };
        let (all, half) = (measure(rows)?, rows / 2);
        let Some(fewer) = (if half > 0 { measure(half)? } else { None }) else { return Ok::<_, Error>(all) };
        Ok(all.map(|all| all.beside(&fewer, half as f64 / rows as f64)))
    };
    let from_two_rows = |pipeline: &mut Pipeline<D::Input, Out, D::Target>| {
        Ok(for_rows(pipeline, 2)?.map(|two| for_flush(two.with_rows_times(rows as f64 / 2.0))))
    };
    let from_all = |pipeline: &mut Pipeline<D::Input, Out, D::Target>| {
        if !auto {
            return Ok(for_rows(pipeline, rows)?.map(for_flush));
        }
        let batch = data.batch(step, batch_size)?;
        let there_is_room = |estimate: &MemoryEstimate| Room::new(&for_flush(estimate.clone()), training).is_enough();
        let found = pipeline.recompute_to_fit(&batch, there_is_room)?;
        ensure!(found.is_some(), "--recompute auto: {UNMEASURED}; give none, selective or full");
        for (stage, recompute) in pipeline.recompute().iter().enumerate() {
            say(format_args!("stage {stage} recomputes {recompute}"))?;
        }
        Ok(found.map(for_flush))
    };
    // Micro-batches of two rows are tried first, because a full micro-batch could run out of memory.
    if rows > 2 && !auto {
        refuse(pipeline, job, from_two_rows, fits)?;
    }
    let found = refuse(pipeline, job, from_all, fits)?;
    ensure!(found.is_some() || job.running.memory.is_none(), "--memory: {UNMEASURED}; leave it out");
    Ok(found)
}

/// The reason why there is no memory estimate, for the errors of `--memory` and `--recompute auto`. An estimate
/// measures the allocated memory of a step.
const UNMEASURED: &str = "the memory of a step cannot be measured: the program does not count it with \
                          `CountingAllocator`, or stages are on other hosts";

/// Estimates the memory with `estimate`, and returns the estimate if `fits` accepts it, that is, if the job fits into
/// its devices' memory. Returns `None` if memory cannot be measured.
///
/// # Errors
/// Returns an error that proposes other flags if the job does not fit. The memory is then also estimated with full
/// activation recomputation, so that the error can propose it.
fn refuse<In: Payload, Out: Payload, Target: Payload>(
    pipeline: &mut Pipeline<In, Out, Target>,
    job: &Job,
    estimate: impl Fn(&mut Pipeline<In, Out, Target>) -> Result<Option<MemoryEstimate>>,
    fits: impl Fn(&MemoryEstimate) -> Result<(), Box<DoesNotFit>>,
) -> Result<Option<MemoryEstimate>> {
    let Some(found) = estimate(pipeline)? else { return Ok(None) };
    let Err(refused) = fits(&found) else { return Ok(Some(found)) };
    // The run ends here, so the recomputation policy need not be restored.
    pipeline.set_recompute(Recompute::Full);
    let Some(recomputed) = estimate(pipeline)? else { return Ok(None) };
    // If other programs have freed memory meanwhile, the job may fit. The first error, without the proposal of full
    // recomputation, is then returned.
    let refused = fits(&found.or_recomputed(recomputed)).err().unwrap_or(refused);
    Err(anyhow!("{}", explain(&refused, job)))
}

/// Inputs of the memory check: a training job's settings, plan and batch sizes, and the step to measure.
pub struct Demand<'a> {
    pub job: &'a Job,
    pub planned: &'a Planned,
    /// Maximum number of stages for this model; error messages do not propose more.
    pub most_stages: usize,
    /// Zero-based index of the run's first step, counted from the start of the training. The memory estimate uses this
    /// step's batch.
    pub step: usize,
    /// Whether the run resumes from a checkpoint.
    pub resumed: bool,
    /// Whether the run has optimizer states in memory at its start, because its checkpoint has an optimizer step.
    pub has_states: bool,
    /// Whether the program sets the optimizer in its code, so that the error must not propose flags for the optimizer
    /// or its state.
    pub owns_optimizer: bool,
    pub batches: BatchMemory,
}

impl Demand<'_> {
    /// Checks that a training job's estimated memory fits into the memory of its devices. The error proposes only
    /// settings that this job can change. For example, a resumed run cannot change its optimizer.
    fn check(&self, estimate: &MemoryEstimate) -> Result<(), Box<DoesNotFit>> {
        let (job, rows) = (self.job, self.job.training.micro_batch_size);
        let takes = |lever: &Lever| match lever {
            Lever::SmallerMicroBatches { micro_batches, .. } => *micro_batches <= LARGEST,
            Lever::MoreStages { workers } => workers * self.planned.stages / job.running.workers <= self.most_stages,
            // Only the program itself can change the stages of a model that is partitioned by hand.
            Lever::OneStage => self.planned.cut.is_some(),
            Lever::StatesOnHost => !self.owns_optimizer,
            // A resumed run cannot change its optimizer, because the checkpoint holds that optimizer's state.
            Lever::LeanerOptimizer => {
                !self.owns_optimizer && !self.resumed && job.training.optimizer == OptimizerName::Adamw
            }
            _ => true,
        };
        let room = Room::new(estimate, self);
        room.needed.check(|device| room.on(device), &*self.planned.schedule, rows, takes)
    }
}

/// A job's estimated memory, and the host memory that it already uses, to compare with the devices' memory.
struct Room<'a> {
    /// The job's memory on each device: the pipeline's estimate, the batches and, if checkpoints are on, the copies
    /// from which they are written.
    needed: MemoryEstimate,
    /// Host memory, in bytes, that the job had already allocated during the estimate: for CPU workers, held-out
    /// batches, and the optimizer states of a resumed run. `needed` includes it, so it is added to the host's free
    /// memory.
    in_use: u64,
    job: &'a Job,
}

impl<'a> Room<'a> {
    fn new(estimate: &MemoryEstimate, demand: &Demand<'a>) -> Self {
        let Demand { job, batches, .. } = *demand;
        let workers = estimate.workers().into_iter();
        let of_host: Vec<_> = workers.filter(|worker| is_host(&estimate.stages()[worker.stages[0]].device)).collect();
        let mut of_workers: u64 = of_host.iter().map(|worker| worker.other + worker.parameters).sum();
        if demand.has_states {
            of_workers += of_host.iter().map(|worker| worker.optimizer).sum::<u64>();
            of_workers += estimate.stages().iter().map(|stage| stage.optimizer_on_host).sum::<u64>();
        }
        let needed = estimate.with_host_memory(batches.total(job));
        let needed = if job.keeping.has_folder() { needed.with_checkpoints() } else { needed };
        Self { needed, in_use: of_workers + batches.held_out, job }
    }

    /// Returns the memory of `device` that is available to the training job, in bytes; `None` if unknown.
    fn on(&self, device: &Device) -> Option<u64> {
        memory_of(device, self.job, self.in_use)
    }

    fn is_enough(&self) -> bool {
        self.needed.fits(|device| self.on(device))
    }
}

/// Returns the error message for a job that exceeds a device's memory, with each proposed change as flags, such as
/// `--recompute full`. If batches are in the same memory, it also proposes a smaller `--read-ahead`. Where needed, a
/// proposal also changes the user's `--chunks` or `--cut` list.
fn explain(refused: &DoesNotFit, job: &Job) -> String {
    let running = &job.running;
    let is_listed = matches!(running.cut, CutBy::List(_));
    let cut = |value: &str| if is_listed { format!(" --cut {value}") } else { String::new() };
    let chunks = if running.chunks.is_some() { " --chunks 1" } else { "" };
    let flag = |lever: &Lever| match lever {
        Lever::SmallerMicroBatches { rows, micro_batches } => {
            format!("--micro-batch-size {rows} --micro-batches {micro_batches}")
        }
        Lever::Recompute => "--recompute full".to_owned(),
        Lever::OneFOneB => format!("--schedule 1f1b{chunks}"),
        Lever::OneStage => format!("--stages 1{}", cut("0")),
        Lever::MoreStages { workers } => format!("--stages {workers}{} --device D (so many of them)", cut("counted")),
        Lever::StatesOnHost => "--optimizer-state host".to_owned(),
        Lever::LeanerOptimizer => adafactor(job),
        other => other.to_string(),
    };
    let message = refused.explain(flag, " ");
    if refused.beside_workers == 0 {
        return message;
    }
    format!("{message}\na smaller --read-ahead keeps fewer batches in memory")
}

/// Returns the flags for the optimizer with the smallest state. They name the flags of AdamW that the job has and that
/// this optimizer rejects.
pub(super) fn adafactor(job: &Job) -> String {
    let is_set = |name: &&str| job.settings.0.contains_key(*name);
    let rejected: Vec<_> =
        ["beta1", "beta2", "epsilon"].iter().filter(|name| is_set(name)).map(|name| format!("--{name}")).collect();
    let without = if rejected.is_empty() { String::new() } else { format!(" without {}", rejected.join(" and ")) };
    format!("--optimizer adafactor{without}")
}
