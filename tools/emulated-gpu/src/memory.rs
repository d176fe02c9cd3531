//! The contents of emulated device memory, if the emulation runs kernels: allocation, copies, and the ranges that
//! kernels may access.

use std::alloc::{Layout, alloc};
use std::sync::atomic::{AtomicU64, Ordering};

/// The byte that fills uninitialised device memory: as floats, such bytes are NaN, and as addresses, they are invalid.
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

/// Copies bytes between two addresses in host or device memory; the two ranges may overlap.
pub fn copy(to: u64, from: u64, bytes: usize) {
    // SAFETY: the caller of the driver or of NCCL has this much memory at both addresses, as their APIs require.
    unsafe { (to as *mut u8).copy_from(from as *const u8, bytes) };
}

/// The size, in bytes, of a sector: the smallest unit in which an NVIDIA GPU reads or writes memory.
const SECTOR: u64 = 32;

/// The device memory that a kernel may access, as sorted address ranges. Each range records which sectors (of 32 bytes)
/// the kernel has accessed.
#[derive(Debug, Default)]
pub struct Ranges(Vec<Range>);

/// An allocation of device memory that a kernel may access.
#[derive(Debug)]
struct Range {
    begin: u64,
    end: u64,
    /// One bit for each sector (32 bytes) of the allocation, set once the kernel has accessed the sector.
    accessed: Vec<AtomicU64>,
}

impl Ranges {
    /// Creates the list of address ranges that a kernel may access, from allocations, each given by its address and its
    /// length in bytes.
    pub fn of(allocations: impl Iterator<Item = (u64, u64)>) -> Self {
        let range = |(begin, bytes): (u64, u64)| {
            let words = bytes.div_ceil(SECTOR).div_ceil(u64::from(u64::BITS));
            Range { begin, end: begin + bytes, accessed: (0..words).map(|_| AtomicU64::new(0)).collect() }
        };
        let mut ranges: Vec<_> = allocations.map(range).collect();
        ranges.sort_unstable_by_key(|range| range.begin);
        Self(ranges)
    }

    /// Returns a pointer to the bytes that a kernel accesses at a device memory address, and records which sectors the
    /// access touches.
    ///
    /// # Errors
    /// Returns an error if the bytes are not within one allocation.
    pub fn pointer(&self, at: u64, bytes: usize) -> Result<*mut u8, String> {
        let behind = self.0.partition_point(|range| range.begin <= at);
        match behind.checked_sub(1).map(|index| &self.0[index]) {
            Some(range) if at <= range.end && range.end - at >= bytes as u64 => {
                range.note(at, bytes as u64);
                Ok(at as *mut u8)
            }
            _ => Err(format!("accesses {bytes} bytes at {at:#x}, which are not allocated")),
        }
    }

    /// Returns the total size, in bytes, of the sectors (32 bytes each) that the kernel has accessed, each counted
    /// once.
    pub fn accessed(&self) -> u64 {
        let words = self.0.iter().flat_map(|range| &range.accessed);
        words.map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()) * SECTOR).sum()
    }
}

impl Range {
    fn note(&self, at: u64, bytes: u64) {
        let sectors = (at - self.begin) / SECTOR..(at - self.begin + bytes).div_ceil(SECTOR);
        for sector in sectors {
            let (word, bit) = (&self.accessed[(sector / 64) as usize], 1 << (sector % 64));
            // Most sectors have been accessed before, and reading the bit is cheaper than writing it.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }
}
