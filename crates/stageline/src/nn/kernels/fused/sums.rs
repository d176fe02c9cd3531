//! Sums of many numbers, in a few steps that keep a GPU busy.

use burn::tensor::{FloatDType, Tensor};

use super::{as_given, wide};

/// `[rows, columns]` to `[groups, rows, columns]`, which are added up side by side, and then they: one long sum leaves
/// most of a GPU idle. As many as divide the rows, of the powers of two.
pub(in crate::nn) fn in_groups(rows: &Tensor<2>, most: usize) -> Tensor<3> {
    let [count, columns] = rows.dims();
    let groups = most.min(1 << count.trailing_zeros());
    rows.clone().reshape([groups, count / groups, columns])
}

/// The groups of rows: so many that with all columns a GPU is busy, so few that their own sum is short.
pub(in crate::nn) const ROWS: usize = 256;

/// `[groups, rows, columns]` to `[columns]`, in the type of another tensor.
pub(in crate::nn) fn of_groups(all: Tensor<3>, given: &Tensor<2>) -> Tensor<1> {
    // Times one, because burn's fusion makes one kernel of a sum and the operations before it, of the same shape, only
    // where there are such, and where another operation follows.
    let of_each = (all.sum_dim(1) * 1.0).squeeze_dim::<2>(1);
    as_given((of_each * 1.0).sum_dim(0), given).squeeze_dim(0)
}

/// `[rows, columns]` to `[columns]`.
pub(in crate::nn) fn of_rows(rows: &Tensor<2>) -> Tensor<1> {
    of_groups(wide(in_groups(rows, ROWS)), rows)
}

/// In f64: `[1]`.
pub(in crate::nn) fn of_squares(tensor: Tensor<1>) -> Tensor<1> {
    let groups = in_groups(&tensor.unsqueeze_dim(1), 1024).squeeze_dim::<2>(2);
    // Times one, as above.
    (groups.cast(FloatDType::F64).square().sum_dim(1) * 1.0).sum_dim(0).squeeze_dim(0)
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
}
