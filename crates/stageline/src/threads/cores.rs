//! How many cores the kernels of a worker use.

/// The cores of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Every worker has so many.
    Each(usize),
    /// All workers share the machine's.
    Shared(usize),
}

impl Cores {
    /// The cores of one of so many workers; at least one.
    pub(crate) fn of_one(self, workers: usize) -> usize {
        match self {
            Self::Each(cores) => cores,
            Self::Shared(machine) => (machine / workers.max(1)).max(1),
        }
    }
}

/// The threads on which the kernels of workers run: one a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelThreads {
    pub(crate) cores: Cores,
    /// Bytes of the buffer that each thread keeps for products on the host.
    pub(crate) buffer: u64,
}

impl KernelThreads {
    /// Bytes of the buffers of one of so many workers.
    pub(crate) fn buffers_of_one(self, workers: usize) -> u64 {
        self.cores.of_one(workers) as u64 * self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fewer workers share the same cores, so that the buffers of all together stay as many.
    #[test]
    fn buffers_are_those_of_all_threads_of_a_worker() {
        let shared = KernelThreads { cores: Cores::Shared(8), buffer: 100 };
        assert_eq!([1, 2, 4, 8, 16].map(|workers| shared.buffers_of_one(workers)), [800, 400, 200, 100, 100]);
        let each = KernelThreads { cores: Cores::Each(3), buffer: 100 };
        assert_eq!([1, 2, 4].map(|workers| each.buffers_of_one(workers)), [300; 3]);
    }
}
