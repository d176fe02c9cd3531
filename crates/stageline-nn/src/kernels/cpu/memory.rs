//! The memory that CPU kernels use between steps ([`prepare_thread`]).

use super::matrix;

/// Prepares this thread for CPU kernels. The thread allocates the buffers into which products copy their operands, and
/// keeps these buffers until the thread ends. Without this call, the thread's first products would allocate them.
///
/// On Linux with glibc, this function also makes glibc keep freed memory for later tensors: up to 64 MiB at the end of
/// each thread's heap, and all freed memory between blocks in use. Blocks of 32 MiB or more still go back to the
/// system. By default glibc returns the memory of large tensors to the system, which clears it before the next tensors
/// can use it. The call replaces the settings of the environment's `MALLOC_` variables.
pub fn prepare_thread() {
    keep_freed_memory();
    matrix::allocate_buffers();
}

/// Sets glibc's thresholds for returning memory to the system. The values are those that glibc itself would reach after
/// a program has freed a block of 32 MiB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_freed_memory() {
    use std::sync::Once;
    /// The size in bytes from which glibc requests each block of memory separately from the system.
    const OWN_MAPPING: i32 = 32 << 20;
    static ONCE: Once = Once::new();
    // SAFETY: each call sets one number. A thread that allocates at the same time uses the old or the new one.
    ONCE.call_once(|| unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * OWN_MAPPING);
    });
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_freed_memory() {}
