//! Memory of devices that is there.

use std::alloc::{Layout, alloc};

/// What memory holds before it is written: no numbers, and no places in memory.
pub const UNSET: u8 = 0xFF;

/// Memory that is kept to the end, since what is freed may be in use on a stream. Addresses are the host's.
pub fn allocate(bytes: usize, alignment: usize) -> Option<u64> {
    let layout = Layout::from_size_align(bytes.max(1), alignment).ok()?;
    // SAFETY: it has at least a byte.
    let pointer = unsafe { alloc(layout) };
    if pointer.is_null() {
        return None;
    }
    // SAFETY: so many bytes were just allocated.
    unsafe { pointer.write_bytes(UNSET, bytes) };
    Some(pointer as u64)
}

/// Copies, also where they overlap.
pub fn copy(to: u64, from: u64, bytes: usize) {
    // SAFETY: whoever asks for a copy has so much memory there, as the driver's API and NCCL's have it.
    unsafe { (to as *mut u8).copy_from(from as *const u8, bytes) };
}

/// What kernels may use, by address.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<[u64; 2]>);

impl Ranges {
    /// Of beginnings and lengths.
    pub fn of(allocations: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut ranges: Vec<_> = allocations.map(|(begin, bytes)| [begin, begin + bytes]).collect();
        ranges.sort_unstable();
        Self(ranges)
    }

    /// # Errors
    /// For what is not in one of them.
    pub fn pointer(&self, at: u64, bytes: usize) -> Result<*mut u8, String> {
        let behind = self.0.partition_point(|[begin, _]| *begin <= at);
        match behind.checked_sub(1).map(|index| self.0[index]) {
            Some([_, end]) if at <= end && end - at >= bytes as u64 => Ok(at as *mut u8),
            _ => Err(format!("uses {bytes} bytes at {at:#x}, which is nobody's memory")),
        }
    }
}
