//! The contents of emulated device memory, for runs in which kernels compute: allocation, copies, and the ranges that
//! kernels may access.

use std::alloc::{Layout, alloc};

/// The byte that fills device memory before it is written: floats of such bytes are NaN, and addresses of such bytes
/// are invalid.
pub const UNSET: u8 = 0xFF;

/// Allocates emulated device memory in host memory, and returns its address. The memory is never freed, because a
/// stream may still use it.
pub fn allocate(bytes: usize, alignment: usize) -> Option<u64> {
    let layout = Layout::from_size_align(bytes.max(1), alignment).ok()?;
    // SAFETY: the layout has at least one byte.
    let pointer = unsafe { alloc(layout) };
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the bytes were just allocated.
    unsafe { pointer.write_bytes(UNSET, bytes) };
    Some(pointer as u64)
}

/// Copies bytes between two addresses of host or device memory; the two ranges of bytes may overlap.
pub fn copy(to: u64, from: u64, bytes: usize) {
    // SAFETY: the caller of the driver or of NCCL has this much memory at both addresses, as their APIs require.
    unsafe { (to as *mut u8).copy_from(from as *const u8, bytes) };
}

/// The device memory that kernels may access, as sorted ranges of addresses.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<[u64; 2]>);

impl Ranges {
    /// Makes the ranges that kernels may access from the addresses and lengths of allocations.
    pub fn of(allocations: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut ranges: Vec<_> = allocations.map(|(begin, bytes)| [begin, begin + bytes]).collect();
        ranges.sort_unstable();
        Self(ranges)
    }

    /// Returns a pointer to the bytes at an address that a kernel accesses.
    ///
    /// # Errors
    /// Fails if the bytes are not within one allocation.
    pub fn pointer(&self, at: u64, bytes: usize) -> Result<*mut u8, String> {
        let behind = self.0.partition_point(|[begin, _]| *begin <= at);
        match behind.checked_sub(1).map(|index| self.0[index]) {
            Some([_, end]) if at <= end && end - at >= bytes as u64 => Ok(at as *mut u8),
            _ => Err(format!("accesses {bytes} bytes at {at:#x}, which are not allocated")),
        }
    }
}
