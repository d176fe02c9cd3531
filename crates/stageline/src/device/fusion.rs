//! Configures burn's operator fusion on GPUs: which tensor operations burn fuses into one kernel, and in which order.

use burn::BurnConfig;
use burn_std::config::fusion::BeamSearchConfig;
use serde_json::json;

/// Configures burn's operator fusion on GPUs: burn fuses operations in program order, and runs each matrix product as a
/// separate kernel. Call this before the first tensor is created on a GPU, and before the first connection to another
/// host. If burn has already used its settings, they stay as they are, and a warning is logged. Later calls do nothing.
#[cfg(feature = "fused")]
pub(crate) fn set_fusion() {
    use std::sync::Once;

    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        fuse_in_issue_order();
        if !stageline_nn::kernels::keep_products_apart() {
            tracing::warn!(
                "matrix products are computed together with the operations that follow them, which takes longer: the program \
                 used a GPU before it opened one by `DeviceName`; open that first"
            );
        }
    });
}

/// Makes burn fuse tensor operations in program order, without a search, by setting burn's `max_blocks = 1`. The
/// setting is not changed if it differs from burn's default, or if the program has set or used burn's settings before.
///
/// By default, burn 0.22 searches for operations to fuse in at most five independent blocks of operations. A backward
/// pass has more blocks, and every operation beyond the five runs as a kernel of its own. The layers of the crate
/// `stageline-nn` issue their operations in an order that fuses well without a search. The effect on other operations
/// was not measured.
#[cfg(feature = "fused")]
fn fuse_in_issue_order() {
    use burn_std::config::RuntimeConfig;

    let is_set = BurnConfig::try_set(chosen(&BurnConfig::from_current_dir().override_from_env()));
    if !is_set && is_default(&BurnConfig::get()) {
        tracing::warn!(
            "burn was used before the first GPU was opened, so it fuses operations by a search that makes more kernels: open \
             GPUs first, or set `max_blocks = 1` in `[fusion.beam_search]` of a `burn.toml`"
        );
    }
}

/// Returns a copy of burn's settings `given`, with `max_blocks = 1` if `given` has burn's default value, so that burn
/// fuses tensor operations in program order.
fn chosen(given: &BurnConfig) -> BurnConfig {
    let mut settings = serde_json::to_value(given).expect("burn's settings are numbers, names and flags");
    if is_default(given) {
        settings["fusion"]["beam_search"]["max_blocks"] = json!(1);
    }
    serde_json::from_value(settings).expect("burn reads settings that it has written")
}

fn is_default(given: &BurnConfig) -> bool {
    given.fusion().beam_search.max_blocks == BeamSearchConfig::default().max_blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_blocks_that_is_not_the_default_is_kept() {
        let settings = |text: &str| chosen(&serde_json::from_str(text).unwrap()).fusion().clone();
        assert_eq!(settings("{}").beam_search.max_blocks, 1);
        let given = settings(r#"{"fusion": {"growth_patience": 7, "beam_search": {"max_blocks": 9}}}"#);
        assert_eq!((given.beam_search.max_blocks, given.growth_patience), (9, 7));
        let given = settings(r#"{"fusion": {"growth_patience": 7}}"#);
        assert_eq!((given.beam_search.max_blocks, given.growth_patience), (1, 7));
    }
}
