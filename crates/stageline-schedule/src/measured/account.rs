//! The breakdown of a worker's time in a step into work and causes of idle time ([`Account`]), and the memory that the
//! worker had allocated ([`WorkerMemory`]).

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
    /// The worker's idle time while the pipeline drains, that is, while the workers run their last backward passes, in
    /// seconds.
    pub drain: f64,
    /// The worker's idle time because another worker's forward and backward passes take longer in total, in seconds.
    pub imbalance: f64,
    /// The worker's idle time because of transfers of activations and gradients between stages, in seconds.
    pub transfer: f64,
    /// The worker's idle time, in seconds, because another worker's optimizer steps take longer. Gradient norms count
    /// as part of the worker's last backward pass.
    pub flush: f64,
    /// Time, in seconds, that device synchronisation adds to a synchronised step, in which each worker waits after
    /// every action until its device has finished. This time is the same for all workers of a data-parallel replica,
    /// and 0 in other steps and in logs without this field.
    #[cfg_attr(feature = "serde", serde(default))]
    pub asking: f64,
    /// The worker's idle time that no other field explains, in seconds, such as late thread wake-ups, channel overhead,
    /// and gradient reduction over data-parallel replicas. Negative if the simulations explain more idle time than was
    /// measured.
    pub other: f64,
}

impl Account {
    /// Returns the causes of a worker's idle time by name, each with the idle time, in seconds, that it explains.
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

    /// Returns the words for a cause of idle time that users read, for its name in [`causes`](Self::causes).
    pub fn words_for(cause: &'static str) -> &'static str {
        match cause {
            "transfer" => "transfers",
            "asking" => "asking devices",
            "other" => "threads and channels",
            _ => cause,
        }
    }

    /// Returns the name of each cause of idle time, and the fraction of the total stage time that it explains; 0.1 is
    /// 10%. The fraction is `idle time of all workers for this cause / (number of workers * step)`, where `step` is the
    /// step time in seconds. The fraction can be slightly below 0 for causes that are differences of measured times,
    /// such as `other`.
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

/// A worker's allocated memory in a step, in bytes. Memory is attributed to the worker whose threads allocated it, so a
/// sent tensor counts for its sender until the receiver frees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
pub struct WorkerMemory {
    /// Bytes that the worker has allocated at the beginning of a step: parameters and optimizer state. If steps
    /// overlap, they include a copy of this state from before the previous step, so that the previous step can be
    /// rolled back.
    pub resident: u64,
    /// Peak number of bytes that the worker has allocated at any time of the step.
    pub peak: u64,
}
