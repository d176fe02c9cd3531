//! Device memory with contents, for runs that compute.

use std::alloc::{Layout, alloc};

/// The byte that fills memory before it is written: as a float it is NaN, as an address it is invalid.
pub const UNSET: u8 = 0xFF;

/// Allocates memory, and returns its address, which is one of the host. The memory is never freed, because a stream may still use it.
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

/// Copies bytes between two addresses, which may overlap.
pub fn copy(to: u64, from: u64, bytes: usize) {
    // SAFETY: the caller of the driver or of NCCL has this much memory at both addresses, as their APIs require.
    unsafe { (to as *mut u8).copy_from(from as *const u8, bytes) };
}

/// The memory that kernels may access, as sorted ranges of addresses.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<[u64; 2]>);

impl Ranges {
    /// Makes ranges from addresses and lengths.
    pub fn of(allocations: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut ranges: Vec<_> = allocations.map(|(begin, bytes)| [begin, begin + bytes]).collect();
        ranges.sort_unstable();
        Self(ranges)
    }

    /// Returns a pointer to the bytes at an address.
    ///
    /// # Errors
    /// Fails if the bytes are not within one range.
    pub fn pointer(&self, at: u64, bytes: usize) -> Result<*mut u8, String> {
        let behind = self.0.partition_point(|[begin, _]| *begin <= at);
        match behind.checked_sub(1).map(|index| self.0[index]) {
            Some([_, end]) if at <= end && end - at >= bytes as u64 => Ok(at as *mut u8),
            _ => Err(format!("accesses {bytes} bytes at {at:#x}, which are not allocated")),
        }
    }
}
