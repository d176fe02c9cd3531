//! The float type for sums of many numbers on a device ([`widest_float`]).

use burn::tensor::{Device, FloatDType};
use parking_lot::RwLock;

/// The devices that were asked whether they compute in f64, each with its answer. The answers are stored because a
/// device of another host answers over the network.
static ASKED: RwLock<Vec<(Device, bool)>> = RwLock::new(Vec::new());

/// Returns f64 if a device computes in it, and f32 otherwise. Sums of many numbers are computed in this type. Many GPUs
/// have no f64, such as GPUs under Metal.
pub fn widest_float(device: &Device) -> FloatDType {
    let device = device.clone().inner();
    let known = ASKED.read().iter().find(|(asked, _)| *asked == device).map(|(_, computes)| *computes);
    let computes = known.unwrap_or_else(|| {
        let computes = device.supports_dtype(FloatDType::F64);
        ASKED.write().push((device, computes));
        computes
    });
    if computes { FloatDType::F64 } else { FloatDType::F32 }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_computes_in_f64() {
        let device = Device::flex();
        assert_eq!([&device, &device.clone().autodiff()].map(widest_float), [FloatDType::F64; 2]);
    }
}
