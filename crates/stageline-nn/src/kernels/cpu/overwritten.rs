//! [`Overwritten`]: a kernel's output that begins with the values of a tensor, which the kernel overwrites.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use rayon::iter::Either;
use rayon::prelude::*;

use super::numbers::{is_own, numbers, of_numbers};

/// Number of elements that one CPU core overwrites at a time in an elementwise operation. In f32, they fit into a
/// core's cache. Smaller chunks would not be worth the cost of using another core.
pub const PART: usize = 1 << 14;

/// The output of a CPU kernel that begins with the values of an f32 tensor. The kernel iterates over the
/// [`parts`](Self::parts), overwrites their elements with its results, and takes the output with
/// [`tensor`](Self::tensor).
pub enum Overwritten {
    /// The tensor itself, because nothing else uses its memory.
    Own(FloatTensor<Flex>),
    /// A copy of the tensor, because the tensor is used elsewhere or is a view.
    Copied(Copied),
}

impl Overwritten {
    /// Takes the f32 tensor `source`. A kernel overwrites it in place if nothing else uses its memory and it is not a
    /// view.
    pub fn of(source: FloatTensor<Flex>) -> Self {
        if is_own(&source) { Self::Own(source) } else { Self::Copied(Copied::of(&source.to_contiguous())) }
    }

    /// Returns an iterator over the memory in mutable chunks of `size` elements (the last may be smaller), which a
    /// kernel may overwrite. The iterator must be run to its end, or [`tensor`](Self::tensor) panics if this is a copy.
    pub fn parts(&mut self, size: usize) -> impl IndexedParallelIterator<Item = &mut [f32]> {
        match self {
            Self::Own(tensor) => Either::Left(tensor.storage_mut::<f32>().par_chunks_mut(size.max(1))),
            Self::Copied(copy) => Either::Right(copy.parts(size.max(1))),
        }
    }

    /// Returns the finished output as a tensor of the source's shape. Elements that the kernel overwrote in the
    /// [`parts`](Self::parts) have their new values, and all others the values of the source.
    ///
    /// # Panics
    /// Panics if this is a copy and the last iterator over the parts did not return all of them.
    pub fn tensor(self) -> FloatTensor<Flex> {
        match self {
            Self::Own(tensor) => tensor,
            Self::Copied(copy) => copy.tensor(),
        }
    }
}

/// A copy of a tensor. Each part is copied immediately before the kernel overwrites it, so that its values cross the
/// memory bus once and not twice.
pub struct Copied {
    source: FloatTensor<Flex>,
    memory: Vec<f32>,
    /// Number of elements copied so far by the iterator that the last [`parts`](Self::parts) call returned.
    copied: AtomicUsize,
}

impl Copied {
    /// Allocates memory for a copy of the contiguous f32 tensor `source`. [`parts`](Self::parts) copies the elements
    /// later.
    fn of(source: &FloatTensor<Flex>) -> Self {
        let memory = Vec::with_capacity(numbers(source).len());
        Self { source: source.clone(), memory, copied: AtomicUsize::new(0) }
    }

    /// Returns an iterator over the copy in mutable chunks of `size` elements. Each chunk is copied from the source
    /// when the iterator returns it. Calling `parts` again copies all elements from the source again.
    fn parts(&mut self, size: usize) -> impl IndexedParallelIterator<Item = &mut [f32]> {
        *self.copied.get_mut() = 0;
        let (source, copied) = (numbers(&self.source), &self.copied);
        let memory = self.memory.spare_capacity_mut()[..source.len()].par_chunks_mut(size);
        memory.zip(source.par_chunks(size)).map(|(memory, source)| {
            copied.fetch_add(source.len(), Ordering::Relaxed);
            memory.write_copy_of_slice(source)
        })
    }

    fn tensor(self) -> FloatTensor<Flex> {
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
    fn a_tensor_that_is_used_elsewhere_keeps_its_numbers() {
        let source = five();
        let mut copy = Overwritten::of(source.clone());
        copy.parts(2).zip([10.0, 20.0, 30.0]).for_each(|(part, number)| part[0] = number);
        assert_eq!(numbers(&copy.tensor()), [10.0, 2.0, 20.0, 4.0, 30.0]);
        assert_eq!(numbers(&source), numbers(&five()));
    }

    #[test]
    fn a_tensor_that_nothing_else_uses_is_overwritten_in_place() {
        let source = five();
        let memory = numbers(&source).as_ptr();
        let mut own = Overwritten::of(source);
        own.parts(2).zip([10.0, 20.0, 30.0]).for_each(|(part, number)| part[0] = number);
        let own = own.tensor();
        assert_eq!(numbers(&own), [10.0, 2.0, 20.0, 4.0, 30.0]);
        assert_eq!(numbers(&own).as_ptr(), memory);
    }

    #[test]
    #[should_panic = "every part of a copy must be requested"]
    fn a_copy_without_one_of_its_parts_is_rejected() {
        let source = five();
        let mut copy = Overwritten::of(source.clone());
        copy.parts(2).zip([0]).for_each(drop);
        copy.tensor();
    }
}
