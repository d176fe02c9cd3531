//! The number of CPU cores for each worker ([`Cores`]), and the memory of the matrix-product buffers that the threads
//! on these cores keep ([`KernelThreads`]).

/// The number of CPU cores that each worker (a thread that runs one or more stages) uses: a fixed number, an equal
/// share of the machine's cores, or a number that only one worker uses at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Use this fixed number of CPU cores for every worker.
    Each(usize),
    /// Divide this total number of CPU cores evenly among the workers.
    Shared(usize),
    /// Use this number of CPU cores for every worker, because one worker computes at a time.
    InTurn(usize),
}

impl Cores {
    /// Returns the number of CPU cores of one worker. Shared cores are divided evenly among the `workers` of all
    /// replicas, with at least 1 for each.
    pub(crate) fn of_one(self, workers: usize) -> usize {
        match self {
            Self::Each(cores) | Self::InTurn(cores) => cores,
            Self::Shared(machine) => (machine / workers.max(1)).max(1),
        }
    }
}

/// The CPU threads for tensor operations, as needed to estimate their memory: a worker has one thread for each of its
/// cores, and each thread keeps one buffer for matrix products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelThreads {
    pub(crate) cores: Cores,
    /// Size in bytes of the matrix-product buffer that each CPU thread of a worker keeps.
    pub(crate) buffer: u64,
}

impl KernelThreads {
    /// Returns the total size in bytes of one worker's matrix-product buffers. `workers` is the number of workers of
    /// all replicas.
    pub(crate) fn buffers_of_one(self, workers: usize) -> u64 {
        self.cores.of_one(workers) as u64 * self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_one_buffer_per_core() {
        let shared = KernelThreads { cores: Cores::Shared(8), buffer: 100 };
        assert_eq!([1, 2, 4, 8, 16].map(|workers| shared.buffers_of_one(workers)), [800, 400, 200, 100, 100]);
        let each = KernelThreads { cores: Cores::Each(3), buffer: 100 };
        assert_eq!([1, 2, 4].map(|workers| each.buffers_of_one(workers)), [300; 3]);
    }
}
