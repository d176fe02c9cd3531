//! How tensors travel between the GPUs of this host: by NCCL where it can be loaded, else through the host's memory.
//!
//! cudarc, through which burn loads NCCL, does not look for `libnccl.so.2`, the name that NVIDIA's packages install (cudarc 0.19).
//! [`load`] makes that file known by a name that cudarc does look for.

use std::path::Path;
use std::sync::OnceLock;
use std::{env, fs, io, process};

/// The names by which cudarc looks for NCCL, that can be a file of NCCL's.
const KNOWN: [&str; 7] =
    ["libnccl.so", "libnccl.so.13", "libnccl.so.12", "libnccl.so.11", "libnccl.so.10", "libnccl.so.9", "libnccl.so.1"];

/// The name of NCCL 2 in NVIDIA's packages for Debian, Red Hat, conda and pip.
const PACKAGED: &str = "libnccl.so.2";

/// The way of a tensor from one GPU of this host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BetweenGpus {
    /// From GPU to GPU, by NCCL, loaded from the library of that name.
    Nccl(&'static str),
    /// Through the host's memory.
    Host,
}

/// Makes NCCL loadable by burn, if it is installed. Must be called before burn opens the first GPU, which decides it for good.
pub(crate) fn load() -> BetweenGpus {
    static FOUND: OnceLock<BetweenGpus> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if let Some(name) = KNOWN.into_iter().find(|name| loads(name)) {
            return BetweenGpus::Nccl(name);
        }
        let is_known = loads(PACKAGED) && load_under_name(PACKAGED, KNOWN[0]).is_ok() && loads(KNOWN[0]);
        if is_known { BetweenGpus::Nccl(PACKAGED) } else { BetweenGpus::Host }
    })
}

/// Writes to the log how tensors travel between GPUs.
#[cfg(feature = "cuda")]
pub(crate) fn log() {
    match load() {
        BetweenGpus::Nccl(library) => tracing::info!("tensors go from GPU to GPU by NCCL ({library})"),
        BetweenGpus::Host => tracing::warn!(
            "NCCL was not found, so tensors go from GPU to GPU through the host's memory, which is slower: install `libnccl2`, or pip's \
             `nvidia-nccl-cu12` with its folder in LD_LIBRARY_PATH"
        ),
    }
}

fn loads(name: &str) -> bool {
    // SAFETY: the initialisers of NCCL, which is what these names stand for, have no requirements.
    unsafe { libloading::Library::new(name) }.is_ok()
}

/// Loads `library` so that whoever loads `name` from now on finds its functions.
///
/// The dynamic linker does not search for a library whose name (`DT_SONAME`) is already loaded. So this loads an empty library of that
/// name which needs `library`; the functions of a library's needs are found through it.
fn load_under_name(library: &str, name: &str) -> io::Result<()> {
    let alias = alias(library, name).ok_or(io::ErrorKind::Unsupported)?;
    let path = env::temp_dir().join(format!("stageline-{}-{name}", process::id()));
    let loaded = write_new(&path, &alias).and_then(|()| {
        // SAFETY: the library has no initialisers, and `library` is NCCL, whose initialisers have no requirements.
        unsafe { libloading::Library::new(&path) }.map_err(io::Error::other)
    });
    let _ = fs::remove_file(&path);
    // The name stays known as long as the library is loaded.
    loaded.map(std::mem::forget)
}

/// Fails if the file exists, so that nobody else can have prepared it.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use io::Write;

    fs::File::create_new(path)?.write_all(bytes)
}

/// An empty shared library in ELF that is called `name` and needs `library`; `None` for systems without glibc's dynamic linker.
///
/// It has what the System V ABI (chapter 5, dynamic linking) asks for: one writable segment with everything, the dynamic section, and
/// a symbol table with a hash table, both without symbols.
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
    // 64 bits, little-endian, version 1; a shared library.
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    quarter(&mut file, &[3, machine]);
    half(&mut file, &[1]);
    word(&mut file, &[0, HEADER, 0]);
    half(&mut file, &[0]);
    quarter(&mut file, &[HEADER as u16, SEGMENT as u16, SEGMENTS as u16, 64, 0, 0]);
    // Everything is loaded, to be read and written; then where the dynamic section is; and the stack is not to be executed.
    let (load, dynamic_part, stack, read_write) = (1, 2, 0x6474_e551, 6);
    let dynamic_size = 16 * entries;
    for (kind, at, bytes, align) in
        [(load, 0, size, 0x10000), (dynamic_part, dynamic, dynamic_size, 8), (stack, 0, 0, 16)]
    {
        half(&mut file, &[kind, read_write]);
        word(&mut file, &[at, at, at, bytes, bytes, align]);
    }
    // One bucket and one symbol, which is the undefined one.
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

    /// The C library's mathematics stand for NCCL.
    #[test]
    fn a_library_is_found_by_another_name() {
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
    fn a_library_that_is_not_there_has_no_other_name() {
        assert!(load_under_name("libstageline-missing.so.7", "libstageline-missing.so").is_err());
        assert!(!loads("libstageline-missing.so"));
    }

    /// No machine with this test has NCCL's runtime under a name that cudarc knows but not under its own.
    #[test]
    fn without_nccl_tensors_go_through_the_host() {
        let installed = KNOWN.into_iter().chain([PACKAGED]).any(loads);
        assert_eq!(load() != BetweenGpus::Host, installed);
    }
}
