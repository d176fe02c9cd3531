//! Whether there is memory for what is asked.

use anyhow::{Error, Result, anyhow, ensure};
use burn::tensor::Device;
use stageline::{DeviceName, DoesNotFit, Lever, MemoryEstimate, Pipeline, Recompute};
use sysinfo::System;

use crate::cut::{self, Bytes};
use crate::flags::{FlushName, OptimizerName, RecomputeName};
use crate::job::{Job, LARGEST, Training};
use crate::text::Source;

/// Bytes a parameter that a stage holds in the flush: itself and what the optimizer remembers, and with rollback both once more, as
/// they were. (Gradients go as the new ones come.)
fn at_least(optimizer: OptimizerName, rollback: bool) -> u64 {
    let times = if rollback { 2 } else { 1 };
    match optimizer {
        OptimizerName::Adamw => times * 4 * (1 + 2),
        // Rows and columns are little.
        OptimizerName::Adafactor => times * 4,
    }
}

/// Refuses what parameters alone are too many for, before there are any.
pub fn refuse_too_many_parameters(job: &Job, resumed: bool) -> Result<()> {
    let cuts = cut::cut(job.shape, job.running.devices.len())?;
    let parameters: u64 = cut::layers(job.shape, &cuts).iter().map(|layer| layer.parameters).sum();
    let (needs, has) = (parameters.saturating_mul(at_least(job.training.optimizer, job.running.rollback)), has(job, 0));
    let way_out = match (resumed, job.training.optimizer) {
        (true, _) => "free memory, or go on with it elsewhere",
        (false, OptimizerName::Adamw) => "lower --width or --layers, or try --optimizer adafactor",
        (false, OptimizerName::Adafactor) => "lower --width or --layers",
    };
    // Stages on GPUs share nothing that is known here.
    let on_the_host = job.running.devices.iter().all(is_host);
    ensure!(
        !on_the_host || needs <= has,
        "{parameters} parameters need at least {:.1} MB, with what the optimizer remembers, and there are {:.1} MB: {way_out}",
        needs as f64 / 1e6,
        has as f64 / 1e6
    );
    Ok(())
}

/// Refuses what will not fit, before it is trained; gives what steps will hold, where that can be known.
pub fn estimate(
    pipeline: &mut Pipeline<Bytes, Bytes>,
    text: &Source,
    job: &Job,
    (step, resumed): (usize, bool),
) -> Result<Option<MemoryEstimate>> {
    let Training { batch_size, micro_batch_size: rows, .. } = job.training;
    let fits = |estimate: &MemoryEstimate| check(estimate, job, resumed);
    let auto = job.running.recompute == RecomputeName::Auto;
    let of_steps = |estimate: MemoryEstimate| match job.running.flush {
        FlushName::Together => estimate,
        FlushName::Ahead => estimate.of_overlapping_steps(),
    };
    // Of micro-batches of so many rows, and of half of them: what does not grow with the rows is the same in both.
    let with = |pipeline: &mut Pipeline<Bytes, Bytes>, rows: usize| {
        let mut of = |rows| {
            Ok::<_, Error>(
                pipeline.estimate_memory(text.batch(step, batch_size / job.training.micro_batch_size * rows)?)?,
            )
        };
        let (all, half) = (of(rows)?, rows / 2);
        let Some(fewer) = (if half > 0 { of(half)? } else { None }) else { return Ok::<_, Error>(all) };
        Ok(all.map(|all| all.beside(&fewer, half as f64 / rows as f64)))
    };
    let from_two_rows = |pipeline: &mut Pipeline<Bytes, Bytes>| {
        Ok(with(pipeline, 2)?.map(|two| of_steps(two.with_rows_times(rows as f64 / 2.0))))
    };
    let from_all = |pipeline: &mut Pipeline<Bytes, Bytes>| {
        if !auto {
            return Ok(with(pipeline, rows)?.map(of_steps));
        }
        let batch = text.batch(step, batch_size)?;
        let there_is_room = |estimate: &MemoryEstimate| Room::of(&of_steps(estimate.clone()), job).is_enough();
        let found = pipeline.recompute_to_fit(&batch, there_is_room)?;
        ensure!(found.is_some(), "--recompute auto: {UNKNOWN}; say what is computed again");
        for (stage, recompute) in pipeline.recompute().iter().enumerate() {
            println!("stage {stage} computes {recompute} again");
        }
        Ok(found.map(of_steps))
    };
    // Two rows, before a whole micro-batch is tried for which there may be no room.
    if rows > 2 && !auto {
        refuse(pipeline, from_two_rows, fits)?;
    }
    let found = refuse(pipeline, from_all, fits)?;
    ensure!(found.is_some() || job.running.memory.is_none(), "--memory: {UNKNOWN}; leave it out");
    Ok(found)
}

/// Why there is no estimate.
const UNKNOWN: &str = "what these devices hold is not known, as that of other hosts is not";

/// What steps hold, unless that does not fit.
fn refuse(
    pipeline: &mut Pipeline<Bytes, Bytes>,
    estimate: impl Fn(&mut Pipeline<Bytes, Bytes>) -> Result<Option<MemoryEstimate>>,
    fits: impl Fn(&MemoryEstimate) -> Result<(), Box<DoesNotFit>>,
) -> Result<Option<MemoryEstimate>> {
    let Some(found) = estimate(pipeline)? else { return Ok(None) };
    if fits(&found).is_ok() {
        return Ok(Some(found));
    }
    // The run ends here, so it does not matter what it would compute again.
    pipeline.set_recompute(Recompute::Full);
    let Some(recomputed) = estimate(pipeline)? else { return Ok(None) };
    fits(&found.or_recomputed(recomputed)).map_err(|refused| anyhow!("{}", explain(&refused)))?;
    Ok(None)
}

fn check(estimate: &MemoryEstimate, job: &Job, resumed: bool) -> Result<(), Box<DoesNotFit>> {
    let rows = job.training.micro_batch_size;
    let takes = |lever: &Lever| match lever {
        Lever::SmallerMicroBatches { micro_batches, .. } => *micro_batches <= LARGEST,
        Lever::MoreStages { stages } => *stages <= job.shape.layers,
        // What is remembered of each parameter is another optimizer's.
        Lever::LeanerOptimizer => !resumed && job.training.optimizer == OptimizerName::Adamw,
        _ => true,
    };
    let room = Room::of(estimate, job);
    room.needed.check(|device| room.on(device), (job.running.schedule, rows), takes)
}

/// What is needed, and what there is.
struct Room<'a> {
    needed: MemoryEstimate,
    /// What the pipeline has already, in bytes.
    held: u64,
    job: &'a Job,
}

impl<'a> Room<'a> {
    fn of(estimate: &MemoryEstimate, job: &'a Job) -> Self {
        let held = estimate.workers().iter().map(|worker| worker.other + worker.parameters).sum();
        let needed = match job.keeping.folder {
            Some(_) => estimate.with_checkpoints(),
            None => estimate.clone(),
        };
        Self { needed, held, job }
    }

    /// None where nobody knows.
    fn on(&self, device: &Device) -> Option<u64> {
        (is_host(device) || self.job.running.memory.is_some()).then(|| has(self.job, self.held))
    }

    fn is_enough(&self) -> bool {
        self.needed.fits(|device| self.on(device))
    }
}

fn explain(refused: &DoesNotFit) -> String {
    let flag = |lever: &Lever| match lever {
        Lever::SmallerMicroBatches { rows, micro_batches } => {
            format!("--micro-batch-size {rows} --micro-batches {micro_batches}")
        }
        Lever::Recompute => "--recompute full".to_owned(),
        Lever::OneFOneB => "--schedule 1f1b".to_owned(),
        Lever::OneStage => "--stages 1".to_owned(),
        Lever::MoreStages { stages } => format!("--stages {stages} --device D (so many of them)"),
        Lever::LeanerOptimizer => "--optimizer adafactor".to_owned(),
        other => other.to_string(),
    };
    refused.explain(flag, " ")
}

/// What a device has, in bytes: as it was said, or for the host what is free, and what is held already.
fn has(job: &Job, held: u64) -> u64 {
    if let Some(memory) = job.running.memory {
        return memory;
    }
    let mut system = System::new();
    system.refresh_memory();
    let of_group = system.cgroup_limits().map_or(u64::MAX, |group| group.total_memory.saturating_sub(group.rss));
    system.available_memory().min(of_group).saturating_add(held)
}

fn is_host(device: &Device) -> bool {
    DeviceName::Cpu.open().is_ok_and(|host| host == *device)
}
