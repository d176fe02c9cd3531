//! Values of single micro-batches between two instructions.

use std::collections::BTreeMap;

/// At most one value a micro-batch. A checked plan puts every one before it takes it.
pub(crate) struct Slots<T>(BTreeMap<usize, T>);

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn put(&mut self, micro_batch: usize, value: T) {
        let before = self.0.insert(micro_batch, value);
        assert!(before.is_none(), "a checked plan makes every value once, and uses it");
    }

    pub(crate) fn get(&self, micro_batch: usize) -> &T {
        self.0.get(&micro_batch).expect("a checked plan makes every value before it is looked at")
    }

    pub(crate) fn take(&mut self, micro_batch: usize) -> T {
        self.0.remove(&micro_batch).expect("a checked plan makes every value before it uses it, once")
    }
}

/// One value for every micro-batch.
impl<T> FromIterator<T> for Slots<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().enumerate().collect())
    }
}
