//! Computes the activation function GELU in its exact and tanh forms, and its derivative, on the CPU with SIMD
//! instructions.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;

use super::numbers::numbers;
use super::overwritten::{Overwritten, PART};
use super::wide::{exp, sigmoid, wide};
use crate::kernels::variants::GeluForm;

/// Returns the activation function GELU of every element of a contiguous CPU tensor. `form` selects the exact function
/// or its tanh approximation.
pub fn values(input: &FloatTensor<Flex>, form: GeluForm) -> FloatTensor<Flex> {
    let mut output = Overwritten::of(input.clone());
    output.parts(PART).for_each(|numbers| to_values(numbers, form));
    output.tensor()
}

/// Returns the gradient of the loss with respect to GELU's input: the derivative of GELU at every input element times
/// `gradient`, the gradient with respect to the output. The input must be contiguous.
pub fn to_input(input: &FloatTensor<Flex>, gradient: FloatTensor<Flex>, form: GeluForm) -> FloatTensor<Flex> {
    let mut output = Overwritten::of(gradient);
    let parts = output.parts(PART).zip(numbers(input).par_chunks(PART));
    parts.for_each(|(gradients, numbers)| to_gradients(gradients, numbers, form));
    output.tensor()
}

wide! {
    // Applies GELU to each element in place.
    fn to_values(numbers: &mut [f32], form: GeluForm) {
        for x in numbers {
            *x = value(*x, form);
        }
    }
}

wide! {
    // Turns the gradients of GELU's output into those of its input in place. `numbers` are the elements of the input.
    fn to_gradients(gradients: &mut [f32], numbers: &[f32], form: GeluForm) {
        for (gradient, x) in gradients.iter_mut().zip(numbers) {
            *gradient *= derivative(*x, form);
        }
    }
}

/// The density of the standard normal distribution at 0: 1 / sqrt(2 pi).
const DENSITY_AT_0: f32 = 0.398_942_3;

/// Bound of the error function's argument: `erf` clamps its argument to [-FLAT, FLAT], because in f32 the function is
/// already -1 and 1 at these bounds.
const FLAT: f32 = 3.832_507;

/// Returns the error function of x, accurate to a few units in the last place: x times a rational function of x^2
/// (XLA's `ErfImpl32`).
#[inline(always)]
fn erf(x: f32) -> f32 {
    let x = x.clamp(-FLAT, FLAT);
    let square = x * x;
    let mut above = 0.000_229_050_66_f32;
    for coefficient in [0.003_408_291, 0.050_955_694, 0.185_208_33, FRAC_2_SQRT_PI] {
        above = above.mul_add(square, coefficient);
    }
    let mut below = -1.179_160_3e-7_f32;
    for coefficient in [0.000_023_547_966, 0.001_017_962_5, 0.014_070_47, 0.110_985_05, 0.497_469_25, 1.0] {
        below = below.mul_add(square, coefficient);
    }
    (x * above / below).clamp(-1.0, 1.0)
}

/// Returns the cumulative distribution function of the standard normal distribution at x.
#[inline(always)]
fn phi(x: f32) -> f32 {
    erf(x * FRAC_1_SQRT_2).mul_add(0.5, 0.5)
}

/// Returns GELU of one value. `form` selects the exact function or its tanh approximation.
#[inline(always)]
fn value(x: f32, form: GeluForm) -> f32 {
    match form {
        GeluForm::Exact => x * phi(x),
        GeluForm::Tanh => x * sigmoid(twice_cubic(x)),
    }
}

/// Returns `2 sqrt(2 / pi) (x + 0.044715 x^3)`. GELU's tanh approximation is x times the sigmoid of this value.
#[inline(always)]
fn twice_cubic(x: f32) -> f32 {
    GeluForm::TWICE as f32 * (GeluForm::CUBIC as f32 * x * x).mul_add(x, x)
}

/// Bound of the argument of GELU's derivative, which is clamped in both directions. In f32 the derivative is already 1
/// at the bound, and 0 at its negative. Without the clamp, the square of a large argument would overflow.
const FLAT_DERIVATIVE: f32 = 15.0;

/// Returns the derivative of the activation function GELU at x. `form` selects the exact function or its tanh
/// approximation.
#[inline(always)]
fn derivative(x: f32, form: GeluForm) -> f32 {
    match form {
        GeluForm::Exact => {
            let x = x.clamp(-FLAT_DERIVATIVE, FLAT_DERIVATIVE);
            let exponent = (-0.5 * x * x).max(-87.0);
            (x * DENSITY_AT_0).mul_add(exp(exponent), phi(x))
        }
        GeluForm::Tanh => {
            let x = x.clamp(-FLAT_DERIVATIVE, FLAT_DERIVATIVE);
            let share = sigmoid(twice_cubic(x));
            let slope = GeluForm::TWICE as f32 * (3.0 * GeluForm::CUBIC as f32 * x).mul_add(x, 1.0);
            (x * share * (1.0 - share)).mul_add(slope, share)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{PI, SQRT_2};

    use super::GeluForm::{Exact, Tanh};
    use super::{derivative, to_gradients, to_values, value};
    use crate::kernels::cpu::wide::versions::assert_same_bits;

    /// Returns the error function of x in f64. Uses the Taylor series near 0, and elsewhere a continued fraction of the
    /// complementary error function.
    fn erf(x: f64) -> f64 {
        if x < 0.0 {
            return -erf(-x);
        }
        if x < 2.5 {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return 2.0 / PI.sqrt() * sum;
        }
        let fraction = (1..200).rev().fold(0.0, |below, n| f64::from(n) / 2.0 / (x + below));
        1.0 - (-x * x).exp() / PI.sqrt() / (x + fraction)
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let numbers: Vec<_> = (0..251).map(|at| (at as f32 - 127.3) * 0.093).collect();
        for form in [Exact, Tanh] {
            assert_same_bits(|| {
                let mut values = numbers.clone();
                to_values(&mut values, form);
                values
            });
            assert_same_bits(|| {
                let mut gradients = numbers.clone();
                to_gradients(&mut gradients, &numbers, form);
                gradients
            });
        }
    }

    #[test]
    fn values_and_derivatives_match_f64() {
        assert!(
            (erf(0.5) - 0.520_499_877_813_046_5).abs() < 1e-15 && (erf(3.0) - 0.999_977_909_503_001_4).abs() < 1e-15
        );
        let (mut worst_value, mut worst_derivative) = (0.0_f64, 0.0_f64);
        for step in -200_000..=200_000 {
            let x = step as f32 / 10_000.0;
            let wide = f64::from(x);
            let phi = 0.5 * (1.0 + erf(wide / SQRT_2));
            let slope = phi + wide * (-0.5 * wide * wide).exp() / (2.0 * PI).sqrt();
            let off = |found: f32, exact: f64| (f64::from(found) - exact).abs() / exact.abs().max(1.0);
            worst_value = worst_value.max(off(value(x, Exact), wide * phi));
            worst_derivative = worst_derivative.max(off(derivative(x, Exact), slope));
        }
        println!("values are off by {worst_value:.2e}, derivatives by {worst_derivative:.2e}");
        assert!(worst_value < 8e-7 && worst_derivative < 4e-7, "{worst_value} {worst_derivative}");
    }

    #[test]
    fn nan_infinite_and_extreme_inputs_give_their_limits() {
        for form in [Exact, Tanh] {
            assert!(value(f32::NAN, form).is_nan() && derivative(f32::NAN, form).is_nan());
            assert_eq!((value(f32::INFINITY, form), value(0.0, form)), (f32::INFINITY, 0.0));
            assert_eq!(derivative(30.0, form), 1.0);
            assert!(value(-30.0, form).abs() < 1e-30 && derivative(-30.0, form).abs() < 1e-30);
            assert_eq!((value(-1e38, form), value(1e38, form)), (0.0, 1e38));
        }
        assert!(derivative(1e30, Tanh) == 1.0 && derivative(-1e30, Tanh).abs() < 1e-30);
    }

    /// Tests GELU's tanh approximation, computed in f32, against its definition in f64.
    #[test]
    fn the_tanh_form_matches_its_definition_in_f64() {
        for step in -100_000..=100_000 {
            let x = step as f32 / 5_000.0;
            let wide = f64::from(x);
            let root = (2.0 / PI).sqrt();
            let tanh = (root * (wide + 0.044715 * wide.powi(3))).tanh();
            let exact = 0.5 * wide * (1.0 + tanh);
            let slope =
                0.5 * (1.0 + tanh) + 0.5 * wide * (1.0 - tanh * tanh) * root * (1.0 + 3.0 * 0.044715 * wide * wide);
            let off = |found: f32, exact: f64| (f64::from(found) - exact).abs() / exact.abs().max(1.0);
            let found = [off(value(x, Tanh), exact), off(derivative(x, Tanh), slope)];
            assert!(found[0] < 1e-6 && found[1] < 2e-6, "{x}: {found:?}");
        }
    }

    #[test]
    fn derivatives_at_large_numbers_are_0_and_1() {
        for form in [Exact, Tanh] {
            let found = [-f32::INFINITY, -1e38, -30.0, 30.0, 1e38, f32::INFINITY].map(|x| derivative(x, form));
            let off = found.iter().zip([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).map(|(found, exact)| (found - exact).abs());
            assert!(off.fold(0.0, f32::max) < 1e-30, "{form:?}: {found:?}");
            assert!(derivative(f32::NAN, form).is_nan());
        }
    }
}
