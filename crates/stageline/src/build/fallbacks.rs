//! Finds operations that have no Stageline kernel on their stage's device. A setting ([`Fallbacks`]) decides whether
//! such an operation is an error or a warning.

use burn::tensor::Device;
use stageline_nn::params::Description;
use stageline_nn::{Fallback, Operation, Reason};

use crate::device::opened::shown;
use crate::failure::build_error::BuildError;
use crate::failure::refused_fallback::RefusedFallback;
use crate::update::precision::Precision;

/// Whether a fallback is an error or a warning. A fallback is an operation without a Stageline kernel on its stage's
/// device. [`PipelineBuilder::fallbacks`](crate::PipelineBuilder::fallbacks) takes this setting, and describes the
/// default.
///
/// [`build`](crate::PipelineBuilder::build) finds only the fallbacks among the operations that a stage lists
/// ([`Stage::operations`](crate::Stage::operations)), and only if the stage computes in a single dtype. The stage's
/// first forward pass finds its other fallbacks. Later forward passes are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallbacks {
    /// Treat every fallback (an operation without a Stageline kernel) as an error that names the stage and the layer
    /// ([`RefusedFallback`](crate::RefusedFallback)). If `build` finds the fallback, it returns this error. Otherwise
    /// the stage's first forward pass fails, and the pipeline stops. Attention that stores its score matrix also counts
    /// as a fallback.
    Refuse,
    /// Log a warning for every fallback (an operation without a Stageline kernel), with the stage and the layer. The
    /// operation runs on burn's own kernels, which are slower, or as attention that stores its score matrix.
    Warn,
}

/// The fallbacks of one replica: for each stage, its operations without a Stageline kernel on its device.
pub(crate) type OfReplica = Vec<Vec<Fallback>>;

/// Returns a stage's operations that have no Stageline kernel on `device`, each listed once. `operations` has the
/// operations that the stage lists, and `described` describes the stage's tensors. The result is empty if the stage
/// computes in several dtypes at `precision`, because the dtype of each operation is then unknown.
pub(super) fn fallbacks_of(
    operations: &[Operation],
    described: &[Description],
    precision: Precision,
    device: &Device,
) -> Vec<Fallback> {
    let Some(dtype) = precision.computes_in(described) else { return Vec::new() };
    let mut found = Vec::new();
    for fallback in operations.iter().filter_map(|operation| operation.fallback(device, dtype)) {
        // A layer may use the same operation several times.
        if !found.contains(&fallback) {
            found.push(fallback);
        }
    }
    found
}

/// Returns an error if the user's `setting` forbids one of the operations in `found`. These operations have no
/// Stageline kernel; each comes with its stage and device. The error describes the first forbidden operation. `setting`
/// is `None` if the user has not chosen between errors and warnings.
pub(super) fn validate_fallbacks<'a>(
    setting: Option<Fallbacks>,
    found: impl IntoIterator<Item = (usize, &'a Device, &'a Fallback)>,
    is_gpu: impl Fn(&Device) -> bool,
) -> Result<(), BuildError> {
    let mut refused: Vec<(usize, &Device, &Fallback)> = Vec::new();
    for (stage, device, fallback) in found {
        // All replicas have the same layers, so the same fallback in several replicas counts once.
        let is_known = refused.iter().any(|(other, _, known)| *other == stage && *known == fallback);
        if !is_known && is_refused(setting, || is_gpu(device), &fallback.reason) {
            refused.push((stage, device, fallback));
        }
    }
    let mut refused = refused.into_iter();
    let Some((stage, device, fallback)) = refused.next() else { return Ok(()) };
    let (device, fallback) = (shown(device), fallback.clone());
    let error = RefusedFallback { stage, device, fallback, more: refused.len() };
    Err(BuildError::Fallback(Box::new(error)))
}

/// Whether `build` rejects an operation that has no kernel on its device. `reason` says why there is no kernel. If
/// `setting` is unset, `build` rejects such operations only on GPUs: GPUs have kernels for all operations, so a missing
/// kernel is most likely a mistake, such as a dtype without kernels. Attention whose heads are too large for
/// Stageline's kernels is accepted even on GPUs.
fn is_refused(setting: Option<Fallbacks>, is_on_gpu: impl FnOnce() -> bool, reason: &Reason) -> bool {
    match setting {
        Some(Fallbacks::Refuse) => true,
        Some(Fallbacks::Warn) => false,
        None => !matches!(reason, Reason::LargeHead { .. }) && is_on_gpu(),
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::DType;

    use super::*;

    /// Returns, for tests, the description of a GELU that no kernel computes, because its elements have the type f64.
    fn gelu(layer: &str) -> Fallback {
        Fallback { operation: "GELU", layer: layer.to_owned(), reason: Reason::Type(DType::F64) }
    }

    /// Returns, for tests, the description of an attention that stores its scores, because its heads are too large for
    /// Stageline's kernels.
    fn attention(layer: &str) -> Fallback {
        let reason = Reason::LargeHead { size: 264, largest: 256 };
        Fallback { operation: "causal attention", layer: layer.to_owned(), reason }
    }

    /// Returns the message of the error for operations without a kernel (`found`), or `None` if all are accepted. All
    /// of them are on GPUs (`on_gpu`) or all on CPUs. `setting` is the user's reaction to such operations.
    fn refused(setting: Option<Fallbacks>, on_gpu: bool, found: &[(usize, Fallback)]) -> Option<String> {
        let device = Device::flex();
        let found = found.iter().map(|(stage, fallback)| (*stage, &device, fallback));
        validate_fallbacks(setting, found, |_| on_gpu).err().map(|error| error.to_string())
    }

    #[test]
    fn a_missing_kernel_is_refused_on_gpus_only_unless_fallbacks_are_set() {
        let found = [(1, gelu("0.2"))];
        assert!(refused(None, true, &found).is_some() && refused(None, false, &found).is_none());
        for on_gpu in [true, false] {
            assert!(refused(Some(Fallbacks::Refuse), on_gpu, &found).is_some());
            assert!(refused(Some(Fallbacks::Warn), on_gpu, &found).is_none());
        }
        assert!(refused(Some(Fallbacks::Refuse), true, &[]).is_none());
    }

    /// Tests a pipeline with stages on CPUs and one stage on a GPU. Only the operation without a kernel on the GPU is
    /// refused and counted.
    #[test]
    fn the_refused_stage_is_the_one_on_the_gpu() {
        let [cpu, gpu] = [Device::flex(), Device::flex()];
        let found = [(0, &cpu, &gelu("0")), (1, &gpu, &gelu("1")), (2, &cpu, &gelu("2"))];
        // Both devices are CPUs in this test, so their addresses in memory tell them apart.
        let error = validate_fallbacks(None, found, |device| std::ptr::eq(device, &gpu)).unwrap_err();
        let BuildError::Fallback(refused) = &error else { panic!("{error}") };
        assert_eq!((refused.stage, &refused.fallback, refused.more), (1, &gelu("1"), 0), "{error}");
    }

    #[test]
    fn attention_that_stores_its_scores_is_refused_only_on_request() {
        let found = [(0, attention("1"))];
        for setting in [None, Some(Fallbacks::Warn)] {
            assert!(refused(setting, true, &found).is_none());
        }
        let said = refused(Some(Fallbacks::Refuse), true, &found).unwrap();
        let start = "causal attention in layer `1` of stage 0, on cpu, is refused: it stores its scores, whose memory ";
        assert!(said.starts_with(start), "{said}");
        let remedies =
            "use smaller heads to save this memory, or run it all the same, by `.fallbacks(Fallbacks::Warn)`";
        assert!(said.contains(remedies), "{said}");
        // On a device without kernels for any head size, recomputation does not help, so the message must not suggest
        // it.
        let reason = Reason::LargeHead { size: 64, largest: 0 };
        let of_no_size = Fallback { reason, ..attention("1") };
        let said = refused(Some(Fallbacks::Refuse), true, &[(0, of_no_size)]).unwrap();
        assert!(said.contains("use another device, or run it all the same") && !said.contains("Recompute"), "{said}");
        // The message names the first refused fallback, although an accepted one comes before it.
        let said = refused(None, true, &[(0, attention("1")), (1, gelu("0.2"))]).unwrap();
        assert!(said.starts_with("GELU in layer `0.2` of stage 1"), "{said}");
    }

    #[test]
    fn the_error_names_the_layer_the_remedies_and_the_number_of_further_fallbacks() {
        let said = |found: &[(usize, Fallback)]| refused(None, true, found).unwrap();
        let one = "GELU in layer `0.2` of stage 1, on cpu, is refused: it is computed by burn's own operations, which are \
                   slower: the kernels of this device take no elements of the type F64; use f32, or run it all the same, \
                   by `.fallbacks(Fallbacks::Warn)` (`--fallbacks warn`)";
        assert_eq!(said(&[(1, gelu("0.2"))]), one);
        let several = [(1, gelu("0.2")), (1, gelu("0.3")), (2, gelu("0.2"))];
        assert_eq!(said(&several[..2]), format!("{one}; 1 more operation is refused"));
        let of_two_replicas: Vec<_> = several.iter().chain(&several).cloned().collect();
        assert_eq!(said(&of_two_replicas), format!("{one}; 2 more operations are refused"));
        let said = said(&[(0, gelu(""))]);
        assert!(said.starts_with("GELU in stage 0, on cpu, is refused: "), "{said}");
    }
}
