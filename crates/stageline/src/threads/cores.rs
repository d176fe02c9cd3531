//! The number of CPU cores that the kernels of a worker use ([`Cores`]), and the memory of the kernel threads' buffers
//! ([`KernelThreads`]).

/// The way in which workers share the CPU cores of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Every worker has this number of CPU cores for its kernels.
    Each(usize),
    /// The workers together share this number of CPU cores, which is the number that the machine has.
    Shared(usize),
}

impl Cores {
    /// Returns the number of CPU cores that each worker's kernels use if there are `workers` workers; at least 1 if the
    /// workers share the machine's cores.
    pub(crate) fn of_one(self, workers: usize) -> usize {
        match self {
            Self::Each(cores) => cores,
            Self::Shared(machine) => (machine / workers.max(1)).max(1),
        }
    }
}

/// The threads on which the kernels of workers run, one thread for each core, with the size of a thread's buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelThreads {
    pub(crate) cores: Cores,
    /// The size in bytes of the buffer that each kernel thread keeps for matrix products on the host.
    pub(crate) buffer: u64,
}

impl KernelThreads {
    /// Returns the number of bytes that all kernel threads of each worker take for their buffers, if there are
    /// `workers` workers.
    pub(crate) fn buffers_of_one(self, workers: usize) -> u64 {
        self.cores.of_one(workers) as u64 * self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the memory of the kernel threads' buffers. Fewer workers have more cores each if cores are shared, so the
    /// buffers of all workers together stay as large.
    #[test]
    fn a_worker_has_one_buffer_per_core() {
        let shared = KernelThreads { cores: Cores::Shared(8), buffer: 100 };
        assert_eq!([1, 2, 4, 8, 16].map(|workers| shared.buffers_of_one(workers)), [800, 400, 200, 100, 100]);
        let each = KernelThreads { cores: Cores::Each(3), buffer: 100 };
        assert_eq!([1, 2, 4].map(|workers| each.buffers_of_one(workers)), [300; 3]);
    }
}
