//! The relative speed of devices, measured with a short matrix product ([`device_speeds`]).

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};

/// The time that a matrix product must take for a device's speed to be computed from it, unless its matrices already
/// have the largest size. In a shorter product, starting the kernel and reading the result are too large a part of the
/// measured time.
const LONG_ENOUGH: Duration = Duration::from_millis(20);
/// The smallest and the largest number of rows and columns of the square matrices that are multiplied to measure a
/// device's speed.
const ROWS: [usize; 2] = [256, 4096];
/// The number of times that a matrix product is timed to measure a device's speed; the shortest time counts.
const REPEATS: usize = 3;

/// Measures the speed of each device with a matrix product in f32, and returns the speeds relative to the slowest
/// device, whose speed is 1. A device that is listed several times is measured once, and has the same speed everywhere.
///
/// The matrices are enlarged until their product takes 20 ms or they have 4096 rows, so fast devices multiply larger
/// matrices. Each size runs once untimed, so that its kernel is compiled and tuned. The measurement takes about a
/// second for each device, and longer on a device that has to compile. The speed of a device of another host includes
/// the wait for its answer.
///
/// # Panics
/// Panics if a device does not compute.
pub fn device_speeds(devices: &[Device]) -> Vec<f64> {
    let mut measured: Vec<(Device, f64)> = Vec::new();
    for device in devices {
        if measured.iter().all(|(known, _)| known != device) {
            measured.push((device.clone(), flops_per_second(|rows| time_of_product(device, rows))));
        }
    }
    let speeds = devices.iter().filter_map(|device| measured.iter().find(|(known, _)| known == device));
    relative(&speeds.map(|(_, speed)| *speed).collect::<Vec<_>>())
}

/// Divides the speeds of devices by the slowest of them, so that the slowest device has speed 1.
fn relative(speeds: &[f64]) -> Vec<f64> {
    let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    speeds.iter().map(|speed| speed / slowest).collect()
}

/// Returns the FLOP/s of a device's matrix products, given a function `time` that returns the time of a product of two
/// square matrices with a given number of rows. The number of rows is doubled until the product takes 20 ms or the
/// matrices have the largest size.
fn flops_per_second(time: impl Fn(usize) -> Duration) -> f64 {
    let [mut rows, most] = ROWS;
    loop {
        let took = time(rows);
        if took >= LONG_ENOUGH || rows >= most {
            return 2.0 * (rows as f64).powi(3) / took.as_secs_f64().max(1e-9);
        }
        rows *= 2;
    }
}

/// Returns the shortest time of several products of two square matrices with `rows` rows on `device`.
fn time_of_product(device: &Device, rows: usize) -> Duration {
    let matrix = Tensor::<2>::ones([rows, rows], device);
    let multiply = || {
        let start = Instant::now();
        // Reading one element waits for the whole product.
        let read = matrix.clone().matmul(matrix.clone()).slice([0..1, 0..1]).into_data();
        drop(read);
        start.elapsed()
    };
    multiply();
    (0..REPEATS).map(|_| multiply()).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_enlarged_until_it_takes_long_enough() {
        // A device with 1 GFLOP/s takes 34 ms for 256 rows; one with 1 TFLOP/s takes 17 ms for 2048 rows.
        for (speed, rows) in [(1e9, 256), (1e12, 4096)] {
            let largest = std::cell::Cell::new(0);
            let time = |rows: usize| {
                largest.set(rows);
                Duration::from_secs_f64(2.0 * (rows as f64).powi(3) / speed)
            };
            let found = flops_per_second(time);
            assert!((found / speed - 1.0).abs() < 1e-6, "{found} instead of {speed}");
            assert_eq!(largest.get(), rows);
        }
    }

    #[test]
    fn speeds_are_relative_to_the_slowest_device() {
        assert_eq!(relative(&[3e9, 1e9, 6e9]), [3.0, 1.0, 6.0]);
        assert_eq!(relative(&[]), Vec::<f64>::new());
    }

    #[test]
    #[cfg(feature = "flex")]
    fn a_device_that_is_listed_twice_has_one_speed() {
        assert_eq!(device_speeds(&[Device::flex(), Device::flex()]), [1.0, 1.0]);
    }
}
