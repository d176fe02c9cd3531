//! GELU composed of burn's operations for GPUs.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use burn::tensor::Tensor;

use super::{as_given, wide};

/// Returns the cumulative distribution function of the standard normal distribution at every element.
fn cumulative(x: Tensor<2>) -> Tensor<2> {
    (x * FRAC_1_SQRT_2).erf() * 0.5 + 0.5
}

/// Returns the activation function GELU of every element, in the type of the input.
pub(crate) fn values(input: &Tensor<2>) -> Tensor<2> {
    let x = wide(input.clone());
    as_given(x.clone() * cumulative(x), input)
}

/// Returns the gradient of GELU's input, given the gradient of its output.
pub(crate) fn to_input(input: &Tensor<2>, gradient: Tensor<2>) -> Tensor<2> {
    let x = wide(input.clone());
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
            let (output, gradient) = derived(activation::gelu, &input, &upstream);
            near(values(&input), &output, bound);
            near(to_input(&input, upstream.clone()), &gradient, bound);
        });
    }
}
