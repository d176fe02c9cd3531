//! Computes layer normalisation, RMS normalisation and their gradients on GPUs, with burn's own operations, which burn
//! fuses into few kernels.

use burn::tensor::Tensor;

use super::sums::{ROWS, in_groups, of_groups, of_rows};
use super::{as_given, wide};
use crate::kernels::variants::{Norm, Normalisation};

/// Statistics of a normalisation's input rows for the backward pass: the mean and the reciprocal standard deviation,
/// both `[rows, 1]`.
#[derive(Clone, Debug)]
pub struct Moments<T> {
    /// Mean of each input row; `None` for RMS normalisation, which does not subtract the mean.
    pub(crate) mean: Option<T>,
    /// Reciprocal of each input row's standard deviation, or of its root mean square (RMS normalisation): 1 /
    /// sqrt(variance + epsilon).
    pub(crate) over_deviation: T,
}

/// Normalises an input `[rows, width]` with a scale and an optional shift, each `[width]`. Returns the output, and the
/// mean and 1 / standard deviation of each row.
pub(crate) fn normalised(
    input: &Tensor<2>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    Normalisation { kind, epsilon }: Normalisation,
) -> (Tensor<2>, Moments<Tensor<2>>) {
    let gamma = wide(gamma).unsqueeze::<2>();
    let beta = beta.map(|beta| wide(beta).unsqueeze::<2>());
    let mean = (kind == Norm::Layer).then(|| wide(input.clone()).mean_dim(1));
    let centred = || centred(input.clone(), mean.as_ref());
    let over_deviation = (centred().square().mean_dim(1) + epsilon).sqrt().recip();
    let scaled = centred() * over_deviation.clone() * gamma;
    let output = match beta {
        Some(beta) => scaled + beta,
        None => scaled,
    };
    (as_given(output, input), Moments { mean, over_deviation })
}

/// Returns the rows of a normalisation's input minus their means, or the rows unchanged if `mean` is `None` (RMS
/// normalisation).
fn centred<const D: usize>(input: Tensor<D>, mean: Option<&Tensor<D>>) -> Tensor<D> {
    match mean {
        Some(mean) => wide(input) - mean.clone(),
        None => wide(input),
    }
}

/// Returns the gradient of the loss with respect to a normalisation's input, `[rows, width]`. `gradient` is the
/// gradient with respect to the output. The moments are the mean and 1 / standard deviation of each input row.
pub(crate) fn to_input(
    input: &Tensor<2>,
    gamma: Tensor<1>,
    Moments { mean, over_deviation }: Moments<Tensor<2>>,
    gradient: Tensor<2>,
) -> Tensor<2> {
    let gamma = wide(gamma).unsqueeze::<2>();
    let hat = || centred(input.clone(), mean.as_ref()) * over_deviation.clone();
    let scaled = || wide(gradient.clone()) * gamma.clone();
    let along = (scaled() * hat()).mean_dim(1);
    let rest = match mean {
        Some(_) => {
            let plain = scaled().mean_dim(1);
            scaled() - plain
        }
        None => scaled(),
    };
    as_given((rest - hat() * along) * over_deviation.clone(), input)
}

/// Returns the gradients of the loss with respect to a normalisation's scale and shift, each `[width]`. `gradient` is
/// the gradient with respect to the output. The moments are the mean and 1 / standard deviation of each input row.
pub(crate) fn to_parameters(
    input: &Tensor<2>,
    Moments { mean, over_deviation }: Moments<Tensor<2>>,
    gradient: &Tensor<2>,
) -> [Tensor<1>; 2] {
    let mean = mean.map(|mean| in_groups(&mean, ROWS));
    let [input, over_deviation, upstream] = [input, &over_deviation, gradient].map(|rows| in_groups(rows, ROWS));
    let to_gamma = centred(input, mean.as_ref()) * over_deviation * wide(upstream);
    [of_groups(to_gamma, gradient), of_rows(gradient)]
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::module::layer_norm;

    use super::super::checks::{derived, exactly, in_all, near, random};
    use super::*;

    #[test]
    fn layer_norm_matches_burns_in_f64() {
        for rows in [31, 512] {
            let (input, upstream) = (random([rows, 48]), random([rows, 48]));
            let (gamma, beta) = (random([48]), random([48]));
            let norm = Normalisation { kind: Norm::Layer, epsilon: 1e-5 };
            in_all(&input, |input, bound| {
                let inner = |tensor: &Tensor<1>| exactly(tensor).autodiff();
                let (output, gradient) =
                    derived(|input| layer_norm(input, inner(&gamma), Some(inner(&beta)), 1e-5), &input, &upstream);
                let (found, moments) = normalised(&input, gamma.clone(), Some(beta.clone()), norm);
                near(found, &output, bound);
                near(to_input(&input, gamma.clone(), moments.clone(), upstream.clone()), &gradient, bound);
                let [input_f64, upstream_f64] = [&input, &upstream].map(exactly);
                let with_gamma = |gamma| layer_norm(input_f64.clone().autodiff(), gamma, Some(inner(&beta)), 1e-5);
                let (_, to_gamma) = derived(with_gamma, &gamma, &upstream_f64);
                let [found_gamma, found_beta] = to_parameters(&input, moments, &upstream);
                near(found_gamma, &to_gamma, bound);
                near(found_beta, &upstream_f64.sum_dim(0).squeeze_dim(0), bound);
            });
        }
    }

    #[test]
    fn rms_norm_matches_its_definition_in_f64() {
        let (input, upstream, gamma) = (random([150, 48]), random([150, 48]), random([48]));
        let norm = Normalisation { kind: Norm::RootMeanSquare, epsilon: 1e-5 };
        let defined = |input: Tensor<2>, gamma: Tensor<1>| {
            let root = (input.clone().square().mean_dim(1) + 1e-5).sqrt();
            input / root * gamma.unsqueeze::<2>()
        };
        in_all(&input, |input, bound| {
            let of_input = |input| defined(input, exactly(&gamma).autodiff());
            let (output, gradient) = derived(of_input, &input, &upstream);
            let (found, moments) = normalised(&input, gamma.clone(), None, norm);
            near(found, &output, bound);
            near(to_input(&input, gamma.clone(), moments.clone(), upstream.clone()), &gradient, bound);
            let of_gamma = |gamma| defined(exactly(&input).autodiff(), gamma);
            let (_, to_gamma) = derived(of_gamma, &gamma, &exactly(&upstream));
            near(to_parameters(&input, moments, &upstream)[0].clone(), &to_gamma, bound);
        });
    }
}
