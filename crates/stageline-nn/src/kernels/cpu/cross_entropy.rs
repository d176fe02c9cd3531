//! Computes the cross-entropy loss and its gradient on the CPU.

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use rayon::prelude::*;

use super::numbers::{integers, numbers, of_numbers, of_pairs, pairs};
use super::overwritten::Overwritten;
use super::wide::{exp_from_below, largest, sum, wide};
use crate::kernels::masked_targets::MASKED;

/// The number of rows of logits that one CPU core processes at a time in the cross-entropy and its gradient.
const ROWS: usize = 64;

/// Returns the cross-entropy of contiguous logits `[rows, classes]`, summed over the rows, `[1]`. Also returns two
/// values per row for the backward pass, `[rows, 2]`: the largest logit, and 1 / (sum over the classes of exp(logit -
/// largest logit)).
pub fn summed(logits: &FloatTensor<Flex>, targets: &IntTensor<Flex>) -> [FloatTensor<Flex>; 2] {
    let classes = logits.shape()[1];
    let targets = classes_of(targets, classes);
    let (mut scales, mut losses) = (vec![[0.0; 2]; targets.len()], vec![0.0; targets.len()]);
    let rows = numbers(logits).par_chunks(ROWS * classes.max(1)).zip(targets.par_chunks(ROWS));
    let parts = rows.zip(scales.par_chunks_mut(ROWS)).zip(losses.par_chunks_mut(ROWS));
    parts.for_each(|(((rows, targets), scales), losses)| of_rows(rows, targets, classes, scales, losses));
    let total: f64 = losses.into_iter().sum();
    [of_numbers(vec![total as f32], [1]), of_pairs(scales)]
}

/// Returns the gradient of the loss with respect to the logits of a cross-entropy. `gradient` is the gradient with
/// respect to the cross-entropy, which is summed over the rows. `scales` contains the two values per row that
/// [`summed`] returned.
pub fn gradient_of_logits(
    logits: FloatTensor<Flex>,
    targets: &IntTensor<Flex>,
    scales: &FloatTensor<Flex>,
    gradient: &FloatTensor<Flex>,
) -> FloatTensor<Flex> {
    let (shape, upstream) = (logits.shape(), numbers(gradient)[0]);
    let (classes, targets) = (shape[1].max(1), classes_of(targets, shape[1]));
    let mut output = Overwritten::of(logits);
    let scales = pairs(scales).par_chunks(ROWS);
    let parts = output.parts(ROWS * classes).zip(scales).zip(targets.par_chunks(ROWS));
    parts.for_each(|((rows, scales), targets)| to_logits(rows, scales, targets, classes, upstream));
    output.tensor()
}

/// Converts the targets of the cross-entropy to class indices; a masked target becomes `None`. Panics if another target
/// is not one of the `classes` classes.
fn classes_of(targets: &IntTensor<Flex>, classes: usize) -> Vec<Option<usize>> {
    let class = |target: i64| {
        let class = usize::try_from(target).ok().filter(|class| *class < classes);
        assert!(class.is_some() || target == MASKED, "target {target} is not one of the {classes} classes");
        class
    };
    integers::<1>(targets).into_iter().map(class).collect()
}

wide! {
    // Computes each row's loss in f64, and the two values per row that the backward pass needs (`scales`: the largest
    // logit, and 1 / sum of exp(logit - largest logit)). All outputs are 0 before the call, and remain 0 in masked
    // rows.
    fn of_rows(rows: &[f32], targets: &[Option<usize>], classes: usize, scales: &mut [[f32; 2]], losses: &mut [f64]) {
        for ((row, &target), (scale, loss)) in rows.chunks_exact(classes).zip(targets).zip(scales.iter_mut().zip(losses)) {
            let Some(target) = target else { continue };
            let most = largest(row);
            let total = sum([row], |[logit]| exp_from_below(logit - most));
            *scale = [most, 1.0 / total];
            *loss = f64::from(total).ln() + f64::from(most) - f64::from(row[target]);
        }
    }
}

wide! {
    // Replaces each row of logits by its gradient, `upstream * (softmax - one-hot target)`, or by 0 if the row is
    // masked. `upstream` is the gradient of the loss with respect to the summed cross-entropy. `scales` contains the
    // largest logit and 1 / sum of exp(logit - largest logit) of each row.
    fn to_logits(rows: &mut [f32], scales: &[[f32; 2]], targets: &[Option<usize>], classes: usize, upstream: f32) {
        for (row, (&[most, share], &target)) in rows.chunks_exact_mut(classes).zip(scales.iter().zip(targets)) {
            let Some(target) = target else {
                row.fill(0.0);
                continue;
            };
            for logit in &mut *row {
                *logit = upstream * share * exp_from_below(*logit - most);
            }
            row[target] -= upstream;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{of_rows, to_logits};
    use crate::kernels::cpu::wide::versions::assert_same_bits;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        const CLASSES: usize = 37;
        let targets = [Some(5), None, Some(36)];
        let logits: Vec<_> = (0..3 * CLASSES).map(|at| ((at * 29 % 83) as f32 - 41.0) * 0.37).collect();
        let computed = || {
            let (mut scales, mut losses) = ([[0.0; 2]; 3], [0.0; 3]);
            of_rows(&logits, &targets, CLASSES, &mut scales, &mut losses);
            (scales, losses)
        };
        assert_same_bits(|| computed().1.to_vec());
        assert_same_bits(|| {
            let (scales, mut rows) = (computed().0, logits.clone());
            to_logits(&mut rows, &scales, &targets, CLASSES, 0.7);
            rows
        });
    }
}
