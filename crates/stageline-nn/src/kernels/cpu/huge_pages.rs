//! Puts the memory of matrices into huge pages ([`advise`]).
//!
//! A processor caches the addresses of pages in its TLB. With pages of 4 KiB, the TLB covers a few MiB, and a stage's
//! parameters and activations need more. Each miss costs a walk of the page tables, which is slow on a virtual machine.
//! Huge pages of 2 MiB need 512 times fewer entries.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

/// Size in bytes of the regions that [`advise`] puts into huge pages: that of the heaps in which glibc allocates a
/// thread's memory, which begin at multiples of it.
const REGION: usize = 64 << 20;

thread_local! {
    /// The regions that this thread has put into huge pages, each as its address divided by [`REGION`].
    static REGIONS: RefCell<HashSet<usize>> = RefCell::default();
}

/// Puts a matrix into huge pages, and the memory around it, in which later matrices will be allocated. Addresses and
/// contents stay the same. Without effect where the operating system has no huge pages, or its administrator has
/// disabled them.
pub fn advise(matrix: Range<*const f32>) {
    let regions = matrix.start.addr() / REGION..matrix.end.addr().div_ceil(REGION);
    REGIONS.with_borrow_mut(|done| {
        for region in regions {
            if done.insert(region) {
                use_huge_pages(region * REGION);
            }
        }
    });
}

/// Asks Linux to use huge pages in the region at `address`: for memory that the program writes to for the first time,
/// and for memory that it uses already. Linux before 6.1 moves the latter in the background, in the course of minutes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn use_huge_pages(address: usize) {
    use std::sync::LazyLock;
    /// Size of a huge page in bytes, where normal pages have 4 KiB.
    const PAGE: usize = 2 << 20;
    static ALLOWED: LazyLock<bool> = LazyLock::new(|| {
        let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        modes.is_ok_and(|modes| !modes.contains("[never]"))
    });
    if !*ALLOWED {
        return;
    }
    let advise = |address: usize, bytes: usize, advice: libc::c_int| {
        // SAFETY: the advice changes neither the contents of memory nor the access to it, also if parts of the memory
        // are not the program's. An error changes nothing.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(address), bytes, advice) };
    };
    advise(address, REGION, libc::MADV_HUGEPAGE);
    // One by one, because Linux would stop at the first that it cannot move.
    (address..address + REGION).step_by(PAGE).for_each(|page| advise(page, PAGE, libc::MADV_COLLAPSE));
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn use_huge_pages(_address: usize) {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Size of a huge page in bytes.
    const PAGE: usize = 2 << 20;

    /// Returns memory that is written to in small pages, as a list of 32 MiB.
    fn written() -> Vec<f32> {
        (0..8 << 20).map(|index| index as f32).collect()
    }

    /// Returns how many bytes in huge pages the kernel counts in all mappings that contain a part of `memory`.
    fn huge_bytes(memory: Range<*const f32>) -> usize {
        let (mut inside, mut kib) = (false, 0);
        for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            let number = |text: &str| usize::from_str_radix(text, 16).ok();
            let addresses = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            if let Some((Some(start), Some(end))) = addresses.map(|(start, end)| (number(start), number(end))) {
                inside = start < memory.end.addr() && end > memory.start.addr();
            }
            if inside && let Some(count) = line.strip_prefix("AnonHugePages:") {
                kib += count.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        kib * 1024
    }

    /// Whether Linux moves memory into huge pages on request.
    fn linux_moves_pages() -> bool {
        let numbers = written();
        let first = numbers.as_ptr().addr().next_multiple_of(PAGE);
        // SAFETY: the page lies in the list, and the advice does not change its contents.
        let moved = unsafe { libc::madvise(std::ptr::without_provenance_mut(first), PAGE, libc::MADV_COLLAPSE) };
        let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        moved == 0 && !modes.is_empty() && !modes.contains("[never]")
    }

    #[test]
    fn a_matrix_moves_into_huge_pages_with_its_contents() {
        let numbers = written();
        advise(numbers.as_ptr_range());
        assert!(numbers.iter().enumerate().all(|(index, number)| *number == index as f32));
        if linux_moves_pages() {
            let huge = huge_bytes(numbers.as_ptr_range());
            assert!(huge >= size_of_val(&numbers[..]) / 2, "{huge} bytes are in huge pages");
        }
    }
}
