//! Runs test kernels on a GPU when it is opened, so that a GPU that does not work causes an error before training
//! starts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Tensor};

use crate::threads::failure::Failure;

/// Runs a few test kernels on a GPU that was just opened.
///
/// One of these kernels calls `erf`, which CUDA compiles with libdevice, a file of the CUDA toolkit. If this file is
/// missing, the error is returned here, instead of a panic later on a library's thread.
///
/// # Errors
/// Returns an error message that says why the GPU does not compute.
pub(super) fn try_kernels(opened: &Device) -> Result<(), String> {
    let compute_two = || (Tensor::<1>::zeros([1], opened).erf() + 2.0).into_scalar::<f32>();
    match catch_unwind(AssertUnwindSafe(compute_two)) {
        Ok(2.0) => Ok(()),
        Ok(wrong) => Err(format!("it computes erf(0) + 2 = {wrong}")),
        Err(panic) => Err(root_cause(&Failure::of_panic(panic).to_string())),
    }
}

/// Extracts the root cause from a burn error message, which lists a chain of causes, with the root cause last, and then
/// a backtrace.
pub(super) fn root_cause(error: &str) -> String {
    let last = error.rsplit("Caused by:").next().unwrap_or(error);
    let ends = ["Backtrace:", "No backtrace", "Asked at:"].map(|end| last.find(end).unwrap_or(last.len()));
    let cause = &last[..ends.into_iter().min().unwrap_or(last.len())];
    cause.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "flex")]
    fn a_device_that_runs_kernels_is_accepted() {
        assert_eq!(try_kernels(&Device::flex()), Ok(()));
    }

    #[test]
    fn the_root_cause_is_the_last_one_without_the_backtrace() {
        let burns = "A launch error happened\nCaused by:\n  compiling 'erf' for sm_90: libdevice.10.bc was\n  not found\nBacktrace:\nNone";
        assert_eq!(root_cause(burns), "compiling 'erf' for sm_90: libdevice.10.bc was not found");
        assert_eq!(root_cause("no causes"), "no causes");
    }
}
