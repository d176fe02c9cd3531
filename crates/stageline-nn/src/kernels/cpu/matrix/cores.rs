//! The cores that compute a product ([`Cores`]).

#[cfg(target_arch = "x86_64")]
use rayon::prelude::*;

/// The cores that compute a product.
#[derive(Clone, Copy)]
pub enum Cores {
    /// The core of the current thread.
    This,
    /// All cores of the current rayon pool.
    OfPool,
}

#[cfg(target_arch = "x86_64")]
impl Cores {
    /// Returns the number of cores that compute the product.
    pub fn number(self) -> usize {
        match self {
            Self::This => 1,
            Self::OfPool => rayon::current_num_threads(),
        }
    }

    /// Calls `work` for each of `parts`, in parallel on the cores that compute the product.
    pub fn each<T: Send>(self, parts: impl Iterator<Item = T>, work: impl Fn(T) + Sync + Send) {
        if self.number() == 1 {
            parts.for_each(work);
        } else {
            parts.collect::<Vec<_>>().into_par_iter().for_each(work);
        }
    }
}
