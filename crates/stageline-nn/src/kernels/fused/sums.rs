//! Computes sums over many rows or elements in two steps, first within groups and then over the groups, so that they
//! use the whole GPU.

use burn::tensor::{FloatDType, Tensor};

use super::{as_given, wide};
use crate::params::widest_float;

/// Splits the rows of a tensor `[rows, columns]` into groups, `[groups, rows of a group, columns]`, which a GPU can sum
/// in parallel. The number of groups is the largest power of two that divides the number of rows, up to `most`. `most`
/// must itself be a power of two, because burn panics if the groups do not divide the rows.
pub(crate) fn in_groups(rows: &Tensor<2>, most: usize) -> Tensor<3> {
    let [count, columns] = rows.dims();
    let groups = most.min(1 << count.trailing_zeros());
    rows.clone().reshape([groups, count / groups, columns])
}

/// Largest number of row groups in a parallel sum: enough to use the whole GPU, but few enough that adding the groups'
/// sums takes little time.
pub(crate) const ROWS: usize = 256;

/// Sums a tensor `[groups, rows, columns]` over groups and rows, and returns the sums, `[columns]`, in the dtype of
/// `given`.
pub(crate) fn of_groups(all: Tensor<3>, given: &Tensor<2>) -> Tensor<1> {
    // The products with 1 make burn fuse a sum with other operations into one kernel: it does so only if an operation
    // of the same shape comes before the sum and another operation follows it.
    let sums = (all.sum_dim(1) * 1.0).squeeze_dim::<2>(1);
    as_given((sums * 1.0).sum_dim(0), given).squeeze_dim(0)
}

/// Sums a tensor `[rows, columns]` over its rows in f32, and returns the sums, `[columns]`, in the tensor's dtype.
pub(crate) fn of_rows(rows: &Tensor<2>) -> Tensor<1> {
    of_groups(wide(in_groups(rows, ROWS)), rows)
}

/// Returns the sum of the squares of all elements of a tensor, with shape `[1]`: in f64, or in f32 on a device without
/// f64.
pub(crate) fn of_squares(tensor: Tensor<1>) -> Tensor<1> {
    let wide = widest_float(&tensor.device());
    of_squares_in(tensor, wide)
}

/// Returns the sum of the squares of all elements of a tensor, accumulated in the dtype `wide`, with shape `[1]`.
fn of_squares_in(tensor: Tensor<1>, wide: FloatDType) -> Tensor<1> {
    let groups = in_groups(&tensor.unsqueeze_dim(1), 1024).squeeze_dim::<2>(2);
    // The product with 1 makes burn fuse the first sum with the operations before it.
    (groups.cast(wide).square().sum_dim(1) * 1.0).sum_dim(0).squeeze_dim(0)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::super::checks::{exactly, near, random};
    use super::*;

    #[test]
    fn squares_are_summed_in_f64() {
        for count in [7, 1000, 6144] {
            let numbers = random([count]);
            near(of_squares(numbers.clone()), &(exactly(&numbers) * exactly(&numbers)).sum(), 1e-12);
        }
    }

    #[test]
    fn squares_are_summed_in_f32_on_devices_without_f64() {
        for count in [7, 1000, 6144] {
            let numbers = random([count]);
            let sum = of_squares_in(numbers.clone(), FloatDType::F32);
            assert_eq!(FloatDType::from(sum.dtype()), FloatDType::F32);
            near(sum, &(exactly(&numbers) * exactly(&numbers)).sum(), 1e-5);
        }
    }
}
