//! The sum of the squares of a CPU tensor's elements, in f64.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, TensorData};

use super::numbers::numbers;
use super::wide::wide;

/// Number of partial sums that are accumulated in parallel: twice the f64 lanes of an AVX-512 register, because an
/// addition takes several cycles.
const LANES: usize = 16;

/// Returns the sum of the squares of all elements of a tensor, `[1]`, in f64. It runs on one thread, because the order
/// of additions in burn's own parallel sum depends on the number of cores.
pub fn sum_of_squares(tensor: &FloatTensor<Flex>) -> FloatTensor<Flex> {
    let sum = match tensor.dtype() {
        DType::F32 => of_f32(numbers(&tensor.to_contiguous())),
        _ => {
            let wide = Flex::float_cast(tensor.clone(), FloatDType::F64).to_contiguous();
            of_f64(wide.as_slice::<f64>().expect("the cast is contiguous f64"))
        }
    };
    FloatTensor::<Flex>::from_data(TensorData::new(vec![sum], [1]))
}

wide! {
    // Returns the sum of the squares of f32 elements. The squares are exact in f64.
    fn of_f32(numbers: &[f32]) -> f64 {
        let mut sums = [0.0; LANES];
        let (whole, rest) = numbers.as_chunks::<LANES>();
        for part in whole {
            for lane in 0..LANES {
                sums[lane] += f64::from(part[lane]) * f64::from(part[lane]);
            }
        }
        for lane in 0..rest.len() {
            sums[lane] += f64::from(rest[lane]) * f64::from(rest[lane]);
        }
        sums.iter().sum()
    }
}

/// Returns the sum of the squares of f64 elements.
fn of_f64(numbers: &[f64]) -> f64 {
    numbers.iter().map(|number| number * number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::wide::versions::assert_same_bits;

    #[test]
    fn the_sum_of_squares_is_that_of_the_formula_with_every_instruction_set() {
        // The sum of the squares of 1 to n is n (n + 1) (2 n + 1) / 6.
        for count in [0, 1, 15, 16, 17, 1000] {
            let numbers: Vec<_> = (1..=count).map(|number| number as f32).collect();
            assert_eq!(of_f32(&numbers), f64::from(count * (count + 1) * (2 * count + 1) / 6));
        }
        let numbers: Vec<_> = (0..1000).map(|at| (at as f32 * 0.37).sin()).collect();
        assert_same_bits(|| vec![of_f32(&numbers)]);
        let wide: Vec<_> = numbers.iter().map(|&number| f64::from(number)).collect();
        assert!((of_f32(&numbers) / of_f64(&wide) - 1.0).abs() < 1e-12);
    }
}
