//! Memory that CPU kernels use again in every training step ([`prepare_process`], [`prepare_thread`]).

use super::matrix;

/// Prepares the process for threads that run CPU kernels and are started later.
///
/// On Linux with glibc, this function makes glibc keep freed memory for later tensors: up to 128 MiB at the end of each
/// thread's heap, and all freed memory between blocks in use. Blocks of 32 MiB or more still go back to the operating
/// system. By default glibc returns the memory of large tensors to the operating system, which clears it before the
/// next tensors can use it. A heap also reserves 64 MiB of addresses at once, because only memory that is reserved as a
/// whole can be in huge pages. The call replaces the settings of the `MALLOC_` environment variables.
pub fn prepare_process() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    keep_freed_memory();
}

/// Prepares this thread for CPU kernels: allocates the buffers for packed matrices, which the thread keeps until it
/// ends. Without this call, its first matrix products would allocate them.
pub fn prepare_thread() {
    matrix::allocate_buffers();
}

/// Sets glibc's thresholds for returning memory to the operating system, to the values that glibc itself would reach
/// after a program has freed a block of 32 MiB; and the size of new heaps to the largest.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_freed_memory() {
    use std::sync::Once;
    /// Block size in bytes from which glibc requests each block of memory separately from the operating system.
    const OWN_MAPPING: i32 = 32 << 20;
    /// Size in bytes of the largest heap of a thread in glibc.
    const HEAP: i32 = 64 << 20;
    static ONCE: Once = Once::new();
    // SAFETY: each call sets one of glibc's thresholds. A thread that allocates meanwhile uses the old or the new
    // value.
    ONCE.call_once(|| unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP);
        libc::mallopt(libc::M_TOP_PAD, HEAP);
    });
}
