//! The number of CPU cores that the kernels of a worker use ([`Cores`]), and the memory of the kernel threads' buffers
//! ([`KernelThreads`]).

/// The number of CPU cores for the kernels of workers: a fixed number for each worker, or the machine's cores shared by
/// all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Every worker has a fixed number of CPU cores for its kernels; the value is that number.
    Each(usize),
    /// The workers together share this number of CPU cores, which is the number that the machine has.
    Shared(usize),
}

impl Cores {
    /// Returns the number of CPU cores for the kernels of each worker if there are `workers` workers. The machine's
    /// cores, if shared, are divided evenly, with at least 1 for each worker.
    pub(crate) fn of_one(self, workers: usize) -> usize {
        match self {
            Self::Each(cores) => cores,
            Self::Shared(machine) => (machine / workers.max(1)).max(1),
        }
    }
}

/// The CPU cores of the workers' kernels, with one thread for each core, and the size of each thread's buffer for
/// matrix products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelThreads {
    pub(crate) cores: Cores,
    /// The size in bytes of the buffer that each kernel thread keeps for matrix products on the host.
    pub(crate) buffer: u64,
}

impl KernelThreads {
    /// Returns the size in bytes of the buffers of all kernel threads of one worker, if there are `workers` workers.
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
