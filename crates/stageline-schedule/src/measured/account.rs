//! The breakdown of a worker's time in a step into work and causes of idle time ([`Account`]), and the memory that the
//! worker had in use ([`WorkerMemory`]).

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// The breakdown of one worker's time in a measured step, in seconds, into work and the causes of idle time. All fields
/// add up to the duration of the step.
///
/// The causes are found by simulations with the measured times of actions and transfers. The time of a cause is the
/// idle time that the worker would save without that cause. Idle time that the simulations do not explain is `other`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct Account {
    /// The worker's time in forward passes, backward passes, gradient norms and optimizer steps, in seconds.
    pub busy: f64,
    /// The worker's idle time while the pipeline fills, before the worker's first backward pass, in seconds.
    pub fill: f64,
    /// The worker's idle time while the pipeline drains, in seconds. The last backward passes of all workers run
    /// meanwhile.
    pub drain: f64,
    /// The worker's idle time because the forward and backward passes of another worker take longer in all, in seconds.
    pub imbalance: f64,
    /// The worker's idle time because of transfers of activations and gradients between stages, in seconds.
    pub transfer: f64,
    /// The worker's idle time, in seconds, because another worker's part of the flush (gradient norms and optimizer
    /// steps at the end of the step) takes longer.
    pub flush: f64,
    /// The time, in seconds, that the measurement adds to a synchronised step. In such a step, workers ask their
    /// devices after every action whether they have finished. This time is the same for all workers of a data-parallel
    /// replica. It is 0 in other steps, and in logs without this field.
    #[cfg_attr(feature = "serde", serde(default))]
    pub asking: f64,
    /// The worker's idle time that no other field explains, in seconds. It is negative if the simulations explain more
    /// idle time than was measured. Examples are threads that wake late, the overhead of channels, and the exchange of
    /// gradients between data-parallel replicas.
    pub other: f64,
}

impl Account {
    /// Returns the names of the causes of a worker's idle time, each with the seconds of idle time that it explains.
    pub fn causes(&self) -> [(&'static str, f64); 7] {
        let Self { fill, drain, imbalance, transfer, flush, asking, other, .. } = *self;
        [
            ("fill", fill),
            ("drain", drain),
            ("imbalance", imbalance),
            ("transfer", transfer),
            ("flush", flush),
            ("asking", asking),
            ("other", other),
        ]
    }

    /// Returns the name of each cause of idle time, and the fraction of the total stage time that it explains; 0.1 is
    /// 10%. The fraction is the idle time of all `workers` for this cause, divided by the total stage time (number of
    /// workers x step time). It can be slightly below 0 for causes that are differences of measured times, such as
    /// `other`. `step` is the step time in seconds.
    pub fn shares(workers: &[Self], step: f64) -> [(&'static str, f64); 7] {
        let mut shares = Self::default().causes();
        for worker in workers {
            shares.iter_mut().zip(worker.causes()).for_each(|((_, share), (_, seconds))| *share += seconds);
        }
        shares.map(|(cause, seconds)| (cause, seconds / (step * workers.len() as f64)))
    }

    /// Returns a worker's total idle time in a step, the sum over all causes of idle time, in seconds.
    pub fn idle(&self) -> f64 {
        self.causes().iter().map(|(_, seconds)| seconds).sum()
    }
}

/// The memory in use by a worker in a step, in bytes. Memory counts for the worker whose threads allocated it. So a
/// sent tensor counts for its sender until the receiver frees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct WorkerMemory {
    /// The bytes that a worker has in use at the beginning of a step: parameters and optimizer states. If steps
    /// overlap, they include a copy of this state from before the previous step, so that the previous step can still be
    /// undone.
    pub resident: u64,
    /// The largest number of bytes of memory in use by a worker at any time of the step.
    pub peak: u64,
}
