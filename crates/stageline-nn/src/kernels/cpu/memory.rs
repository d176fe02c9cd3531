//! Keeps memory that CPU kernels use again in every training step ([`prepare_process`], [`prepare_thread`]).

use super::matrix;

/// Prepares the process for threads that run CPU kernels and are started later.
///
/// On Linux with glibc, this function makes glibc keep freed memory for later tensors: all memory of the heaps of
/// threads, and up to 128 MiB of the main thread's. Blocks of 32 MiB or more that have a mapping of their own still go
/// back to the operating system. By default glibc returns the memory of large tensors to the operating system, which
/// clears it before the next tensors can use it. The 64 MiB of a new heap become writable at once, and so count where
/// the administrator limits memory that is allocated but not used. The call replaces the settings of the `MALLOC_`
/// environment variables.
pub fn prepare_process() {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    keep_freed_memory();
}

/// Prepares this thread for CPU kernels: allocates the buffers for packed matrices, which the thread keeps until it
/// ends. Without this call, its first matrix products would allocate them.
pub fn prepare_thread() {
    matrix::allocate_buffers();
}

/// Sets when glibc returns memory to the operating system. The first two values are those that glibc itself would reach
/// after a program has freed a block of 32 MiB. With the third, a thread's heaps are neither cut nor unmapped: their
/// memory would have to be cleared and moved into huge pages again in every micro-batch.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
fn keep_freed_memory() {
    use std::sync::Once;
    /// Block size in bytes from which glibc requests each block of memory separately from the operating system.
    const OWN_MAPPING: i32 = 32 << 20;
    /// Size in bytes of a thread's heap in glibc. A thread with more memory has several.
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
