//! The kind of the kernels on each device of another host ([`ServedKernels`]), as the host's server has named it.

use burn::backend::Remote;
use burn::backend::tensor::Device;
use burn::tensor::DType;
use parking_lot::RwLock;

/// The kind of the kernels with which a server computes the operations of layers on one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedKernels {
    /// The kernels for CPUs, which take tensors in f32.
    Cpu,
    /// The kernels for GPUs. They take tensors in f32, and in bf16 and f16 if the GPU computes in these types.
    Gpu {
        /// The largest size of a head, in elements, that the FlashAttention kernels, which store no attention scores,
        /// support on the GPU.
        largest_head: usize,
    },
}

impl ServedKernels {
    /// Returns the number with which a server tells a client which kernels a device has for attention and the other
    /// operations of layers. It is 1 for the kernels of a CPU. For those of a GPU it is 2 plus `largest_head`, the
    /// largest head (in elements) that FlashAttention supports there, so that one number carries both facts.
    pub fn number(self) -> f32 {
        match self {
            Self::Cpu => 1.0,
            Self::Gpu { largest_head } => 2.0 + largest_head as f32,
        }
    }

    /// Decodes a number that [`number`](Self::number) returned: returns the kernels that a device has for attention and
    /// the other operations of layers, and for a GPU also the largest head. Returns `None` if the number stands for no
    /// kernels.
    pub fn from_number(number: f32) -> Option<Self> {
        if number == 1.0 {
            Some(Self::Cpu)
        } else if number >= 2.0 {
            Some(Self::Gpu { largest_head: number as usize - 2 })
        } else {
            None
        }
    }

    /// Returns a text that tells the user at the start of a training what these kernels are: for CPUs or for GPUs, the
    /// element types that they take and, on GPUs, whether attention stores its scores. `computes_in` returns whether a
    /// GPU computes in a type; WebGPU, for example, has no bf16.
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

/// The connected devices of other hosts, each with the kind of the kernels that the host's server runs on it.
static KERNELS: RwLock<Vec<(Device<Remote>, ServedKernels)>> = RwLock::new(Vec::new());

/// Records which kind of kernels the server of another host runs on a device. Layers use burn's own operations on a
/// device of another host for which no kernels were recorded.
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
