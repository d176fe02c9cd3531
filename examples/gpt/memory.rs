//! Whether there is memory for what is asked.

use anyhow::{Result, bail, ensure};
use burn::tensor::Device;
use stageline::{DeviceName, DoesNotFit, Lever, MemoryEstimate, Pipeline, Recompute};
use sysinfo::System;

use crate::cut::{self, Bytes};
use crate::flags::{Job, OptimizerName, RecomputeName};
use crate::text::Source;

/// Bytes a parameter that a stage holds in the flush: itself, its gradient, and what the optimizer remembers; and all but the
/// gradient once more, as before the step.
fn at_least(optimizer: OptimizerName) -> u64 {
    match optimizer {
        OptimizerName::Adamw => 4 * (1 + 1 + 2) + 4 * (1 + 2),
        // Rows and columns are little.
        OptimizerName::Adafactor => 4 * (1 + 1) + 4,
    }
}

/// Refuses what parameters alone are too many for, before there are any.
pub fn refuse_too_many_parameters(job: &Job) -> Result<()> {
    let cuts = cut::cut(job.shape, job.running.devices.len())?;
    let parameters: u64 = cut::layers(job.shape, &cuts).iter().map(|layer| layer.parameters).sum();
    let (needs, has) = (parameters.saturating_mul(at_least(job.training.optimizer)), has(job, 0));
    // Stages on GPUs share nothing that is known here.
    let on_the_host = job.running.devices.iter().all(is_host);
    ensure!(
        !on_the_host || needs <= has,
        "{parameters} parameters need at least {:.3} GB, with gradients and what the optimizer remembers, and there are {:.3} GB: lower \
         --width or --layers",
        needs as f64 / 1e9,
        has as f64 / 1e9
    );
    Ok(())
}

/// Refuses what will not fit, before it is trained; gives what steps will hold, where that can be known.
pub fn estimate(
    pipeline: &mut Pipeline<Bytes, Bytes>,
    text: &Source,
    job: &Job,
    step: usize,
) -> Result<Option<MemoryEstimate>> {
    let batch = text.batch(step, job.training.batch_size)?;
    let estimate = match job.running.recompute {
        RecomputeName::Auto => pipeline.recompute_to_fit(&batch, |estimate| check(estimate, job).is_ok())?,
        _ => pipeline.estimate_memory(batch.clone())?,
    };
    let Some(estimate) = estimate else { return Ok(None) };
    if check(&estimate, job).is_ok() {
        return Ok(Some(estimate));
    }
    pipeline.set_recompute(Recompute::Full);
    let recomputed = pipeline.estimate_memory(batch)?;
    let estimate = recomputed.map_or(estimate.clone(), |recomputed| estimate.or_recomputed(recomputed));
    match check(&estimate, job) {
        Ok(()) => Ok(Some(estimate)),
        Err(refused) => bail!("{}", explain(&refused)),
    }
}

fn check(estimate: &MemoryEstimate, job: &Job) -> Result<(), DoesNotFit> {
    let held = estimate.workers().iter().map(|worker| worker.other + worker.parameters).sum();
    let of_device = |device: &Device| (is_host(device) || job.running.memory.is_some()).then(|| has(job, held));
    let rows = job.training.batch_size / job.training.micro_batches;
    estimate.check(of_device, job.running.schedule, rows)
}

fn explain(refused: &DoesNotFit) -> String {
    let flag = |lever: &Lever| match lever {
        Lever::SmallerMicroBatches { rows, micro_batches } => {
            format!("--micro-batch-size {rows} --micro-batches {micro_batches}")
        }
        Lever::Recompute => "--recompute full".to_owned(),
        Lever::OneFOneB => "--schedule 1f1b".to_owned(),
        Lever::OneStage => "--stages 1".to_owned(),
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
