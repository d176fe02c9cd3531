//! The kind of the kernels on each device of another host ([`ServedKernels`]), as the host's server reported it.

use burn::backend::Remote;
use burn::backend::tensor::Device;
use burn::tensor::DType;
use parking_lot::RwLock;

/// The kind of kernels that a server runs on one of its devices for the operations of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedKernels {
    /// The kernels for CPUs, which take tensors in f32.
    Cpu,
    /// The kernels for GPUs. They take tensors in f32, and in bf16 and f16 if the GPU computes in these types.
    Gpu {
        /// The largest head size, in elements, that FlashAttention supports on the GPU; 0 if it supports none.
        /// FlashAttention stores no attention scores.
        largest_head: usize,
    },
}

impl ServedKernels {
    /// Encodes this kind of kernels as one number, which a server sends to its clients. It is 1 for CPU kernels, and 2
    /// plus `largest_head` for GPU kernels. `largest_head` is the largest head size, in elements, that FlashAttention
    /// supports.
    pub fn number(self) -> f32 {
        match self {
            Self::Cpu => 1.0,
            Self::Gpu { largest_head } => 2.0 + largest_head as f32,
        }
    }

    /// Decodes a kind of kernels from the number that [`number`](Self::number) returned; `None` if the number stands
    /// for no kind of kernels, as 0 does.
    pub fn from_number(number: f32) -> Option<Self> {
        if number == 1.0 {
            Some(Self::Cpu)
        } else if number >= 2.0 {
            Some(Self::Gpu { largest_head: number as usize - 2 })
        } else {
            None
        }
    }

    /// Returns a text that describes these kernels to the user: their devices (CPUs or GPUs), their element types and,
    /// on GPUs, whether attention stores its scores. `computes_in` says whether a GPU computes in a type; WebGPU, for
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

/// The connected devices of other hosts, each with the kind of kernels that its server runs on it.
static KERNELS: RwLock<Vec<(Device<Remote>, ServedKernels)>> = RwLock::new(Vec::new());

/// Records the kind of kernels that the server of another host runs on a device. Without this record, layers use burn's
/// own operations on the device.
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
