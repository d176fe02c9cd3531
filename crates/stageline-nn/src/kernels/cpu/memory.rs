//! Keeps memory for CPU kernels allocated between training steps ([`prepare_thread`]).

use super::matrix;

/// Prepares this thread for CPU kernels: allocates the buffers for packed matrices, which the thread keeps until it
/// ends. Without this call, its first matrix products would allocate them.
///
/// On Linux with glibc, this function also makes glibc keep freed memory for later tensors: up to 64 MiB at the end of
/// each thread's heap, and all freed memory between blocks in use. Blocks of 32 MiB or more still go back to the
/// operating system. By default glibc returns the memory of large tensors to the operating system, which clears it
/// before the next tensors can use it. The call replaces the settings of the `MALLOC_` environment variables.
pub fn prepare_thread() {
    keep_freed_memory();
    matrix::allocate_buffers();
}

/// Sets glibc's thresholds for returning memory to the operating system. The values are those that glibc itself would
/// reach after a program has freed a block of 32 MiB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_freed_memory() {
    use std::sync::Once;
    /// Block size in bytes from which glibc requests each block of memory separately from the operating system.
    const OWN_MAPPING: i32 = 32 << 20;
    static ONCE: Once = Once::new();
    // SAFETY: each call sets one of glibc's thresholds. A thread that allocates meanwhile uses the old or the new
    // value.
    ONCE.call_once(|| unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * OWN_MAPPING);
    });
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_freed_memory() {}
