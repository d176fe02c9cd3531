//! The kernels of devices of other hosts ([`ServedKernels`]), as their servers have named them.

use std::fmt;

use burn::backend::Remote;
use burn::backend::tensor::Device;
use parking_lot::RwLock;

/// The kernels by which a server computes the operations of layers on one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedKernels {
    /// The device is a CPU of its host, whose kernels take f32.
    Cpu,
    /// The device is a GPU of its host, whose kernels take f32, bf16 and f16.
    Gpu {
        /// The largest number of elements of a head that the FlashAttention kernels, which store no attention scores,
        /// support on the GPU.
        largest_head: usize,
    },
}

impl ServedKernels {
    /// Returns the number by which a server names these kernels to a client. It is 1 for the kernels of a CPU. For
    /// those of a GPU it is `2 + largest_head`.
    pub fn number(self) -> f32 {
        match self {
            Self::Cpu => 1.0,
            Self::Gpu { largest_head } => 2.0 + largest_head as f32,
        }
    }

    /// Returns the kernels that a server named by a number; `None` if no kernels have this number.
    pub fn from_number(number: f32) -> Option<Self> {
        if number == 1.0 {
            Some(Self::Cpu)
        } else if number >= 2.0 {
            Some(Self::Gpu { largest_head: number as usize - 2 })
        } else {
            None
        }
    }
}

/// Displays the kind of the kernels (for CPUs or for GPUs) and the element types that they take, for messages at the
/// start of a training.
impl fmt::Display for ServedKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("Stageline's kernels for CPUs, in f32"),
            Self::Gpu { largest_head } => write!(
                f,
                "Stageline's kernels for GPUs, in f32, bf16 and f16; attention stores no scores for heads of up to \
                 {largest_head} elements"
            ),
        }
    }
}

/// The connected devices of other hosts, each with the kernels of its server.
static KERNELS: RwLock<Vec<(Device<Remote>, ServedKernels)>> = RwLock::new(Vec::new());

/// Records by which kernels the server of a device on another host computes the operations of layers. Layers use burn's
/// own operations on a device of another host whose kernels were not recorded.
pub fn set_kernels(device: &Device<Remote>, kernels: ServedKernels) {
    let mut devices = KERNELS.write();
    devices.retain(|(other, _)| other != device);
    devices.push((device.clone(), kernels));
}

/// Returns the recorded kernels of a device on another host; `None` if none were recorded.
pub(super) fn kernels_of(device: &Device<Remote>) -> Option<ServedKernels> {
    KERNELS.read().iter().find(|(other, _)| other == device).map(|(_, kernels)| *kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_numbers_and_other_numbers_are_refused() {
        for kernels in
            [ServedKernels::Cpu, ServedKernels::Gpu { largest_head: 0 }, ServedKernels::Gpu { largest_head: 256 }]
        {
            assert_eq!(ServedKernels::from_number(kernels.number()), Some(kernels));
        }
        for number in [0.0, -1.0, 1.5, f32::NAN] {
            assert_eq!(ServedKernels::from_number(number), None, "{number}");
        }
    }
}
