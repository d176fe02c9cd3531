//! How many threads compute a matrix product ([`Cores`]).

#[cfg(target_arch = "x86_64")]
use rayon::prelude::*;

/// Whether a matrix product is computed on one thread or in parallel.
#[derive(Clone, Copy)]
pub enum Cores {
    /// Run single-threaded, on the calling thread.
    This,
    /// Run in parallel, on all threads of the current rayon pool.
    OfPool,
}

#[cfg(target_arch = "x86_64")]
impl Cores {
    /// Returns the number of threads that compute the matrix product: 1, or the size of the current rayon pool.
    pub fn number(self) -> usize {
        match self {
            Self::This => 1,
            Self::OfPool => rayon::current_num_threads(),
        }
    }

    /// Calls `work` on each of `parts`: in parallel if several threads compute the matrix product, and in order
    /// otherwise.
    pub fn each<T: Send>(self, parts: impl Iterator<Item = T>, work: impl Fn(T) + Sync + Send) {
        if self.number() == 1 {
            parts.for_each(work);
        } else {
            parts.collect::<Vec<_>>().into_par_iter().for_each(work);
        }
    }
}
