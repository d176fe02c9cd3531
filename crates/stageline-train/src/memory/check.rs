//! Rejects a training job that would run out of memory, before its first step.

use anyhow::{Error, Result, anyhow, ensure};
use burn::tensor::Device;
use stageline::{
    DeviceMemory, DeviceName, DoesNotFit, Lever, MemoryEstimate, OptimizerState, ParameterCount, Payload, Pipeline,
    Recompute,
};
use sysinfo::System;

use crate::data::Data;
use crate::kernel_messages::Compiling;
use crate::memory::batches::BatchMemory;
use crate::memory::unknown_size::tell_of_unknown_sizes;
use crate::plan::Planned;
use crate::settings::check::LARGEST;
use crate::settings::job::Job;
use crate::settings::running::distinct;
use crate::settings::values::{CutBy, FlushName, OptimizerName, RecomputeBy};
use crate::terminal::say;

/// Returns the minimum memory, in bytes, per trained parameter in the flush (the end-of-step phase with gradient
/// clipping and the optimizer step): its f32 value and its optimizer state. With `rollback`, both count twice, because
/// the stage keeps copies. Gradients do not count, because they are freed.
fn least_flush_bytes(optimizer: OptimizerName, rollback: bool) -> u64 {
    let times = if rollback { 2 } else { 1 };
    match optimizer {
        OptimizerName::Adamw => times * 4 * (1 + 2),
        // Muon has one state value for each element of a matrix. AdamW, which steps all other parameters, has two.
        OptimizerName::Lion | OptimizerName::Muon => times * 4 * (1 + 1),
        // Adafactor's row and column statistics are small, and plain SGD has no state.
        OptimizerName::Adafactor | OptimizerName::Sgd => times * 4,
    }
}

/// Rejects a model whose parameters and optimizer state alone exceed the devices' total memory, before any parameter is
/// initialised. Host memory counts too if it stores the optimizer state. A frozen parameter counts with its stored
/// (perhaps quantized) value only. `smaller` is the error's advice on how to make the model smaller; a `resumed` run,
/// whose model is fixed, gets other advice.
///
/// # Errors
/// Returns an error that proposes remedies if the parameters do not fit. Checks nothing if the memory of a device is
/// unknown, such as that of a device on another host.
pub fn refuse_too_many_parameters(job: &Job, parameters: ParameterCount, resumed: bool, smaller: &str) -> Result<()> {
    let ParameterCount { trained, frozen, frozen_bytes } = parameters;
    let bytes = least_flush_bytes(job.training.optimizer, job.running.rollback);
    let needs = trained.saturating_mul(bytes).saturating_add(frozen_bytes);
    let on_host = job.running.optimizer_state == OptimizerState::Host;
    let host = if on_host { DeviceName::Cpu.open().ok() } else { None };
    let devices: Vec<_> = job.running.devices.iter().cloned().chain(host).collect();
    let Some(has) = memory_of_all(&devices, |device| memory_of(device, job, 0)) else { return Ok(()) };
    let has_states = matches!(job.training.optimizer, OptimizerName::Adamw | OptimizerName::Lion | OptimizerName::Muon);
    let mut remedies = if resumed { vec!["free memory", "resume on another host"] } else { vec![smaller] };
    if has_states && !devices.iter().any(is_host) {
        remedies.push("try --optimizer-state host");
    }
    let leaner = format!("try {}", adafactor(job));
    if has_states && !resumed {
        remedies.push(&leaner);
    }
    ensure!(
        needs <= has,
        "{} parameters and their optimizer states need at least {:.3} GB, and there are {:.3} GB: {}",
        trained + frozen,
        needs as f64 / 1e9,
        has as f64 / 1e9,
        remedies.join(", or ")
    );
    Ok(())
}

/// Returns the total memory of `devices`, in bytes; `None` if that of any device is unknown. `of` returns one device's
/// memory. A device that is listed several times counts once.
fn memory_of_all(devices: &[Device], of: impl Fn(&Device) -> Option<u64>) -> Option<u64> {
    distinct(devices).map(of).try_fold(0_u64, |sum, memory| Some(sum.saturating_add(memory?)))
}

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
fn adafactor(job: &Job) -> String {
    let is_set = |name: &&str| job.settings.0.contains_key(*name);
    let rejected: Vec<_> =
        ["beta1", "beta2", "epsilon"].iter().filter(|name| is_set(name)).map(|name| format!("--{name}")).collect();
    let without = if rejected.is_empty() { String::new() } else { format!(" without {}", rejected.join(" and ")) };
    format!("--optimizer adafactor{without}")
}

/// Returns the memory of `device` available to the job, in bytes; `None` if unknown.
/// - With `--memory`: the flag's value.
/// - This host's CPU: the free memory plus `in_use`, the bytes that the job has already allocated on the host.
/// - A GPU: its total memory.
fn memory_of(device: &Device, job: &Job, in_use: u64) -> Option<u64> {
    match job.running.memory {
        Some(memory) => Some(memory),
        None if is_host(device) => Some(free_memory().saturating_add(in_use)),
        None => DeviceMemory::of(device)?.total,
    }
}

/// Returns this host's free memory in bytes, limited by its cgroup.
fn free_memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let free_in_cgroup = system.cgroup_limits().map_or(u64::MAX, |group| group.total_memory.saturating_sub(group.rss));
    system.available_memory().min(free_in_cgroup)
}

/// Whether a device is the CPU of this host.
fn is_host(device: &Device) -> bool {
    DeviceName::Cpu.open().is_ok_and(|host| host == *device)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_listed_twice_counts_once() {
        let cpu = DeviceName::Cpu.open().unwrap();
        let devices = [cpu.clone(), cpu];
        assert_eq!(memory_of_all(&devices, |_| Some(7)), Some(7));
        assert_eq!(memory_of_all(&devices, |_| None), None);
    }

    #[test]
    fn parameters_that_do_not_fit_into_a_known_memory_are_refused() {
        let job = Job::of_line("--memory 0.004").unwrap();
        let check = |trained, frozen| {
            let parameters = ParameterCount { trained, frozen, frozen_bytes: 4 * frozen };
            refuse_too_many_parameters(&job, parameters, false, "try --width 8")
        };
        let refused = check(1_000_000, 0).unwrap_err().to_string();
        assert!(refused.starts_with("1000000 parameters and their optimizer states need at least "), "{refused}");
        assert!(refused.contains("and there are 0.004 GB: try --width 8"), "{refused}");
        assert!(check(100, 0).is_ok());
        // A frozen parameter needs 4 bytes, and a trained one 24 with AdamW and rollback.
        assert!(check(1_000, 990_000).is_ok());
        assert!(check(1_000, 1_000_000).is_err());
    }
}
