//! Rejects a model whose parameters alone do not fit into memory, before any of them is initialised or read.

use anyhow::{Result, ensure};
use burn::tensor::Device;
use stageline::{DeviceName, OptimizerState, ParameterCount};

use crate::memory::available::{is_host, memory_of, memory_of_all};
use crate::memory::check::adafactor;
use crate::settings::job::Job;
use crate::settings::values::OptimizerName;

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
    let has_states = matches!(job.training.optimizer, OptimizerName::Adamw | OptimizerName::Lion | OptimizerName::Muon);
    let mut remedies = smaller_or_elsewhere(resumed, smaller);
    if has_states && !devices.iter().any(is_host) {
        remedies.push("try --optimizer-state host");
    }
    let leaner = format!("try {}", adafactor(job));
    if has_states && !resumed {
        remedies.push(&leaner);
    }
    let what = format!("{} parameters and their optimizer states", trained + frozen);
    refuse_too_large(job, &devices, &what, needs, &remedies)
}

/// Rejects a model that is used without training if its parameters exceed the devices' total memory, before any
/// parameter is initialised or read. `smaller` and `resumed` are as for [`refuse_too_many_parameters`].
///
/// # Errors
/// Returns an error that proposes remedies if the parameters do not fit. Checks nothing if the memory of a device is
/// unknown, such as that of a device on another host.
pub fn refuse_too_large_model(job: &Job, parameters: ParameterCount, resumed: bool, smaller: &str) -> Result<()> {
    let ParameterCount { trained, frozen, frozen_bytes } = parameters;
    let needs = trained.saturating_mul(size_of::<f32>() as u64).saturating_add(frozen_bytes);
    let what = format!("{} parameters", trained + frozen);
    refuse_too_large(job, &job.running.devices, &what, needs, &smaller_or_elsewhere(resumed, smaller))
}

/// Returns the first remedies for a model that does not fit into memory: `smaller`, or others for a resumed run.
fn smaller_or_elsewhere(resumed: bool, smaller: &str) -> Vec<&str> {
    if resumed { vec!["free memory", "resume on another host"] } else { vec![smaller] }
}

/// Rejects `needs` bytes for `what` if they exceed the total memory of `devices`. Checks nothing if the memory of a
/// device is unknown.
fn refuse_too_large(job: &Job, devices: &[Device], what: &str, needs: u64, remedies: &[&str]) -> Result<()> {
    let Some(has) = memory_of_all(devices, |device| memory_of(device, job, 0)) else { return Ok(()) };
    ensure!(
        needs <= has,
        "{what} need at least {:.3} GB, and there are {:.3} GB: {}",
        needs as f64 / 1e9,
        has as f64 / 1e9,
        remedies.join(", or ")
    );
    Ok(())
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

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
        // Without a training, every parameter needs 4 bytes.
        let untrained = |trained| {
            let parameters = ParameterCount { trained, frozen: 0, frozen_bytes: 0 };
            refuse_too_large_model(&job, parameters, false, "take a smaller model")
        };
        assert!(untrained(1_000_000).is_ok());
        let refused = untrained(1_000_001).unwrap_err().to_string();
        let expected = "1000001 parameters need at least 0.004 GB, and there are 0.004 GB: take a smaller model";
        assert_eq!(refused, expected);
    }
}
