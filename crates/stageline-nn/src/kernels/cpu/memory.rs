//! The memory that CPU kernels use between steps ([`prepare_thread`]).

use super::matrix;

/// Prepares this thread for CPU kernels. The thread allocates the buffers into which products copy their operands, and
/// keeps them until it ends. Without this call, the thread's first products would allocate them.
///
/// On Linux with glibc, the heap of each thread also keeps up to 64 MiB of freed memory at its end, and the freed
/// memory between blocks in use, whatever the environment's `MALLOC_` variables say. By default glibc returns the memory
/// of large tensors to the system, which clears it before the next tensors can use it.
pub fn prepare_thread() {
    keep_freed_memory();
    matrix::allocate_buffers();
}

/// Sets glibc's bounds to those that it reaches by itself after a program has freed a block of 32 MiB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_freed_memory() {
    use std::sync::Once;
    /// The size from which glibc asks the system for each block of memory.
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
