//! Keeps memory that CPU kernels use again in every training step ([`prepare_process`], [`prepare_thread`]).

use super::matrix;

/// Block size in bytes from which glibc requests a block separately from the operating system, if no heap has room for
/// it. Such a block goes back to the operating system when it is freed.
pub const OWN_MAPPING: usize = 32 << 20;

/// Prepares the process for threads that run CPU kernels and are started later.
///
/// On 64-bit Linux with glibc, this function makes glibc keep freed memory for later tensors: all memory of the heaps
/// of threads, and of the main thread's heap all but what exceeds 64 MiB at its end. Blocks of 32 MiB or more that have
/// a mapping of their own still go back to the operating system. By default glibc returns the memory of large tensors
/// to the operating system, which clears it before the next tensors can use it. The 64 MiB of a new heap become
/// writable at once, and so count where the administrator limits memory that is allocated but not used. The call
/// replaces the settings of `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_` and `MALLOC_TOP_PAD_`.
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
/// after a program has freed a block of 32 MiB. With the third, a thread's heaps are neither cut nor unmapped: otherwise
/// their memory would be cleared in every micro-batch, and would be in normal pages again.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
fn keep_freed_memory() {
    use std::sync::Once;
    /// Size in bytes of a thread's heap in glibc. A thread with more memory has several.
    const HEAP: i32 = 64 << 20;
    static ONCE: Once = Once::new();
    // SAFETY: each call sets one of glibc's parameters. A thread that allocates meanwhile uses the old or the new
    // value.
    ONCE.call_once(|| unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING as i32);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP);
        libc::mallopt(libc::M_TOP_PAD, HEAP);
    });
}
