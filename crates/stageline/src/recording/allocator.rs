//! Measures the host memory of each worker: [`CountingAllocator`] is a global allocator that attributes every
//! allocation to the worker whose thread made it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

/// A global allocator that counts the host memory of each worker. An allocation counts for the worker whose thread made
/// it, until any thread frees it. The memory itself comes from the allocator `A`, by default the system's allocator.
///
/// With this allocator, a step's [`Recording`](crate::Recording) contains the allocated memory of stages on CPUs. In
/// return, every allocation grows by its alignment, but by no less than 16 bytes.
///
/// ```
/// use stageline::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
/// # fn main() {}
/// ```
pub struct CountingAllocator<A = System>(A);

impl CountingAllocator {
    /// Creates an allocator that counts the host memory of each worker and takes memory from the system's allocator.
    pub const fn new() -> Self {
        Self(System)
    }
}

impl Default for CountingAllocator {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> CountingAllocator<A> {
    /// Creates an allocator that counts the host memory of each worker and takes memory from the given `allocator`.
    pub const fn on(allocator: A) -> Self {
        Self(allocator)
    }
}

/// Tracks one worker's host memory: the allocated bytes, their peak, and the net change since the last `read`. A meter
/// is never freed, because the worker's allocations may outlive the worker.
#[derive(Default)]
#[repr(align(128))] // so that no two workers' counts share a cache line
pub(crate) struct Meter {
    /// Bytes of host memory that the worker's threads have allocated and that are not freed yet.
    held: AtomicUsize,
    /// Peak of the worker's allocated bytes since the last `read`.
    peak: AtomicUsize,
    /// Bytes allocated minus bytes freed by the worker's own threads since the last `read`. Frees by other threads do
    /// not count.
    kept: AtomicIsize,
}

thread_local! {
    static METER: Cell<Option<&'static Meter>> = const { Cell::new(None) };
}

impl Meter {
    /// Creates a meter (memory tracker) that counts the calling thread's allocations. Returns `None` if the program's
    /// allocator is not a [`CountingAllocator`].
    pub(crate) fn start() -> Option<&'static Self> {
        let meter: &'static Self = Box::leak(Box::default());
        meter.count_this_thread();
        let counts = {
            let _allocation = std::hint::black_box(Box::new(0_u8));
            meter.held() > 0
        };
        METER.set(counts.then_some(meter));
        counts.then_some(meter)
    }

    /// Makes this meter count all further allocations of the calling thread.
    pub(crate) fn count_this_thread(&'static self) {
        METER.set(Some(self));
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn take_peak(&self) -> usize {
        self.peak.swap(self.held(), Ordering::Relaxed)
    }

    /// Returns the worker's allocated host memory in bytes: the current amount, and the peak and the own threads' net
    /// change since the last call.
    pub(crate) fn read(&self) -> Held {
        let kept = self.kept.swap(0, Ordering::Relaxed) as i64;
        Held { end: self.held() as u64, peak: self.take_peak() as u64, kept }
    }

    fn grow(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if held > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(held, Ordering::Relaxed);
        }
    }

    fn shrink(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` (an allocation's size, or a freed block's size negated) to the net change by the worker's own
    /// threads. Has no effect on any other thread.
    fn keep(&'static self, bytes: isize) {
        if METER.get().is_some_and(|own| std::ptr::eq(own, self)) {
            self.kept.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// The memory meter of the worker that owns an allocation; `None` if no worker owns the allocation. The allocator
/// stores this value directly before the allocation's data.
type Owner = Option<&'static Meter>;

/// Returns the layout of a memory block with extra space in front of the data, and the size of that space in bytes. The
/// space stores the block's owner (a worker's memory meter). Returns `None` if the block would be too large.
fn with_owner(layout: Layout) -> Option<(Layout, usize)> {
    let layout = layout.align_to(align_of::<Owner>()).ok()?;
    // At least 16 bytes are added in front of the data, to keep the alignment that malloc gives to large blocks.
    let room = layout.align().max(16);
    let size = layout.size().checked_add(room)?;
    Some((Layout::from_size_align(size, layout.align()).ok()?, room))
}

/// Writes a new memory block's owner (the memory meter of the current thread's worker) in front of the block's data.
/// Counts the `size` bytes of data for this worker, and returns the address of the data.
///
/// # Safety
/// `block` must be null, or begin with `room` bytes of space for the owner, aligned for an owner, followed by `size`
/// bytes of data.
unsafe fn sign(block: *mut u8, room: usize, size: usize) -> *mut u8 {
    if block.is_null() {
        return block;
    }
    let owner: Owner = METER.get();
    if let Some(meter) = owner {
        meter.grow(size);
        meter.keep(size as isize);
    }
    // SAFETY: an owner, aligned as the block is, fits in the last bytes of the room.
    unsafe {
        let data = block.add(room);
        data.cast::<Owner>().sub(1).write(owner);
        data
    }
}

/// Returns the memory meter of the worker whose thread made an allocation; `None` if it was made on no worker's thread.
/// `data` is the address of the allocation's data.
///
/// # Safety
/// `data` must have been returned by [`sign`].
unsafe fn owner(data: *mut u8) -> Owner {
    // SAFETY: `sign` wrote the owner directly before the data.
    unsafe { data.cast::<Owner>().sub(1).read() }
}

// SAFETY: a block comes from the inner allocator, and begins with extra bytes (the room) that keep its alignment.
// Callers get the address after the room. A freed block goes back to the inner allocator with its room, in the layout
// of its allocation.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, room)) = with_owner(layout) else { return null_mut() };
        // SAFETY: the layout's size is not 0, because it includes the room.
        unsafe { sign(self.0.alloc(whole), room, layout.size()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((whole, room)) = with_owner(layout) else { return null_mut() };
        // SAFETY: the layout's size is not 0, as in `alloc`.
        unsafe { sign(self.0.alloc_zeroed(whole), room, layout.size()) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        let Some((whole, room)) = with_owner(layout) else { return };
        // SAFETY: the caller got the data from this allocator, in this layout.
        unsafe {
            if let Some(meter) = owner(data) {
                meter.shrink(layout.size());
                meter.keep(-(layout.size() as isize));
            }
            self.0.dealloc(data.sub(room), whole);
        }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some((whole, room)) = with_owner(layout) else { return null_mut() };
        let longer = size.checked_add(room).and_then(|longer| Layout::from_size_align(longer, whole.align()).ok());
        let Some(longer) = longer.map(|layout| layout.size()) else { return null_mut() };
        // SAFETY: the caller got the data from this allocator, in this layout; the owner moves with the rest of the
        // block.
        unsafe {
            let owner = owner(data);
            let block = self.0.realloc(data.sub(room), whole, longer);
            if block.is_null() {
                return block;
            }
            if let Some(meter) = owner {
                // A temporary second copy inside the inner allocator is not counted.
                meter.shrink(layout.size());
                meter.grow(size);
                meter.keep(size as isize - layout.size() as isize);
            }
            block.add(room)
        }
    }
}

use stageline_schedule::Held;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicPtr;

    use super::*;
    use proptest::prelude::*;

    const ALLOCATOR: CountingAllocator = CountingAllocator::new();

    proptest! {
        /// Tests that reallocations keep a memory block's bytes and alignment, and that the worker's meter counts the
        /// block's size.
        #[test]
        fn blocks_keep_their_bytes_and_their_owner(
            sizes in prop::collection::vec(1_usize..5000, 1..6),
            power in 0_u32..13,
            zeroed: bool,
        ) {
            let meter: &'static Meter = Box::leak(Box::default());
            meter.count_this_thread();
            let align = 1 << power;
            let mut layout = Layout::from_size_align(sizes[0], align).unwrap();
            let first = sizes[0];
            // SAFETY: sizes are above 0, and every block is used only in its layout and freed once.
            unsafe {
                let mut data = if zeroed { ALLOCATOR.alloc_zeroed(layout) } else { ALLOCATOR.alloc(layout) };
                prop_assert_eq!(meter.held(), first);
                prop_assert_eq!(data as usize % align, 0);
                if zeroed {
                    prop_assert!((0..first).all(|at| *data.add(at) == 0));
                }
                let mut common = first;
                (0..first).for_each(|at| data.add(at).write(at as u8));
                METER.set(None);
                for &size in &sizes[1..] {
                    data = ALLOCATOR.realloc(data, layout, size);
                    layout = Layout::from_size_align(size, align).unwrap();
                    common = common.min(size);
                    prop_assert_eq!(data as usize % align, 0);
                    prop_assert!((0..common).all(|at| *data.add(at) == at as u8));
                    prop_assert_eq!(meter.held(), size);
                }
                ALLOCATOR.dealloc(data, layout);
            }
            prop_assert_eq!(meter.held(), 0);
            prop_assert!(meter.take_peak() >= *sizes.iter().max().unwrap());
            prop_assert_eq!(meter.take_peak(), 0);
        }
    }

    #[test]
    fn a_free_on_another_thread_lowers_the_memory_in_use_but_not_the_owners_balance() {
        let meter: &'static Meter = Box::leak(Box::default());
        meter.count_this_thread();
        let layout = Layout::from_size_align(1000, 8).unwrap();
        // SAFETY: both blocks are used only in their layout, and freed once.
        let there = unsafe { [ALLOCATOR.alloc(layout), ALLOCATOR.alloc(layout)] }.map(AtomicPtr::new);
        assert_eq!(meter.read(), Held { end: 2000, peak: 2000, kept: 2000 });
        std::thread::scope(|scope| {
            // SAFETY: each block is used only in its layout, and freed once.
            scope.spawn(|| unsafe { ALLOCATOR.dealloc(there[0].load(Ordering::Relaxed), layout) });
        });
        assert_eq!(meter.read(), Held { end: 1000, peak: 2000, kept: 0 });
        // SAFETY: each block is used only in its layout, and freed once.
        unsafe { ALLOCATOR.dealloc(there[1].load(Ordering::Relaxed), layout) };
        assert_eq!(meter.read(), Held { end: 0, peak: 1000, kept: -1000 });
    }

    #[test]
    fn allocations_that_are_too_large_return_null() {
        let layout = Layout::from_size_align(isize::MAX as usize - 7, 8).unwrap();
        // SAFETY: the large requests return null, and the small blocks are used only in their layouts and freed once.
        unsafe {
            assert!(ALLOCATOR.alloc(layout).is_null());
            let small = Layout::from_size_align(8, 8).unwrap();
            let data = ALLOCATOR.alloc(small);
            assert!(ALLOCATOR.realloc(data, small, isize::MAX as usize - 7).is_null());
            ALLOCATOR.dealloc(data, small);
            // This size is too large only after it is rounded up to its alignment.
            let aligned = Layout::from_size_align(64, 64).unwrap();
            let data = ALLOCATOR.alloc(aligned);
            assert!(ALLOCATOR.realloc(data, aligned, isize::MAX as usize - 74).is_null());
            ALLOCATOR.dealloc(data, aligned);
        }
    }

    #[test]
    fn without_a_counting_allocator_there_is_no_meter() {
        assert!(Meter::start().is_none(), "the unit tests use the system's allocator");
    }
}
