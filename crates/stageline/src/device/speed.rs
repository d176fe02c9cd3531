//! The relative speeds of devices, measured with short matrix products ([`device_speeds`]).

use std::hint::black_box;
use std::time::{Duration, Instant};

use burn::tensor::{Device, FloatDType, Tensor};

use crate::device::supported::computes_in;

/// Minimum duration (20 ms) of a timed run of matrix products that measures a device's speed. Shorter runs would be
/// distorted by kernel launches and by reading the result.
const LONG_ENOUGH: Duration = Duration::from_millis(20);
/// Smallest and largest number of rows of the square matrices that a device multiplies when its speed is measured.
const ROWS: [usize; 2] = [256, 4096];
/// Largest number of matrix products in one timed run when a device's speed is measured. With matrices of 4096 rows,
/// 1024 products take 140 ms on a device that computes 1 PFLOP/s.
const MOST_PRODUCTS: usize = 1024;
/// Number of timed runs for each speed measurement of matrix products; the shortest time counts.
const REPEATS: usize = 3;

/// Measures the relative speed of each device in matrix products in the dtype `dtype`. Returns one speed for each entry
/// of `devices`, in the same order; the slowest device has speed 1. A device that is listed several times is measured
/// once.
///
/// `dtype` should be the dtype of the training run's matrix products, because the ratio of two devices' speeds depends
/// on it: f32 in full precision, and otherwise the dtype of the run's [`Precision`](crate::Precision). A device that
/// does not support `dtype` is measured in f32.
///
/// The matrices are enlarged until one product takes 20 ms or they have 4096 rows. If the largest product is faster,
/// several products are timed together. Each size runs once untimed, so that its kernel is compiled and tuned. Each
/// device takes about a second to measure, or longer if it has to compile kernels. For a device of another host, the
/// measured time includes the wait for its answer.
///
/// # Panics
/// Panics if a device does not compute.
pub fn device_speeds(devices: &[Device], dtype: FloatDType) -> Vec<f64> {
    let mut measured: Vec<(Device, f64)> = Vec::new();
    for device in devices {
        if measured.iter().all(|(known, _)| known != device) {
            let is_supported = computes_in(device, dtype.into()).unwrap_or(false);
            let dtype = if is_supported { dtype } else { FloatDType::F32 };
            let speed = flops_per_second(|rows, products| time_of_products(device, dtype, rows, products));
            measured.push((device.clone(), speed));
        }
    }
    let speeds = devices.iter().filter_map(|device| measured.iter().find(|(known, _)| known == device));
    relative(&speeds.map(|(_, speed)| *speed).collect::<Vec<_>>())
}

fn relative(speeds: &[f64]) -> Vec<f64> {
    let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    speeds.iter().map(|speed| speed / slowest).collect()
}

/// Measures a device's FLOP/s in matrix products. `time(rows, products)` returns the duration of `products` products of
/// square matrices with `rows` rows. Doubles the rows until one product takes 20 ms. If the largest matrices are too
/// small for that, doubles the number of products until they take 20 ms together, up to [`MOST_PRODUCTS`].
fn flops_per_second(time: impl Fn(usize, usize) -> Duration) -> f64 {
    let ([mut rows, most_rows], mut products) = (ROWS, 1);
    loop {
        let took = time(rows, products);
        if took >= LONG_ENOUGH || products >= MOST_PRODUCTS {
            return 2.0 * (rows as f64).powi(3) * products as f64 / took.as_secs_f64().max(1e-9);
        }
        if rows < most_rows { rows *= 2 } else { products *= 2 }
    }
}

/// Times `products` matrix products in the dtype `dtype` on `device`, and returns the shortest time of several runs.
/// The matrices are square, with `rows` rows.
fn time_of_products(device: &Device, dtype: FloatDType, rows: usize, products: usize) -> Duration {
    // Every product of this matrix with itself is the same matrix, exactly, because `rows` is a power of two.
    let matrix = Tensor::<2>::full([rows, rows], 1.0 / rows as f64, device).cast(dtype);
    let multiply = || {
        let start = Instant::now();
        // Each product needs the result of the one before, and reading one element waits for all of them. `into_data`
        // would not wait: on some devices its bytes are read when they are used.
        let last = (0..products).fold(matrix.clone(), |product, _| product.matmul(matrix.clone()));
        black_box(last.slice([0..1, 0..1]).into_scalar::<f32>());
        start.elapsed()
    };
    multiply();
    (0..REPEATS).map(|_| multiply()).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_enlarged_and_then_repeated_until_they_take_long_enough() {
        // A device with 1 GFLOP/s takes 34 ms for 256 rows, and one with 1 TFLOP/s 17 ms for 2048 rows. One with
        // 10 TFLOP/s takes 14 ms for 4096 rows, and one with 1 PFLOP/s 18 ms for 128 such products.
        for (speed, rows, products) in [(1e9, 256, 1), (1e12, 4096, 1), (1e13, 4096, 2), (1e15, 4096, 256)] {
            let last = std::cell::Cell::new((0, 0));
            let time = |rows: usize, products: usize| {
                last.set((rows, products));
                Duration::from_secs_f64(2.0 * (rows as f64).powi(3) * products as f64 / speed)
            };
            let found = flops_per_second(time);
            assert!((found / speed - 1.0).abs() < 1e-6, "{found} instead of {speed}");
            assert_eq!(last.get(), (rows, products));
        }
    }

    #[test]
    fn products_without_a_measurable_time_end() {
        assert!(flops_per_second(|_, _| Duration::ZERO).is_finite());
    }

    #[test]
    fn speeds_are_relative_to_the_slowest_device() {
        assert_eq!(relative(&[3e9, 1e9, 6e9]), [3.0, 1.0, 6.0]);
        assert_eq!(relative(&[]), Vec::<f64>::new());
    }

    #[test]
    #[cfg(feature = "flex")]
    fn a_device_that_is_listed_twice_has_one_speed() {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            assert_eq!(device_speeds(&[Device::flex(), Device::flex()], dtype), [1.0, 1.0]);
        }
    }
}
