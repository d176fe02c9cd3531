//! Loads NCCL, which burn uses to transfer tensors directly between this host's GPUs. Without NCCL, such tensors go
//! through host memory.
//!
//! burn loads NCCL through cudarc. cudarc 0.19 does not look for `libnccl.so.2`, the name that NVIDIA's packages
//! install. [`load`] makes that file loadable under a name that cudarc does look for.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::sync::OnceLock;
use std::{env, fs, io, process};

use crate::device::library::{self, Unloadable};

/// The file names of NCCL's library that the crate cudarc looks for.
const KNOWN: [&str; 7] =
    ["libnccl.so", "libnccl.so.13", "libnccl.so.12", "libnccl.so.11", "libnccl.so.10", "libnccl.so.9", "libnccl.so.1"];

/// The file name of NCCL 2's library in NVIDIA's packages for Debian, Red Hat, conda and pip, which the crate cudarc
/// does not look for.
const PACKAGED: &str = "libnccl.so.2";

/// The transport of tensors between two GPUs of this host: directly by NCCL, or through host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BetweenGpus {
    /// Transfer tensors directly between GPUs by NCCL. The value is the file name of NCCL's library.
    Nccl(&'static str),
    /// Transfer tensors between GPUs through host memory, because NCCL was not found.
    Host,
    /// Transfer tensors between GPUs through host memory, because NCCL's library cannot be loaded. The value contains
    /// the library's file name and the dynamic linker's error message.
    HostWithBrokenNccl(String),
}

/// Makes NCCL loadable by burn if it is installed, and returns how tensors are transferred between this host's GPUs: by
/// NCCL or through host memory. Only the first call searches for NCCL; later calls return the same result.
///
/// This function must be called before burn opens the first GPU, because burn looks for NCCL only then.
pub(crate) fn load() -> &'static BetweenGpus {
    static FOUND: OnceLock<BetweenGpus> = OnceLock::new();
    FOUND.get_or_init(|| search(library::load, load_under_name))
}

/// Searches for NCCL's library by all its file names. `load` loads a library by its file name, and `load_under_name`
/// makes a library loadable by a second name. A broken copy is reported only if no other copy can be loaded.
fn search(
    load: impl Fn(&str) -> Result<(), Unloadable>,
    load_under_name: impl Fn(&str, &str) -> io::Result<()>,
) -> BetweenGpus {
    let mut broken = None;
    // The messages of other systems' linkers are not known, so a missing library cannot be told from a broken one
    // there.
    let note = |name: &str, cause: String, broken: &mut Option<String>| {
        if cfg!(target_os = "linux") && broken.is_none() {
            *broken = Some(format!("{name}: {cause}"));
        }
    };
    for name in KNOWN {
        match load(name) {
            Ok(()) => return BetweenGpus::Nccl(name),
            Err(Unloadable::Missing) => {}
            Err(Unloadable::Broken(cause)) => note(name, cause, &mut broken),
        }
    }
    match load(PACKAGED) {
        Ok(()) => match load_under_name(PACKAGED, KNOWN[0]) {
            Ok(()) if load(KNOWN[0]).is_ok() => return BetweenGpus::Nccl(PACKAGED),
            Ok(()) => note(PACKAGED, format!("it cannot be loaded under the name {}", KNOWN[0]), &mut broken),
            Err(error) => {
                note(PACKAGED, format!("it cannot be loaded under the name {}: {error}", KNOWN[0]), &mut broken);
            }
        },
        Err(Unloadable::Missing) => {}
        Err(Unloadable::Broken(cause)) => note(PACKAGED, cause, &mut broken),
    }
    broken.map_or(BetweenGpus::Host, BetweenGpus::HostWithBrokenNccl)
}

/// Makes the shared library `library` loadable by the file name `name` as well.
///
/// The dynamic linker does not search the disk for a library if one of that name (`DT_SONAME`) is already loaded. So
/// this function loads an empty library called `name` that depends on `library`. A later load of `name` then gets the
/// empty library, and a look-up of a function in it also searches `library`.
fn load_under_name(library: &str, name: &str) -> io::Result<()> {
    let alias = alias(library, name).ok_or(io::ErrorKind::Unsupported)?;
    // Containers may share the folder and have processes of the same number, so the path also has a random number.
    let random = RandomState::new().build_hasher().finish();
    let path = env::temp_dir().join(format!("stageline-{}-{random:x}-{name}", process::id()));
    // This fails if the file already exists, because another user may have put a harmful library there.
    let mut file = fs::File::create_new(&path)?;
    let written = file.write_all(&alias);
    drop(file);
    let loaded = written.and_then(|()| {
        // SAFETY: the library has no initialisers, and `library` is NCCL, whose initialisers have no requirements.
        unsafe { libloading::Library::new(&path) }.map_err(io::Error::other)
    });
    let _ = fs::remove_file(&path);
    // The linker knows the name only while the empty library is loaded, so it is never unloaded.
    loaded.map(std::mem::forget)
}

/// Returns the bytes of an empty shared library (ELF) that is called `name` and depends on `library`. Returns `None` on
/// any platform other than Linux with glibc on x86-64 or little-endian AArch64.
///
/// The file has only the parts that the System V ABI (chapter 5, dynamic linking) requires. These are one writable
/// segment, the dynamic section, and a symbol table and a hash table without symbols.
fn alias(library: &str, name: &str) -> Option<Vec<u8>> {
    const HEADER: usize = 64;
    const SEGMENT: usize = 56;
    const SEGMENTS: usize = 3;
    const SYMBOL: usize = 24;
    let machine: u16 = match () {
        () if cfg!(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")) => 62,
        () if cfg!(all(target_os = "linux", target_env = "gnu", target_arch = "aarch64", target_endian = "little")) => {
            183
        }
        () => return None,
    };
    let strings = format!("\0{name}\0{library}\0");
    let hash = HEADER + SEGMENTS * SEGMENT;
    let symbols = hash + 16;
    let dynamic = symbols + SYMBOL;
    let (needed, soname, string_table, hash_table, symbol_table, string_size, symbol_size) = (1, 14, 5, 4, 6, 10, 11);
    let entries = 8;
    let names = dynamic + 16 * entries;
    let size = names + strings.len();
    let dynamic_section: [[usize; 2]; 8] = [
        [soname, 1],
        [needed, 2 + name.len()],
        [hash_table, hash],
        [string_table, names],
        [symbol_table, symbols],
        [string_size, strings.len()],
        [symbol_size, SYMBOL],
        [0, 0],
    ];

    let mut file = Vec::with_capacity(size);
    let word = |file: &mut Vec<u8>, values: &[usize]| {
        values.iter().for_each(|&value| file.extend((value as u64).to_le_bytes()));
    };
    let half = |file: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|value| file.extend(value.to_le_bytes()));
    let quarter = |file: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|value| file.extend(value.to_le_bytes()));
    // The file header: 64 bits, little-endian, ELF version 1. Type 3 is a shared library.
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    quarter(&mut file, &[3, machine]);
    half(&mut file, &[1]);
    word(&mut file, &[0, HEADER, 0]);
    half(&mut file, &[0]);
    quarter(&mut file, &[HEADER as u16, SEGMENT as u16, SEGMENTS as u16, 64, 0, 0]);
    // Three program headers: a segment that loads the whole file readable and writable, the place of the dynamic
    // section, and a stack that is not executable.
    let (load, dynamic_part, stack, read_write) = (1, 2, 0x6474_e551, 6);
    let dynamic_size = 16 * entries;
    for (kind, at, bytes, align) in
        [(load, 0, size, 0x10000), (dynamic_part, dynamic, dynamic_size, 8), (stack, 0, 0, 16)]
    {
        half(&mut file, &[kind, read_write]);
        word(&mut file, &[at, at, at, bytes, bytes, align]);
    }
    // The hash table: one bucket and one symbol, which is the undefined symbol that every table begins with.
    half(&mut file, &[1, 1, 0, 0]);
    file.extend([0; SYMBOL]);
    dynamic_section.iter().for_each(|entry| word(&mut file, entry));
    file.extend(strings.as_bytes());
    Some(file)
}

#[cfg(test)]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    fn loads(name: &str) -> bool {
        library::load(name).is_ok()
    }

    /// Tests that a library can be opened under another name and called. The test uses the C library's mathematical
    /// functions (`libm`) in place of NCCL.
    #[test]
    fn a_library_can_be_loaded_under_another_name() {
        const NAME: &str = "libstageline-other-name.so";
        assert!(!loads(NAME));
        load_under_name("libm.so.6", NAME).unwrap();
        // SAFETY: the library has no initialisers, and `cos` has that type.
        unsafe {
            let library = libloading::Library::new(NAME).unwrap();
            let cos = library.get::<extern "C" fn(f64) -> f64>(b"cos\0").unwrap();
            assert_eq!(cos(0.0), 1.0);
        }
        let left = fs::read_dir(env::temp_dir()).unwrap().filter_map(Result::ok);
        let name = format!("stageline-{}-{NAME}", process::id());
        assert!(left.map(|file| file.file_name()).all(|file| *file != *name));
    }

    #[test]
    fn a_missing_library_cannot_be_loaded_under_another_name() {
        assert!(load_under_name("libstageline-missing.so.7", "libstageline-missing.so").is_err());
        assert!(!loads("libstageline-missing.so"));
    }

    /// Tests that NCCL counts as installed if its library can be loaded under one of its file names.
    #[test]
    fn tensors_go_through_the_host_only_without_nccl() {
        let installed = KNOWN.into_iter().chain([PACKAGED]).any(loads);
        assert_eq!(matches!(load(), BetweenGpus::Nccl(_)), installed);
    }

    /// Tests that a broken library of NCCL is reported with its file name and the linker's message. The broken library
    /// is not reported if NCCL loads under another name.
    #[test]
    fn a_broken_library_is_told_from_a_missing_one() {
        let broken = |name: &str| Err(Unloadable::Broken(format!("{name}: file too short")));
        let renamed = |_: &str, _: &str| Ok(());
        assert_eq!(search(|_| Err(Unloadable::Missing), renamed), BetweenGpus::Host);
        let only_packaged = |name: &str| if name == PACKAGED { broken(name) } else { Err(Unloadable::Missing) };
        let BetweenGpus::HostWithBrokenNccl(cause) = search(only_packaged, renamed) else { panic!("it is broken") };
        assert!(cause.starts_with(PACKAGED) && cause.contains("file too short"), "{cause}");
        let all_but_one = |name: &str| if name == KNOWN[2] { Ok(()) } else { broken(name) };
        assert_eq!(search(all_but_one, renamed), BetweenGpus::Nccl(KNOWN[2]));
        let without_name = |name: &str| if name == PACKAGED { Ok(()) } else { Err(Unloadable::Missing) };
        let refused = search(without_name, |_, _| Err(io::ErrorKind::PermissionDenied.into()));
        let BetweenGpus::HostWithBrokenNccl(cause) = refused else { panic!("{refused:?}") };
        assert!(cause.contains("under the name libnccl.so: "), "{cause}");
    }
}
