//! Tells the user that GPUs compile and tune kernels before the first step ([`Compiling`]), and how much of their
//! memory is in use afterwards.

use std::time::Instant;

use burn::tensor::Device;
use stageline::{DeviceMemory, DeviceName};

/// The part of a run's start in which GPUs compile and tune the kernels of a step. No step is timed meanwhile.
#[must_use = "the end of the compilation is told by `end`"]
pub struct Compiling {
    gpus: Vec<Device>,
    began: Instant,
}

impl Compiling {
    /// Prints that the GPUs among `devices` begin to compile and tune kernels; prints nothing if there are no GPUs.
    pub fn begin(devices: &[Device]) -> Self {
        let gpus = gpus(devices);
        if !gpus.is_empty() {
            let names: Vec<_> = gpus.iter().map(DeviceName::shown).collect();
            println!("compiling and tuning kernels for {} ...", names.join(", "));
        }
        Self { gpus, began: Instant::now() }
    }

    /// Prints how long GPUs took to compile and tune kernels, and the memory of every GPU afterwards; prints nothing if
    /// there are no GPUs.
    pub fn end(self) {
        if self.gpus.is_empty() {
            return;
        }
        println!("the kernels are ready after {:.1} s", self.began.elapsed().as_secs_f64());
        for gpu in &self.gpus {
            if let Some(memory) = DeviceMemory::of(gpu) {
                println!("{}: {}", DeviceName::shown(gpu), shown(memory.total, memory.reserved, memory.in_use));
            }
        }
    }
}

/// Returns the GPUs of this host among `devices`, each once.
pub fn gpus(devices: &[Device]) -> Vec<Device> {
    let mut gpus: Vec<Device> = Vec::new();
    for device in devices {
        if !gpus.contains(device) && DeviceMemory::of(device).is_some() {
            gpus.push(device.clone());
        }
    }
    gpus
}

/// Returns the memory of a GPU as text, given its size in bytes, if that is known, and the bytes that are reserved and
/// in use.
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
    #[cfg(feature = "flex")]
    fn a_cpu_compiles_no_kernels() {
        let cpu = DeviceName::Cpu.open().unwrap();
        assert!(Compiling::begin(&[cpu.clone(), cpu]).gpus.is_empty());
    }
}
