//! Storage ([`Slots`]) for values of single micro-batches, such as inputs and gradients, that wait between two
//! instructions.

use std::collections::BTreeMap;

/// A map from micro-batch indices to values, such as inputs or gradients, that wait for an instruction (a computation
/// or a send) to use them. Each micro-batch has at most one value. Workers follow a checked plan, which puts every
/// value into the map before it takes the value out.
pub(crate) struct Slots<T>(BTreeMap<usize, T>);

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn put(&mut self, micro_batch: usize, value: T) {
        let before = self.0.insert(micro_batch, value);
        assert!(
            before.is_none(),
            "a checked plan computes each value of a micro-batch once, and uses it before the next one"
        );
    }

    pub(crate) fn get(&self, micro_batch: usize) -> &T {
        self.0.get(&micro_batch).expect("a checked plan computes a value before it is read")
    }

    pub(crate) fn take(&mut self, micro_batch: usize) -> T {
        self.0.remove(&micro_batch).expect("a checked plan computes a value before it is used, and uses it once")
    }
}

/// Creates a map from a list of values, one for each micro-batch in order.
impl<T> FromIterator<T> for Slots<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().enumerate().collect())
    }
}
