//! Computes the sum of squares of f32 numbers in f64.

use super::wide::wide;

/// The number of partial sums that are computed in parallel, each of every 16th square. The order of the additions does
/// not depend on the processor.
const LANES: usize = 16;

/// Returns the sum of the squares of numbers in f64, computed on one core.
pub fn sum_of_squares(numbers: &[f32]) -> f64 {
    squares(numbers)
}

wide! {
    fn squares(numbers: &[f32]) -> f64 {
        let mut lanes = [0.0_f64; LANES];
        let (whole, rest) = numbers.as_chunks::<LANES>();
        for part in whole {
            for lane in 0..LANES {
                let number = f64::from(part[lane]);
                lanes[lane] += number * number;
            }
        }
        for lane in 0..rest.len() {
            let number = f64::from(rest[lane]);
            lanes[lane] += number * number;
        }
        lanes.iter().sum()
    }
}
