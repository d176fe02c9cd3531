//! What the threads of a worker hold of the host's memory, in bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use crate::recording::events::Held;

/// A global allocator that counts what every worker's threads allocate until somebody frees it, wherever that is.
///
/// With it a step's [`Recording`](crate::Recording) has the memory of stages whose devices are CPUs. Every allocation is longer
/// by its alignment, and by 16 bytes at least.
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
    /// Counts what the system's allocator gives.
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
    /// Counts what another allocator gives.
    pub const fn on(allocator: A) -> Self {
        Self(allocator)
    }
}

/// A worker's count. It is never freed, because what the worker allocated may outlive it.
#[derive(Default)]
#[repr(align(128))] // no cache line with another worker's
pub(crate) struct Meter {
    held: AtomicUsize,
    peak: AtomicUsize,
    /// What its own threads have allocated and not freed: what others free of it is still there.
    kept: AtomicIsize,
}

thread_local! {
    static METER: Cell<Option<&'static Meter>> = const { Cell::new(None) };
}

impl Meter {
    /// A meter, on which this thread's allocations are counted from now on; none where nothing counts them.
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

    /// Counts what this thread allocates from now on.
    pub(crate) fn count_this_thread(&'static self) {
        METER.set(Some(self));
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn take_peak(&self) -> usize {
        self.peak.swap(self.held(), Ordering::Relaxed)
    }

    /// What is held, and since this was last asked the most of it, and what the worker itself has added.
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

    /// Counts a change for the worker itself, if this is one of its threads.
    fn keep(&'static self, bytes: isize) {
        if METER.get().is_some_and(|own| std::ptr::eq(own, self)) {
            self.kept.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// Whose an allocation is; it lies right before it.
type Owner = Option<&'static Meter>;

/// The layout with room for the owner before it, and how much room that is; none where it is too large.
fn with_owner(layout: Layout) -> Option<(Layout, usize)> {
    let layout = layout.align_to(align_of::<Owner>()).ok()?;
    // Malloc's alignment of large blocks stays.
    let room = layout.align().max(16);
    let size = layout.size().checked_add(room)?;
    Some((Layout::from_size_align(size, layout.align()).ok()?, room))
}

/// Signs a block for this thread's worker.
///
/// # Safety
/// `block` is null, or begins with `room` bytes, aligned for an owner, before `size` others.
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

/// # Safety
/// `data` came from [`sign`].
unsafe fn owner(data: *mut u8) -> Owner {
    // SAFETY: that wrote it there.
    unsafe { data.cast::<Owner>().sub(1).read() }
}

// SAFETY: blocks are the inner allocator's, longer by a room that keeps their alignment; what is handed out lies behind the
// room, and what comes back is handed on with it, in the layout in which it was asked for.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, room)) = with_owner(layout) else { return null_mut() };
        // SAFETY: the layout has a size, that of the room at least.
        unsafe { sign(self.0.alloc(whole), room, layout.size()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((whole, room)) = with_owner(layout) else { return null_mut() };
        // SAFETY: as for `alloc`.
        unsafe { sign(self.0.alloc_zeroed(whole), room, layout.size()) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        let Some((whole, room)) = with_owner(layout) else { return };
        // SAFETY: the caller has it from here, in this layout.
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
        // SAFETY: the caller has it from here, in this layout; the owner moves along with the rest of the block.
        unsafe {
            let owner = owner(data);
            let block = self.0.realloc(data.sub(room), whole, longer);
            if block.is_null() {
                return block;
            }
            if let Some(meter) = owner {
                // A copy on the way is not counted.
                meter.shrink(layout.size());
                meter.grow(size);
                meter.keep(size as isize - layout.size() as isize);
            }
            block.add(room)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicPtr;

    use super::*;
    use proptest::prelude::*;

    const ALLOCATOR: CountingAllocator = CountingAllocator::new();

    proptest! {
        /// Whatever is done to a block: it keeps its alignment and its bytes, and exactly its size is counted.
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
            // SAFETY: sizes are above 0, and every block is used in its layout only, and freed once.
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
    fn what_another_thread_frees_is_no_longer_held_but_was_not_given_up() {
        let meter: &'static Meter = Box::leak(Box::default());
        meter.count_this_thread();
        let layout = Layout::from_size_align(1000, 8).unwrap();
        // SAFETY: both blocks are used in their layout, and freed once.
        let there = unsafe { [ALLOCATOR.alloc(layout), ALLOCATOR.alloc(layout)] }.map(AtomicPtr::new);
        assert_eq!(meter.read(), Held { end: 2000, peak: 2000, kept: 2000 });
        std::thread::scope(|scope| {
            // SAFETY: as above.
            scope.spawn(|| unsafe { ALLOCATOR.dealloc(there[0].load(Ordering::Relaxed), layout) });
        });
        assert_eq!(meter.read(), Held { end: 1000, peak: 2000, kept: 0 });
        // SAFETY: as above.
        unsafe { ALLOCATOR.dealloc(there[1].load(Ordering::Relaxed), layout) };
        assert_eq!(meter.read(), Held { end: 0, peak: 1000, kept: -1000 });
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let layout = Layout::from_size_align(isize::MAX as usize - 7, 8).unwrap();
        // SAFETY: nothing is given, and the small block is used in its layout and freed once.
        unsafe {
            assert!(ALLOCATOR.alloc(layout).is_null());
            let small = Layout::from_size_align(8, 8).unwrap();
            let data = ALLOCATOR.alloc(small);
            assert!(ALLOCATOR.realloc(data, small, isize::MAX as usize - 7).is_null());
            ALLOCATOR.dealloc(data, small);
            // Too large only when it is rounded up to its alignment.
            let aligned = Layout::from_size_align(64, 64).unwrap();
            let data = ALLOCATOR.alloc(aligned);
            assert!(ALLOCATOR.realloc(data, aligned, isize::MAX as usize - 74).is_null());
            ALLOCATOR.dealloc(data, aligned);
        }
    }

    #[test]
    fn where_nothing_counts_there_is_no_meter() {
        assert!(Meter::start().is_none(), "the unit tests have the system's allocator");
    }
}
