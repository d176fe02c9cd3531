//! The widest float dtype of a device, for sums of many values ([`widest_float`]).

use burn::tensor::{Device, FloatDType};
use parking_lot::RwLock;

/// A cache of whether each device supports f64, for the devices that were queried so far. Without it, every query to a
/// device on another host would need a network round trip.
static ASKED: RwLock<Vec<(Device, bool)>> = RwLock::new(Vec::new());

/// Returns the dtype for sums of many values on a device: f64 if the device supports it, and f32 otherwise. Many GPUs
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
