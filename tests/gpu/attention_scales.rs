//! The scale of every row of attention's output and gradient ([`row_scales`]), with which the errors of the row are
//! compared.

use stageline::nn::AttentionHeads;

/// An attention with its input and output gradient as f64 numbers. A test computes from them how large the device's
/// rounding errors in the results of this attention may be.
pub struct Attention<'a> {
    /// The queries, keys and values of attention: `[samples, length, columns, size]`.
    pub input: &'a [f64],
    /// The gradient of attention's output: `[samples, length, query heads, size]`.
    pub upstream: &'a [f64],
    pub heads: AttentionHeads,
    /// The number of samples, the length of a sample, and the size of an attention head.
    pub shape: [usize; 3],
    /// The position at which the document of each position in a sample begins. `None` if a sample is one document.
    pub starts: Option<&'a [i64]>,
}

fn largest(row: &[f64]) -> f64 {
    row.iter().copied().map(f64::abs).fold(0.0, f64::max)
}

/// Returns the dot product of two lists of numbers, and the sum of the magnitudes of its terms.
fn products(one: &[f64], other: &[f64]) -> (f64, f64) {
    let each = one.iter().zip(other).map(|(one, other)| one * other);
    each.fold((0.0, 0.0), |(sum, sizes), product| (sum + product, sizes + product.abs()))
}

/// Returns the scale of the rounding errors in each row of attention's output, and in each row of the gradient of its
/// input. A row is the `size` numbers of one head at one position of one sample.
///
/// Each number of a row is a sum of terms, and each term has a rounding error of f32 relative to its own magnitude. So
/// the scale of a row is the sum of the magnitudes of all terms of the row's largest number. If terms cancel, the scale
/// is larger than that number.
pub fn row_scales(attention: &Attention<'_>) -> [Vec<f64>; 2] {
    let &Attention { heads, shape: [samples, length, _], .. } = attention;
    let columns = heads.query + 2 * heads.key_value;
    let mut output = vec![0.0; samples * length * heads.query];
    let mut gradient = vec![0.0; samples * length * columns];
    for sample in 0..samples {
        for head in 0..heads.query {
            for at in 0..length {
                add_query(attention, [sample, head, at], &mut output, &mut gradient);
            }
        }
    }
    [output, gradient]
}

/// Adds what one query contributes to the scales (sums of the magnitudes of terms) of the rows of `output` and
/// `gradient`. `query` has the query's sample, head and position.
fn add_query(attention: &Attention<'_>, query: [usize; 3], output: &mut [f64], gradient: &mut [f64]) {
    let ([sample, head, at], &Attention { heads, shape: [_, length, size], .. }) = (query, attention);
    let columns = heads.query + 2 * heads.key_value;
    let key_column = heads.query + head / (heads.query / heads.key_value);
    let row = |at: usize, column: usize| (sample * length + at) * columns + column;
    let numbers = |row: usize| &attention.input[size * row..size * (row + 1)];
    let [key, value] = [key_column, key_column + heads.key_value].map(|column| move |at| row(at, column));
    let query = row(at, head);
    let of_output = (sample * length + at) * heads.query + head;
    let upstream = &attention.upstream[size * of_output..size * (of_output + 1)];

    let document = attention.starts.map_or(0, |starts| starts[at] as usize);
    let first = document.max(heads.window.map_or(0, |window| (at + 1).saturating_sub(window)));
    let root = (size as f64).sqrt();
    let scores: Vec<_> = (first..=at).map(|at| products(numbers(query), numbers(key(at))).0 / root).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    let weights: Vec<_> = scores.iter().map(|score| (score - most).exp() / total).collect();
    // The gradient of a score is its weight times the difference between a product with the upstream gradient and the
    // mean of these products, so the magnitudes of both count.
    let sizes: Vec<_> = (first..=at).map(|at| products(upstream, numbers(value(at))).1).collect();
    let mean: f64 = weights.iter().zip(&sizes).map(|(weight, size)| weight * size).sum();
    for (at, (weight, size)) in (first..=at).zip(weights.iter().zip(&sizes)) {
        let of_score = weight * (size + mean) / root;
        output[of_output] += weight * largest(numbers(value(at)));
        gradient[query] += of_score * largest(numbers(key(at)));
        gradient[key(at)] += of_score * largest(numbers(query));
        gradient[value(at)] += weight * largest(upstream);
    }
}
