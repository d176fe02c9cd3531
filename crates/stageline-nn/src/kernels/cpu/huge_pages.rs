//! Moves the memory of matrices into huge pages ([`remember`], [`use_huge_pages`]).
//!
//! A processor caches the addresses of pages in its TLB. With pages of 4 KiB, the TLB covers a few MiB, and a stage's
//! parameters and activations need more. Each miss costs a walk of the page tables, which is slow on a virtual machine.
//! Huge pages of 2 MiB need 512 times fewer entries.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

use super::memory::OWN_MAPPING;

/// Size of a huge page in bytes, on processors whose normal pages have 4 KiB.
const PAGE: usize = 2 << 20;

/// Size in bytes of the smallest matrix that is remembered. A TLB covers smaller ones with normal pages.
const SMALLEST: usize = 128 << 10;

/// The huge pages that contain a thread's matrices or would contain them, each as its address divided by [`PAGE`].
#[derive(Default)]
struct Pages {
    all: HashSet<usize>,
    /// The pages that were not yet moved.
    new: Vec<usize>,
}

thread_local! {
    static PAGES: RefCell<Pages> = RefCell::default();
}

/// Remembers the memory of a matrix for [`use_huge_pages`]. Also asks the operating system to use huge pages when the
/// program writes to this memory for the first time.
pub fn remember(matrix: Range<*const f32>) {
    let bytes = matrix.start.addr()..matrix.end.addr();
    if bytes.len() < SMALLEST {
        return;
    }
    let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
    PAGES.with_borrow_mut(|Pages { all, new }| {
        let before = new.len();
        new.extend(pages.clone().filter(|page| all.insert(*page)));
        // A matrix with a mapping of its own may have come back to the address of an earlier one.
        if new.len() > before || bytes.len() >= OWN_MAPPING {
            advise(pages, Advice::Use);
        }
    });
}

/// Moves the pages of this thread's matrices into huge pages. Each page is moved at most once: one that Linux could not
/// move is not tried again. Addresses and contents stay the same. Nothing happens except on 64-bit Linux with glibc,
/// from version 6.1, and nothing if the administrator has disabled huge pages.
///
/// A thread calls this at the end of a training step. The first call copies up to all memory of the matrices of the
/// worker's stages, which takes 0.4 to 3 seconds per GiB; later calls move only pages that no matrix used before.
pub fn use_huge_pages() {
    PAGES.with_borrow_mut(|Pages { new, .. }| {
        new.sort_unstable();
        for run in new.chunk_by(|page, next| page + 1 == *next) {
            // Linux stops at the first mapping with a page that it cannot move, such as the end of a heap.
            if !advise(run[0]..run[0] + run.len(), Advice::Move) {
                run.iter().for_each(|page| _ = advise(*page..page + 1, Advice::Move));
            }
        }
        new.clear();
    });
}

/// Advice to the operating system about huge pages.
enum Advice {
    /// Use them for memory that the program writes to from now on.
    Use,
    /// Move what is in normal pages now. Linux can do this since version 6.1.
    Move,
}

/// Gives Linux advice on the huge pages `pages`, and returns whether it has followed it for all of them.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
fn advise(pages: Range<usize>, advice: Advice) -> bool {
    use std::sync::LazyLock;
    static ALLOWED: LazyLock<bool> = LazyLock::new(|| {
        let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        modes.is_ok_and(|modes| !modes.contains("[never]"))
    });
    let advice = match advice {
        Advice::Use => libc::MADV_HUGEPAGE,
        Advice::Move => libc::MADV_COLLAPSE,
    };
    let address = std::ptr::without_provenance_mut(pages.start * PAGE);
    // SAFETY: the advice changes neither the contents of memory nor the access to it, also where a page contains memory
    // of others.
    *ALLOWED && unsafe { libc::madvise(address, pages.len() * PAGE, advice) } == 0
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
fn advise(_pages: Range<usize>, _advice: Advice) -> bool {
    true
}

#[cfg(all(test, target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod tests {
    use super::*;

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
        remember(numbers.as_ptr_range());
        use_huge_pages();
        assert!(numbers.iter().enumerate().all(|(index, number)| *number == index as f32));
        if linux_moves_pages() {
            let huge = huge_bytes(numbers.as_ptr_range());
            assert!(huge >= size_of_val(&numbers[..]) / 2, "{huge} bytes are in huge pages");
        }
    }
}
