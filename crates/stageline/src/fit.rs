//! A configuration that needs more memory than there is, and what could be done about it.

use std::fmt;

use burn::tensor::Device;
use stageline_schedule::{OneFOneB, Schedule};

use crate::estimate::{MemoryEstimate, WorkerEstimate};

/// More memory is needed than a device has.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", self.explain(Lever::to_string))]
#[non_exhaustive]
pub struct DoesNotFit {
    /// Which.
    pub device: Device,
    /// What the workers on it hold at most, in bytes.
    pub needs: u64,
    /// What it has, in bytes.
    pub has: u64,
    /// The workers on it.
    pub workers: Vec<WorkerEstimate>,
    /// What would need less, in the order of its price, and how much that is, in bytes.
    pub levers: Vec<(Lever, u64)>,
}

/// What can be changed so that less memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lever {
    /// The same batch in smaller micro-batches.
    SmallerMicroBatches {
        /// The rows of each.
        rows: usize,
        /// M.
        micro_batches: usize,
    },
    /// 1F1B, with the fewest live micro-batches that keep every stage at work.
    OneFOneB,
    /// All layers in one stage, where stages share a device: one micro-batch is live at a time.
    OneStage,
    /// An optimizer that remembers nothing, or little, of each parameter.
    LeanerOptimizer,
}

impl fmt::Display for Lever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmallerMicroBatches { rows, micro_batches } => {
                write!(f, "micro-batches of {rows} rows, {micro_batches} of them")
            }
            Self::OneFOneB => write!(f, "the 1f1b schedule"),
            Self::OneStage => write!(f, "one stage, with the device to itself"),
            Self::LeanerOptimizer => write!(f, "an optimizer that remembers nothing, such as plain SGD"),
        }
    }
}

impl Lever {
    /// All that could be tried, the cheapest first, with what is then held.
    pub(crate) fn all(estimate: &MemoryEstimate, schedule: &dyn Schedule, rows: usize) -> Vec<(Self, MemoryEstimate)> {
        let (stages, micro_batches) = (estimate.plan.stages(), estimate.plan.micro_batches());
        let mut levers = Vec::new();
        for times in (2..=rows).filter(|times| rows.is_multiple_of(*times)) {
            if let Ok(plan) = schedule.plan(stages, micro_batches * times) {
                let lever = Self::SmallerMicroBatches { rows: rows / times, micro_batches: micro_batches * times };
                levers.push((lever, estimate.with_smaller_micro_batches(times).under(plan)));
            }
        }
        let one_each = estimate.plan.workers() == stages;
        if let Some(plan) = OneFOneB.plan(stages, micro_batches).ok().filter(|_| one_each) {
            levers.push((Self::OneFOneB, estimate.under(plan)));
        }
        if let Some(joined) = estimate.in_one_stage() {
            levers.push((Self::OneStage, joined));
        }
        levers.push((Self::LeanerOptimizer, estimate.without_optimizer_states()));
        levers
    }

    /// Of micro-batches of many sizes the largest with which it fits, or the smallest.
    pub(crate) fn worth_it(levers: Vec<(Self, u64)>, has: u64) -> Vec<(Self, u64)> {
        let is_size = |(lever, _): &(Self, u64)| matches!(lever, Self::SmallerMicroBatches { .. });
        let (sizes, others): (Vec<_>, Vec<_>) = levers.into_iter().partition(is_size);
        let size = sizes.iter().find(|(_, needs)| *needs <= has).or(sizes.last()).copied();
        size.into_iter().chain(others).collect()
    }
}

impl DoesNotFit {
    /// What it says, with each way out in the words of a program.
    pub fn explain(&self, lever: impl Fn(&Lever) -> String) -> String {
        use fmt::Write;
        let mut text = format!(
            "about {} of memory are needed on {:?}, which has {}",
            Bytes(self.needs),
            self.device,
            Bytes(self.has)
        );
        for worker in &self.workers {
            let WorkerEstimate { stages, parameters, optimizer, gradients, activations, .. } = worker;
            let stages: Vec<_> = stages.iter().map(usize::to_string).collect();
            let (parameters, optimizer) = (Bytes(*parameters), Bytes(*optimizer));
            let (gradients, activations) = (Bytes(*gradients), Bytes(*activations));
            let (compute, flush) = (Bytes(worker.compute_peak), Bytes(worker.flush_peak));
            let _ = write!(
                text,
                "\n  stage {}: parameters {parameters}, optimizer {optimizer}, gradients {gradients}, activations \
                 {activations}; at most {compute} while it computes, {flush} in the flush",
                stages.join(", "),
            );
        }
        if self.levers.is_empty() {
            text.push_str("\nuse a device that has more, or a smaller model");
        } else {
            text.push_str("\nways out, the cheapest first:");
        }
        for (way_out, needs) in &self.levers {
            let verdict = if *needs <= self.has { "fits" } else { "not enough alone" };
            let _ = write!(text, "\n  {}: about {}, {verdict}", lever(way_out), Bytes(*needs));
        }
        text
    }
}

/// Bytes, for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let (size, unit) = match self.0 {
            0..1_000_000 => (bytes / 1e3, "kB"),
            1_000_000..1_000_000_000 => (bytes / 1e6, "MB"),
            _ => (bytes / 1e9, "GB"),
        };
        write!(f, "{size:.1} {unit}")
    }
}
