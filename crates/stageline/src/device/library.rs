//! Test-loads a GPU API's library, such as CUDA's, to tell a missing library from a broken one.

/// The reason why the dynamic linker cannot load a shared library, such as CUDA's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unloadable {
    /// The library is missing: the dynamic linker finds no file with its name.
    Missing,
    /// The library is broken: its file exists, but this file or another library that it needs cannot be loaded. The
    /// value is the dynamic linker's error message.
    Broken(String),
}

/// Loads the shared library with the file name `name` and leaves it loaded, because burn loads it next.
///
/// # Errors
/// Returns [`Unloadable`] if the dynamic linker does not load the library.
pub(super) fn load(name: &str) -> Result<(), Unloadable> {
    // SAFETY: the names that this folder passes are libraries of GPU drivers and the Vulkan loader, whose initialisers
    // have no requirements.
    match unsafe { libloading::Library::new(name) } {
        Ok(library) => {
            std::mem::forget(library);
            Ok(())
        }
        Err(libloading::Error::DlOpen { source }) => Err(of_message(name, &source.to_string())),
        Err(other) => Err(Unloadable::Broken(other.to_string())),
    }
}

/// Determines why the dynamic linker cannot load the library `name`, from the linker's error message `message`:
/// [`Unloadable::Missing`] if there is no file `name`, otherwise [`Unloadable::Broken`] with the message.
///
/// If the message reports a missing file with another name, `name` itself exists but needs that other library, so the
/// result is `Broken`.
fn of_message(name: &str, message: &str) -> Unloadable {
    let of_glibc =
        message.strip_prefix(name).is_some_and(|rest| rest.starts_with(": cannot open shared object file: No such"));
    let of_musl = message.contains(&format!("shared library {name}: No such file"));
    if of_glibc || of_musl { Unloadable::Missing } else { Unloadable::Broken(message.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_library_is_loaded_missing_or_broken() {
        assert_eq!(load("libm.so.6"), Ok(()));
        assert_eq!(load("libstageline-missing.so"), Err(Unloadable::Missing));
        let empty = std::env::temp_dir().join(format!("stageline-{}-empty.so", std::process::id()));
        std::fs::write(&empty, "").unwrap();
        let found = load(empty.to_str().unwrap());
        std::fs::remove_file(&empty).unwrap();
        let Err(Unloadable::Broken(message)) = found else { panic!("{found:?}") };
        assert!(message.contains("too short"), "{message}");
    }

    /// Tests how the error messages of the C libraries glibc and musl are classified. If a message names the requested
    /// library, this library is missing. If it names another library, which the requested one needs, the requested one
    /// is broken.
    #[test]
    fn a_library_that_needs_a_missing_one_is_broken() {
        let missing = "cannot open shared object file: No such file or directory";
        assert_eq!(of_message("libvulkan.so.1", &format!("libvulkan.so.1: {missing}")), Unloadable::Missing);
        let of_musl = "Error loading shared library libvulkan.so.1: No such file or directory";
        assert_eq!(of_message("libvulkan.so.1", of_musl), Unloadable::Missing);
        let needed = format!("libxcb.so.1: {missing}");
        assert_eq!(of_message("libvulkan.so.1", &needed), Unloadable::Broken(needed));
    }
}
