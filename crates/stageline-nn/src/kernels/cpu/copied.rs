//! [`Copied`]: a kernel's output that begins as a copy of a tensor. Each part is copied immediately before the kernel
//! overwrites it, so that its values cross the memory bus once and not twice.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use rayon::prelude::*;

use super::numbers::{numbers, of_numbers};

/// Number of elements that one CPU core copies and overwrites at a time in an elementwise operation. In f32, they fit
/// into a core's cache. Smaller chunks would not be worth the cost of using another core.
pub const PART: usize = 1 << 14;

/// An output of a CPU kernel that begins as a copy of an f32 tensor. The kernel iterates over [`parts`](Self::parts) of
/// the copy, overwrites their elements with its results, and takes the output with [`tensor`](Self::tensor).
pub struct Copied {
    source: FloatTensor<Flex>,
    memory: Vec<f32>,
    /// Number of elements copied so far by the iterator that the last [`parts`](Self::parts) call returned.
    copied: AtomicUsize,
}

impl Copied {
    /// Allocates memory for a copy of the contiguous f32 tensor `source`. [`parts`](Self::parts) copies the elements
    /// later.
    pub fn of(source: &FloatTensor<Flex>) -> Self {
        let memory = Vec::with_capacity(numbers(source).len());
        Self { source: source.clone(), memory, copied: AtomicUsize::new(0) }
    }

    /// Returns an iterator over the copy in mutable chunks of `size` elements (the last may be smaller), which a kernel
    /// may overwrite. Each chunk is copied from the source when the iterator returns it. The iterator must be run to
    /// its end, or [`tensor`](Self::tensor) panics. Calling `parts` again copies all elements from the source again.
    pub fn parts(&mut self, size: usize) -> impl IndexedParallelIterator<Item = &mut [f32]> {
        *self.copied.get_mut() = 0;
        let (source, copied) = (numbers(&self.source), &self.copied);
        let memory = self.memory.spare_capacity_mut()[..source.len()].par_chunks_mut(size.max(1));
        memory.zip(source.par_chunks(size.max(1))).map(|(memory, source)| {
            copied.fetch_add(source.len(), Ordering::Relaxed);
            memory.write_copy_of_slice(source)
        })
    }

    /// Returns the finished output as a tensor of the source's shape. Elements that the kernel overwrote in the
    /// [`parts`](Self::parts) have their new values, and all others the values of the source.
    ///
    /// # Panics
    /// Panics if the last iterator over the parts did not return all of them.
    pub fn tensor(self) -> FloatTensor<Flex> {
        let Self { source, mut memory, copied } = self;
        let shape = source.shape();
        assert_eq!(copied.into_inner(), shape.num_elements(), "every part of a copy must be requested");
        // SAFETY: `memory` has room for all elements of `source`, and one iterator has copied every part.
        unsafe { memory.set_len(shape.num_elements()) };
        of_numbers(memory, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn five() -> FloatTensor<Flex> {
        of_numbers(vec![1.0, 2.0, 3.0, 4.0, 5.0], [5])
    }

    #[test]
    fn a_copy_has_the_changed_numbers_and_the_source_keeps_its_own() {
        let source = five();
        let mut copy = Copied::of(&source);
        copy.parts(2).zip([10.0, 20.0, 30.0]).for_each(|(part, number)| part[0] = number);
        assert_eq!(numbers(&copy.tensor()), [10.0, 2.0, 20.0, 4.0, 30.0]);
        assert_eq!(numbers(&source), numbers(&five()));
    }

    #[test]
    #[should_panic = "every part of a copy must be requested"]
    fn a_copy_without_one_of_its_parts_is_rejected() {
        let mut copy = Copied::of(&five());
        copy.parts(2).zip([0]).for_each(drop);
        copy.tensor();
    }
}
