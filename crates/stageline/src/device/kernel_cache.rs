//! The folder where cubecl, burn's library for GPU kernels, keeps compiled and tuned kernels between runs.

use std::env;
use std::path::Path;
use std::sync::Once;

use burn::cubecl::config::cache::CacheConfig;
use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

/// Makes cubecl keep compiled and tuned kernels in the user's cache folder (`~/.cache/cubecl` on Linux), so that only
/// the first run on a machine compiles and tunes them. Call this before the first GPU is opened. If the first call
/// comes later, nothing changes, and a build with the feature `fused` logs a warning. Later calls do nothing.
///
/// By default, cubecl 0.11 keeps tuned kernels in the folder `target` of the cargo package in which a program is
/// started, and compiles kernels in every run. Nothing is changed if the user has configured cubecl (`cubecl.toml`, or
/// `[cubecl]` in `burn.toml`), or if the program has set or used cubecl's settings before.
pub(super) fn keep_kernels() {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        let has_settings = env::current_dir().is_ok_and(|here| has_settings(&here));
        let is_set = has_settings || CubeClRuntimeConfig::try_set(settings().override_from_env());
        // Builds without the feature `fused` never keep compiled kernels on disk, so they need no warning.
        if !is_set && cfg!(feature = "fused") {
            tracing::warn!(
                "compiled kernels of GPUs are not kept, so every run compiles them again, and tuned ones are kept only for runs \
                 in this folder: the program used cubecl before it opened a GPU by `DeviceName`; open that first, or write \
                 a `cubecl.toml`"
            );
        }
    });
}

/// Returns the default settings of cubecl (burn's library for GPU kernels), changed so that kernels are kept in the
/// user's cache folder.
fn settings() -> CubeClRuntimeConfig {
    let mut settings = CubeClRuntimeConfig::default();
    settings.environment.path = CacheConfig::Global;
    // Compiled kernels are kept only in builds with cubecl's database, which the feature `fused` enables.
    #[cfg(feature = "fused")]
    {
        settings.compilation.cache = true;
    }
    settings
}

/// Whether the user has configured cubecl (burn's library for GPU kernels) by a settings file in the folder `here` or a
/// folder above it.
fn has_settings(here: &Path) -> bool {
    let files = CubeClRuntimeConfig::file_names();
    let sections = CubeClRuntimeConfig::section_file_names();
    here.ancestors().any(|folder| {
        let has_section = |(name, section): &(&str, &str)| {
            CubeClRuntimeConfig::from_section_file_path(folder.join(name), section).is_ok()
        };
        files.iter().any(|name| folder.join(name).is_file()) || sections.iter().any(has_section)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn kernels_are_kept_in_the_users_cache_folder() {
        let settings = settings();
        assert!(matches!(settings.environment.path, CacheConfig::Global));
        #[cfg(feature = "fused")]
        assert!(settings.compilation.cache);
    }

    #[test]
    fn settings_of_the_user_are_found_in_the_folders_around() {
        let folder = env::temp_dir().join(format!("stageline-{}-settings", std::process::id()));
        let _ = fs::remove_dir_all(&folder); // an earlier process with this id may have left it
        let inner = folder.join("inner");
        fs::create_dir_all(&inner).unwrap();
        assert!(!has_settings(&inner), "no settings are expected in {}", env::temp_dir().display());
        fs::write(folder.join("burn.toml"), "[fusion]\n").unwrap();
        assert!(!has_settings(&inner));
        fs::write(folder.join("burn.toml"), "[cubecl.compilation]\ncache = false\n").unwrap();
        assert!(has_settings(&inner));
        fs::write(folder.join("burn.toml"), "").unwrap();
        fs::write(folder.join("cubecl.toml"), "").unwrap();
        assert!(has_settings(&inner));
        fs::remove_dir_all(&folder).unwrap();
    }
}
