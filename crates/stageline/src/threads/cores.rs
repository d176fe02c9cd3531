//! The number of CPU cores that each worker thread computes on ([`Cores`]). Also the memory that the threads on these
//! cores keep as buffers for matrix products ([`KernelThreads`]).

/// The number of CPU cores of each worker (a thread that runs one or more stages): a fixed number, or an equal part of
/// the machine's cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Every worker computes on a fixed number of CPU cores; the value is this number.
    Each(usize),
    /// The workers share the machine's CPU cores; the value is the number of these cores.
    Shared(usize),
}

impl Cores {
    /// Returns the number of CPU cores of one worker. Shared cores are divided evenly among the `workers` of all
    /// replicas, with at least 1 for each.
    pub(crate) fn of_one(self, workers: usize) -> usize {
        match self {
            Self::Each(cores) => cores,
            Self::Shared(machine) => (machine / workers.max(1)).max(1),
        }
    }
}

/// The threads that compute matrix products and other tensor operations on the CPU. A worker has one such thread for
/// each of its cores, and each thread keeps one buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelThreads {
    pub(crate) cores: Cores,
    /// The size in bytes of the buffer for matrix products that each CPU thread of a worker keeps.
    pub(crate) buffer: u64,
}

impl KernelThreads {
    /// Returns the total bytes of the matrix-product buffers of one worker. `workers` is the number of workers of all
    /// replicas.
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
