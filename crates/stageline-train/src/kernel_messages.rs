//! Terminal messages about GPU kernels. [`Compiling`] says that GPUs compile kernels before the first step, and whether
//! they also autotune them. [`after_the_first_step`] logs each GPU's reserved device memory beside the estimate.

use std::time::Instant;

use anyhow::Result;
use burn::tensor::Device;
use stageline::{DeviceMemory, DeviceName};

use crate::terminal::say;

/// Tells the user that GPUs compile a training step's kernels before the first step. Prints a line when the compilation
/// begins, and another when it ends, with the time that it took in seconds.
#[must_use = "the end of the compilation is told by `end`"]
pub struct Compiling {
    gpus: Vec<Device>,
    began: Instant,
}

impl Compiling {
    /// Prints that the GPUs among `devices` begin to compile kernels. For this host's GPUs, the line also says whether
    /// kernels are tuned. Prints nothing if there are no GPUs.
    ///
    /// # Errors
    /// Returns an error if a line cannot be written to the standard output.
    pub fn begin(devices: &[Device]) -> Result<Self> {
        let gpus = each_once(devices, DeviceName::is_gpu);
        let (here, lent): (Vec<_>, Vec<_>) = gpus.iter().partition(|gpu| DeviceMemory::of(gpu).is_some());
        let names = |gpus: Vec<&Device>| gpus.into_iter().map(DeviceName::shown).collect::<Vec<_>>();
        for line in compiling(&names(here), &names(lent), DeviceName::tunes_kernels()) {
            say(line)?;
        }
        Ok(Self { gpus, began: Instant::now() })
    }

    /// Prints how many seconds the compilation took, and the device memory of each of this host's GPUs. Prints nothing
    /// if there are no GPUs.
    ///
    /// # Errors
    /// Returns an error if a line cannot be written to the standard output.
    pub fn end(self) -> Result<()> {
        if self.gpus.is_empty() {
            return Ok(());
        }
        say(format_args!("the kernels are ready after {:.1} s", self.began.elapsed().as_secs_f64()))?;
        for gpu in &self.gpus {
            if let Some(memory) = DeviceMemory::of(gpu) {
                let memory = shown(memory.total, memory.reserved, memory.in_use);
                say(format_args!("{}: {memory}", DeviceName::shown(gpu)))?;
            }
        }
        Ok(())
    }
}

/// Returns the lines that say which GPUs begin to compile kernels. `here` are the names of this host's GPUs, `tunes` is
/// whether their kernels are also autotuned, and `lent` are the names of other hosts' GPUs.
fn compiling(here: &[String], lent: &[String], tunes: bool) -> Vec<String> {
    let faster = if cfg!(target_os = "macos") { "metal" } else { "vulkan" };
    let mut lines = Vec::new();
    if !here.is_empty() {
        let names = here.join(", ");
        lines.push(if tunes {
            format!("compiling and tuning kernels for {names} ...")
        } else {
            format!(
                "compiling kernels for {names}, without fusing or tuning them, or keeping them for the next run; a build with \
                 `--features {faster}` does, and is faster ..."
            )
        });
    }
    if !lent.is_empty() {
        lines.push(format!("compiling kernels for {} ...", lent.join(", ")));
    }
    lines
}

/// Returns this host's GPUs among the given devices, without duplicates.
pub fn gpus(devices: &[Device]) -> Vec<Device> {
    each_once(devices, |device| DeviceMemory::of(device).is_some())
}

/// Returns the devices that satisfy the predicate `is_one`, in order and without duplicates.
fn each_once(devices: &[Device], is_one: impl Fn(&Device) -> bool) -> Vec<Device> {
    let mut found: Vec<Device> = Vec::new();
    for device in devices {
        if !found.contains(device) && is_one(device) {
            found.push(device.clone());
        }
    }
    found
}

/// Logs how much device memory each of this host's GPUs has reserved after the first step, beside the estimate.
/// `estimated` holds each device's estimated peak of allocated memory, in bytes.
pub fn after_the_first_step(estimated: &[(Device, u64)]) {
    for (device, bytes) in estimated {
        if let Some(memory) = DeviceMemory::of(device) {
            tracing::info!("{}: {}", DeviceName::shown(device), beside_the_estimate(memory.reserved, *bytes));
        }
    }
}

/// Returns a log line that compares a GPU's reserved memory with the estimate of its allocated memory, both in bytes.
fn beside_the_estimate(reserved: u64, estimated: u64) -> String {
    let [reserved, estimated] = [reserved, estimated].map(|bytes| bytes as f64 / 1e6);
    let times = reserved / estimated;
    format!("{reserved:.1} MB reserved after the first step, {times:.2} times the estimate of {estimated:.1} MB in use")
}

/// Formats a GPU's allocated, reserved and (if known) total device memory in MB. The arguments are in bytes.
fn shown(total: Option<u64>, reserved: u64, in_use: u64) -> String {
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let size = total.map(|total| format!(" of {}", megabytes(total))).unwrap_or_default();
    format!("{} in use, {} reserved{size}", megabytes(in_use), megabytes(reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_gpu_is_shown_with_its_size_if_that_is_known() {
        assert_eq!(shown(None, 3_000_000, 2_500_000), "2.5 MB in use, 3.0 MB reserved");
        assert_eq!(shown(Some(80_000_000), 3_000_000, 0), "0.0 MB in use, 3.0 MB reserved of 80.0 MB");
    }

    #[test]
    fn reserved_memory_is_shown_as_a_multiple_of_the_estimate() {
        let expected = "3.0 MB reserved after the first step, 1.50 times the estimate of 2.0 MB in use";
        assert_eq!(beside_the_estimate(3_000_000, 2_000_000), expected);
    }

    #[test]
    fn the_start_says_whether_kernels_are_tuned() {
        let [here, lent] = ["wgpu:0", "ws://gpu:1/0"].map(|name| [name.to_owned()]);
        let tuned = compiling(&here, &lent, true);
        let expected = ["compiling and tuning kernels for wgpu:0 ...", "compiling kernels for ws://gpu:1/0 ..."];
        assert_eq!(tuned, expected);
        let plain = compiling(&here, &[], false);
        assert!(plain.len() == 1 && plain[0].starts_with("compiling kernels for wgpu:0, without fusing"), "{plain:?}");
        assert!(plain[0].contains("--features "), "{plain:?}");
        assert!(compiling(&[], &[], true).is_empty());
    }

    #[test]
    #[cfg(feature = "flex")]
    fn a_cpu_compiles_no_kernels() {
        let cpu = DeviceName::Cpu.open().unwrap();
        assert!(Compiling::begin(&[cpu.clone(), cpu]).unwrap().gpus.is_empty());
    }
}
