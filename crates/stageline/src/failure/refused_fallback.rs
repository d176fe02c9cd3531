//! [`RefusedFallback`]: the error for an operation without a Stageline kernel, if the settings refuse to fall back to
//! burn's own kernels. Also the description of such an operation and its layer ([`fallback_in_stage`]).

use burn::tensor::Device;
use stageline_nn::Fallback;

use crate::device::opened::shown;

/// A refused fallback: Stageline has no kernel for an operation of a layer on its stage's device, and the settings
/// ([`Fallbacks`](crate::Fallbacks)) refuse to use burn's own kernels instead.
///
/// If `build` finds the operation, this is the content of [`BuildError::Fallback`](crate::BuildError::Fallback).
/// Otherwise the first forward pass of the stage fails with this error, as a [`Failure::Error`](crate::Failure::Error)
/// in [`StepError::Stage`](crate::StepError::Stage).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", message(*stage, device, fallback, *more))]
#[non_exhaustive]
pub struct RefusedFallback {
    /// Zero-based index of the first stage with a refused operation: one for which Stageline has no kernel on the
    /// stage's device.
    pub stage: usize,
    /// The name of the stage's device, such as `cuda:0`. Stageline has no kernel for the operation there.
    pub device: String,
    /// The first refused operation, with its layer and the reason why no kernel computes it.
    pub fallback: Fallback,
    /// The number of further refused operations in addition to `fallback`. An error of `build` counts the operations of
    /// all stages, once for all replicas together. An error of a forward pass counts only the operations of its stage.
    pub more: usize,
}

impl RefusedFallback {
    /// Returns the error for the operations in `found`, which Stageline's kernels did not compute in a forward pass of
    /// a stage on `device`. The error names the first of them. Returns `None` if `found` is empty.
    pub(crate) fn of_forward(stage: usize, device: &Device, found: Vec<Fallback>) -> Option<Self> {
        let mut found = found.into_iter();
        let fallback = found.next()?;
        Some(Self { stage, device: shown(device), fallback, more: found.len() })
    }
}

/// Returns the error message of a refused operation. The message names the layer, the remedies, and the number of
/// further refused operations.
fn message(stage: usize, device: &str, fallback: &Fallback, more: usize) -> String {
    let (named, reason) = (fallback_in_stage(stage, fallback, 0), &fallback.reason);
    let further = match more {
        0 => String::new(),
        1 => "; 1 more operation is refused".to_owned(),
        more => format!("; {more} more operations are refused"),
    };
    format!(
        "{named}, on {device}, is refused: it {reason:#}, or run it all the same, by `.fallbacks(Fallbacks::Warn)` \
         (`--fallbacks warn`){further}"
    )
}

/// Describes, for an error message, an operation that Stageline's kernels do not compute: the operation, its layer if
/// that is known, and its stage. `others` is the number of other layers of the stage with the same operation.
pub(crate) fn fallback_in_stage(stage: usize, fallback: &Fallback, others: usize) -> String {
    let Fallback { operation, layer, .. } = fallback;
    if layer.is_empty() {
        return format!("{operation} in stage {stage}");
    }
    match others {
        0 => format!("{operation} in layer `{layer}` of stage {stage}"),
        others => format!("{operation} in layer `{layer}` and {others} more of stage {stage}"),
    }
}
