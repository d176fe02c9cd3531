//! Computes the activation function GELU and its gradient on GPUs, with burn's own operations, which burn fuses into
//! few kernels.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

use super::{as_given, wide};
use crate::kernels::variants::GeluForm;

/// Returns the cumulative distribution function of the standard normal distribution for every element of `x`.
fn cumulative(x: Tensor<2>) -> Tensor<2> {
    (x * FRAC_1_SQRT_2).erf() * 0.5 + 0.5
}

/// Returns the tanh approximation of the standard normal cumulative distribution function for every element of `x`.
fn approximated(x: Tensor<2>) -> Tensor<2> {
    sigmoid((x.clone() * x.clone() * x.clone() * GeluForm::CUBIC + x) * GeluForm::TWICE)
}

/// Returns GELU of every element of a GPU tensor, in the tensor's dtype. `form` selects the exact function or its tanh
/// approximation.
pub(crate) fn values(input: &Tensor<2>, form: GeluForm) -> Tensor<2> {
    let x = wide(input.clone());
    let share = match form {
        GeluForm::Exact => cumulative(x.clone()),
        GeluForm::Tanh => approximated(x.clone()),
    };
    as_given(x * share, input)
}

/// Returns the gradient of the loss with respect to GELU's input. `gradient` is the gradient with respect to GELU's
/// output.
pub(crate) fn to_input(input: &Tensor<2>, gradient: Tensor<2>, form: GeluForm) -> Tensor<2> {
    let x = wide(input.clone());
    if form == GeluForm::Tanh {
        // The square of a large value would overflow, and the derivative is 0 or 1 there.
        let x = x.clamp(-15.0, 15.0);
        let share = approximated(x.clone());
        let slope = (x.clone() * x.clone() * (3.0 * GeluForm::CUBIC) + 1.0) * GeluForm::TWICE;
        let derivative = share.clone() + x * share.clone() * (share.neg() + 1.0) * slope;
        return as_given(wide(gradient) * derivative, input);
    }
    let density = (x.clone() * x.clone() * -0.5).exp() * (1.0 / (2.0 * PI).sqrt());
    as_given(wide(gradient) * (cumulative(x.clone()) + x * density), input)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::activation;

    use super::super::checks::{derived, in_all, near, random};
    use super::*;

    #[test]
    fn gelu_matches_burns_in_f64() {
        let (input, upstream) = (random([20, 25]), random([20, 25]));
        in_all(&input, |input, bound| {
            for (form, burns) in [
                (GeluForm::Exact, activation::gelu as fn(Tensor<2>) -> Tensor<2>),
                (GeluForm::Tanh, activation::gelu_approximate),
            ] {
                let (output, gradient) = derived(burns, &input, &upstream);
                near(values(&input, form), &output, bound);
                near(to_input(&input, upstream.clone(), form), &gradient, bound);
            }
        });
    }

    #[test]
    fn derivatives_at_large_numbers_are_0_and_1() {
        let input = Tensor::<2>::from_floats([[-3e38, -30.0, 30.0, 3e38]], &burn::tensor::Device::flex());
        for form in [GeluForm::Exact, GeluForm::Tanh] {
            let derivative = to_input(&input, input.ones_like(), form).into_data();
            assert_eq!(derivative.iter::<f32>().map(f32::abs).collect::<Vec<_>>(), [0.0, 0.0, 1.0, 1.0], "{form:?}");
        }
    }
}
