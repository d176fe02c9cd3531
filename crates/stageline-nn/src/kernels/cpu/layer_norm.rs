//! Computes layer normalisation, RMS normalisation and their gradients on the CPU.

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;

use super::numbers::{numbers, of_numbers, of_pairs, pairs};
use super::overwritten::Overwritten;
use super::wide::{sum, wide};
use crate::kernels::variants::{Norm, Normalisation};

/// The number of input rows that one CPU core processes at a time in a normalisation. Parameter gradients are first
/// summed within each group of rows, so that they do not depend on the number of cores.
const ROWS: usize = 64;

/// Normalises a contiguous input `[..., width]`. Returns the output, and two values per row, `[rows, 2]`. The first is
/// the value that was subtracted from the row: its mean, or 0 for RMS normalisation. The second is 1 / sqrt(mean square
/// of the row after the subtraction + epsilon).
pub fn normalised(
    input: &FloatTensor<Flex>,
    gamma: &FloatTensor<Flex>,
    beta: Option<&FloatTensor<Flex>>,
    norm: Normalisation,
) -> (FloatTensor<Flex>, FloatTensor<Flex>) {
    let width = gamma.shape()[0].max(1);
    let mut output = Overwritten::of(input.clone());
    let mut moments = vec![[0.0; 2]; numbers(input).len() / width];
    let beta = beta.map_or_else(|| vec![0.0; width], |beta| numbers(&beta.to_contiguous()).to_vec());
    let parts = output.parts(ROWS * width).zip(moments.par_chunks_mut(ROWS));
    parts.for_each(|(rows, moments)| normalise(rows, moments, numbers(gamma), &beta, norm));
    (output.tensor(), of_pairs(moments))
}

/// Returns the gradient of the loss with respect to a normalisation's input, which must be contiguous. `gradient` is
/// the gradient with respect to the output. `moments` are the two values per input row that [`normalised`] returned
/// (`[rows, 2]`).
pub fn gradient_of_input(
    input: &FloatTensor<Flex>,
    gamma: &FloatTensor<Flex>,
    moments: &FloatTensor<Flex>,
    gradient: FloatTensor<Flex>,
    norm: Norm,
) -> FloatTensor<Flex> {
    let width = gamma.shape()[0].max(1);
    let mut output = Overwritten::of(gradient);
    let parts = output.parts(ROWS * width).zip(numbers(input).par_chunks(ROWS * width));
    parts.zip(pairs(moments).par_chunks(ROWS)).for_each(|((output, values), moments)| {
        to_input(output, values, numbers(gamma), norm, moments);
    });
    output.tensor()
}

/// Returns the gradients of the loss with respect to a normalisation's scale and shift, each `[width]`. `gradient` is
/// the gradient with respect to the output. `moments` are the two values per input row that [`normalised`] returned
/// (`[rows, 2]`).
pub fn gradients_of_parameters(
    input: &FloatTensor<Flex>,
    moments: &FloatTensor<Flex>,
    gradient: &FloatTensor<Flex>,
) -> [FloatTensor<Flex>; 2] {
    let shape = input.shape();
    let width = shape[shape.num_dims() - 1];
    let rows =
        numbers(gradient).par_chunks((ROWS * width).max(1)).zip(numbers(input).par_chunks((ROWS * width).max(1)));
    let parts: Vec<_> = rows
        .zip(pairs(moments).par_chunks(ROWS))
        .map(|((upstream, values), moments)| {
            let mut part = [vec![0.0; width], vec![0.0; width]];
            let [gamma, beta] = &mut part;
            to_parameters(gamma, beta, upstream, values, moments);
            part
        })
        .collect();
    [0, 1].map(|index| {
        let mut total = vec![0.0_f32; width];
        for part in &parts {
            total.iter_mut().zip(&part[index]).for_each(|(total, part)| *total += part);
        }
        of_numbers(total, [width])
    })
}

wide! {
    // Normalises rows in place with the scale `gamma` and the shift `beta`, and writes their moments: the subtracted
    // mean (0 for RMS normalisation) and 1 / standard deviation.
    fn normalise(rows: &mut [f32], moments: &mut [[f32; 2]], gamma: &[f32], beta: &[f32], norm: Normalisation) {
        let share = 1.0 / gamma.len() as f32;
        for (row, moments) in rows.chunks_exact_mut(gamma.len()).zip(moments) {
            let mean = match norm.kind {
                Norm::Layer => share * sum([row], |[x]| x),
                Norm::RootMeanSquare => 0.0,
            };
            let variance = share * sum([row], |[x]| (x - mean) * (x - mean));
            let over_deviation = 1.0 / (variance + norm.epsilon).sqrt();
            *moments = [mean, over_deviation];
            for ((x, gamma), beta) in row.iter_mut().zip(gamma).zip(beta) {
                *x = (*x - mean) * over_deviation * gamma + beta;
            }
        }
    }
}

wide! {
    // Turns the gradients of output rows into those of the input rows (`rows`) in place. `moments` are the mean and 1 /
    // standard deviation of each input row.
    fn to_input(gradients: &mut [f32], rows: &[f32], gamma: &[f32], norm: Norm, moments: &[[f32; 2]]) {
        let (width, share) = (gamma.len(), 1.0 / gamma.len() as f32);
        let rows = rows.chunks_exact(width).zip(moments);
        for (gradients, (row, &[mean, over_deviation])) in gradients.chunks_exact_mut(width).zip(rows) {
            let plain = match norm {
                Norm::Layer => share * sum([gradients, gamma], |[gradient, gamma]| gradient * gamma),
                Norm::RootMeanSquare => 0.0,
            };
            let along = share
                * sum([gradients, gamma, row], |[gradient, gamma, x]| gradient * gamma * (x - mean) * over_deviation);
            for ((gradient, x), gamma) in gradients.iter_mut().zip(row).zip(gamma) {
                *gradient = over_deviation * (*gradient * gamma - plain - (x - mean) * over_deviation * along);
            }
        }
    }
}

wide! {
    // Adds the gradients of the scale and the shift over some rows to `gamma` and `beta`. `rows` are the input rows,
    // `upstream` the gradients of the output rows, and `moments` the mean and 1 / standard deviation of each input row.
    fn to_parameters(gamma: &mut [f32], beta: &mut [f32], upstream: &[f32], rows: &[f32], moments: &[[f32; 2]]) {
        let width = gamma.len();
        let rows = rows.chunks_exact(width).zip(moments);
        for (upstream, (row, &[mean, over_deviation])) in upstream.chunks_exact(width).zip(rows) {
            for ((gamma, gradient), x) in gamma.iter_mut().zip(upstream).zip(row) {
                *gamma += gradient * (x - mean) * over_deviation;
            }
            for (beta, gradient) in beta.iter_mut().zip(upstream) {
                *beta += gradient;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Norm, Normalisation, normalise, to_input, to_parameters};
    use crate::kernels::cpu::wide::versions::assert_same_bits;

    /// The width of the rows in a test of normalisation. It is not a multiple of the number of elements in a SIMD
    /// vector.
    const WIDTH: usize = 83;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let numbers = |factor: f32| (0..3 * WIDTH).map(|at| (at as f32 * factor).sin()).collect::<Vec<f32>>();
        let (rows, upstream, scales) = (numbers(0.7), numbers(1.3), numbers(0.1));
        let gamma = &scales[..WIDTH];
        for kind in [Norm::Layer, Norm::RootMeanSquare] {
            assert_same_bits(|| {
                let (mut output, mut moments) = (rows.clone(), [[0.0; 2]; 3]);
                normalise(&mut output, &mut moments, gamma, gamma, Normalisation { kind, epsilon: 1e-5 });
                let mut gradients = upstream.clone();
                to_input(&mut gradients, &rows, gamma, kind, &moments);
                let (mut to_gamma, mut to_beta) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
                to_parameters(&mut to_gamma, &mut to_beta, &upstream, &rows, &moments);
                [output, moments.concat(), gradients, to_gamma, to_beta].concat()
            });
        }
    }
}
