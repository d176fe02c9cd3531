//! The kind of kernels on each device of a remote host ([`ServedKernels`]), as the host's server reported it.

use burn::backend::Remote;
use burn::backend::tensor::Device;
use burn::tensor::DType;
use parking_lot::RwLock;

/// The kind of kernels that a server runs on one of its devices for the operations of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedKernels {
    /// The server runs its CPU kernels on the device. They compute in f32 only.
    Cpu,
    /// The server runs its GPU kernels on the device. They compute in f32, and in bf16 and f16 if the GPU supports
    /// them.
    Gpu {
        /// Largest head dimension that FlashAttention supports on the GPU; 0 if the GPU cannot run FlashAttention, so
        /// that attention stores its scores.
        largest_head: usize,
    },
}

impl ServedKernels {
    /// Encodes this kind of kernels as one number, which a server sends to its clients: 1 for CPU kernels, or 2 plus
    /// `largest_head`, the largest head dimension that FlashAttention supports, for GPU kernels.
    pub fn number(self) -> f32 {
        match self {
            Self::Cpu => 1.0,
            Self::Gpu { largest_head } => 2.0 + largest_head as f32,
        }
    }

    /// Decodes the kind of kernels from a number that [`number`](Self::number) returned; `None` for other numbers, such
    /// as 0.
    pub fn from_number(number: f32) -> Option<Self> {
        if number == 1.0 {
            Some(Self::Cpu)
        } else if number >= 2.0 {
            Some(Self::Gpu { largest_head: number as usize - 2 })
        } else {
            None
        }
    }

    /// Returns a string that describes these kernels to the user: their devices (CPUs or GPUs), their dtypes and, on
    /// GPUs, whether attention stores its scores. `computes_in` says whether a GPU supports a dtype; WebGPU, for
    /// example, has no bf16.
    pub fn describe(self, computes_in: impl Fn(DType) -> bool) -> String {
        let Self::Gpu { largest_head } = self else { return "Stageline's kernels for CPUs, in f32".to_owned() };
        let half = [("bf16", DType::BF16), ("f16", DType::F16)].into_iter().filter(|(_, dtype)| computes_in(*dtype));
        let types = match half.map(|(name, _)| name).collect::<Vec<_>>()[..] {
            [] => "f32".to_owned(),
            [one] => format!("f32 and {one}"),
            ref all => format!("f32, {}", all.join(" and ")),
        };
        let scores = match largest_head {
            0 => "attention stores its scores".to_owned(),
            _ => format!("attention stores no scores for heads of up to {largest_head} elements"),
        };
        format!("Stageline's kernels for GPUs, in {types}; {scores}")
    }
}

/// Kinds of kernels on the connected devices of remote hosts, as their servers reported them.
static KERNELS: RwLock<Vec<(Device<Remote>, ServedKernels)>> = RwLock::new(Vec::new());

/// Records which kind of kernels a server runs on a device of a remote host. Without this record, layers use burn's own
/// operations on the device.
pub fn set_kernels(device: &Device<Remote>, kernels: ServedKernels) {
    let mut devices = KERNELS.write();
    devices.retain(|(other, _)| other != device);
    devices.push((device.clone(), kernels));
}

/// Returns the kind of kernels that [`set_kernels`] recorded for a device on another host; `None` if it recorded none.
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

    #[test]
    fn kernels_are_described_with_the_types_of_their_device() {
        assert_eq!(ServedKernels::Cpu.describe(|_| true), "Stageline's kernels for CPUs, in f32");
        let gpu = ServedKernels::Gpu { largest_head: 256 };
        let scores = "attention stores no scores for heads of up to 256 elements";
        assert_eq!(gpu.describe(|_| true), format!("Stageline's kernels for GPUs, in f32, bf16 and f16; {scores}"));
        let without_bf16 = gpu.describe(|dtype| dtype != DType::BF16);
        assert_eq!(without_bf16, format!("Stageline's kernels for GPUs, in f32 and f16; {scores}"));
        let none = ServedKernels::Gpu { largest_head: 0 }.describe(|_| false);
        assert_eq!(none, "Stageline's kernels for GPUs, in f32; attention stores its scores");
    }
}
