//! In which order burn makes kernels of operations.

use burn::BurnConfig;
use burn_std::config::fusion::BeamSearchConfig;
use serde_json::json;

/// As they come, unless the program or a `burn.toml` says otherwise.
///
/// burn 0.22 looks at five chains of operations at a time. A backward has more, and what is then cut off runs as one kernel for every
/// operation. The operations in `nn` are in an order that needs no search; of others that is not measured.
#[cfg(feature = "cuda")]
pub(crate) fn as_it_comes() {
    use std::sync::Once;

    use burn_std::config::RuntimeConfig;

    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        let is_set = BurnConfig::try_set(chosen(&BurnConfig::from_current_dir().override_from_env()));
        if !is_set && is_burns_own(&BurnConfig::get()) {
            tracing::warn!(
                "burn was used before the first GPU was opened, and fuses operations by a search that makes more kernels: open GPUs \
                 first, or have a `burn.toml` with `max_blocks = 1` in `[fusion.beam_search]`"
            );
        }
    });
}

fn chosen(given: &BurnConfig) -> BurnConfig {
    let mut settings = serde_json::to_value(given).expect("burn's settings are numbers, names and flags");
    if is_burns_own(given) {
        settings["fusion"]["beam_search"]["max_blocks"] = json!(1);
    }
    serde_json::from_value(settings).expect("burn reads what it has written")
}

fn is_burns_own(given: &BurnConfig) -> bool {
    given.fusion().beam_search.max_blocks == BeamSearchConfig::default().max_blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_than_burns_own_stays() {
        let settings = |text: &str| chosen(&serde_json::from_str(text).unwrap()).fusion().clone();
        assert_eq!(settings("{}").beam_search.max_blocks, 1);
        let given = settings(r#"{"fusion": {"growth_patience": 7, "beam_search": {"max_blocks": 9}}}"#);
        assert_eq!((given.beam_search.max_blocks, given.growth_patience), (9, 7));
        let given = settings(r#"{"fusion": {"growth_patience": 7}}"#);
        assert_eq!((given.beam_search.max_blocks, given.growth_patience), (1, 7));
    }
}
