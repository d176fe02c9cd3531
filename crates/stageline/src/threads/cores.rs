//! The number of CPU cores on which each worker thread computes ([`Cores`]), and the memory that the threads on these
//! cores keep as buffers for matrix products ([`KernelThreads`]).

/// The setting that says on how many CPU cores each worker (a thread that runs one or more stages) computes: a fixed
/// number for each worker, or an equal share of the machine's cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Every worker computes on a fixed number of CPU cores, which is the value of this variant.
    Each(usize),
    /// All workers together share the machine's CPU cores; the value of this variant is the number of these cores.
    Shared(usize),
}

impl Cores {
    /// Returns the number of CPU cores on which one worker computes. `workers` is the number of workers of all
    /// replicas: if they share the machine's cores, the cores are divided evenly among them, with at least 1 for each.
    pub(crate) fn of_one(self, workers: usize) -> usize {
        match self {
            Self::Each(cores) => cores,
            Self::Shared(machine) => (machine / workers.max(1)).max(1),
        }
    }
}

/// The number and the buffers of the threads that compute matrix products and other tensor operations on the CPU for
/// the workers. `cores` says how many CPU cores each worker has, and each core has one such thread, which keeps one
/// buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelThreads {
    pub(crate) cores: Cores,
    /// The size in bytes of the buffer that each thread for CPU computations keeps for its matrix products.
    pub(crate) buffer: u64,
}

impl KernelThreads {
    /// Returns the total size in bytes of the buffers for matrix products that the CPU threads of one worker keep.
    /// `workers` is the number of workers of all replicas, among which the machine's cores may be shared.
    pub(crate) fn buffers_of_one(self, workers: usize) -> u64 {
        self.cores.of_one(workers) as u64 * self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the size of one worker's buffers for several numbers of workers. The more workers share the machine's cores,
    /// the smaller are the buffers of each; if every worker has a fixed number of cores, the size is constant.
    #[test]
    fn a_worker_has_one_buffer_per_core() {
        let shared = KernelThreads { cores: Cores::Shared(8), buffer: 100 };
        assert_eq!([1, 2, 4, 8, 16].map(|workers| shared.buffers_of_one(workers)), [800, 400, 200, 100, 100]);
        let each = KernelThreads { cores: Cores::Each(3), buffer: 100 };
        assert_eq!([1, 2, 4].map(|workers| each.buffers_of_one(workers)), [300; 3]);
    }
}
