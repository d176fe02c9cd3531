//! The number of cores that the kernels of a worker use, and the memory of their buffers.

/// The way in which workers share the cores of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Every worker has this number of cores.
    Each(usize),
    /// The workers share this number of cores, which is the machine's.
    Shared(usize),
}

impl Cores {
    /// Returns the number of cores of one worker among `workers`, which is at least 1 if cores are shared.
    pub(crate) fn of_one(self, workers: usize) -> usize {
        match self {
            Self::Each(cores) => cores,
            Self::Shared(machine) => (machine / workers.max(1)).max(1),
        }
    }
}

/// The threads on which the kernels of workers run: one thread per core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelThreads {
    pub(crate) cores: Cores,
    /// The bytes of the buffer that each thread keeps for matrix products on the host.
    pub(crate) buffer: u64,
}

impl KernelThreads {
    /// Returns the bytes of all buffers of one worker among `workers`.
    pub(crate) fn buffers_of_one(self, workers: usize) -> u64 {
        self.cores.of_one(workers) as u64 * self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fewer workers have more cores each if cores are shared, so the buffers of all workers together stay as large.
    #[test]
    fn a_worker_has_one_buffer_per_core() {
        let shared = KernelThreads { cores: Cores::Shared(8), buffer: 100 };
        assert_eq!([1, 2, 4, 8, 16].map(|workers| shared.buffers_of_one(workers)), [800, 400, 200, 100, 100]);
        let each = KernelThreads { cores: Cores::Each(3), buffer: 100 };
        assert_eq!([1, 2, 4].map(|workers| each.buffers_of_one(workers)), [300; 3]);
    }
}
