//! The combinations of changed settings that a memory check tries ([`Change`]), and the training run's predicted memory
//! under each.

use burn::tensor::Device;
use stageline_schedule::{OneFOneB, Schedule};

use crate::device::location::is_host;
use crate::memory::estimate::MemoryEstimate;
use crate::memory::lever::Lever;

/// The change of the number of pipeline stages in a proposal to save memory: none, twice as many stages, or a single
/// stage.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    Same,
    Twice,
    One,
}

/// A combination of changed settings that may save memory: recomputation, micro-batch size, number of stages, schedule,
/// placement of optimizer states (device or host memory), and optimizer.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    recompute: bool,
    /// The number of smaller micro-batches that this change splits each micro-batch into; 1 leaves them as they are.
    times: usize,
    cut: Cut,
    one_f_one_b: bool,
    states_on_host: bool,
    lean: bool,
}

impl Change {
    /// Returns all combinations of changed settings that may save memory, in the order of preference. Each micro-batch
    /// has `rows` samples. The first entry leaves all settings as they are, and the entries that change the optimizer
    /// come last.
    ///
    /// No entry combines an optimizer with less state and optimizer states on the host, because such an optimizer has
    /// little state to move.
    pub(crate) fn all(rows: usize) -> Vec<Self> {
        let sizes: Vec<_> = (1..=rows.max(1)).filter(|times| rows.is_multiple_of(*times)).collect();
        let mut all = Vec::with_capacity(36 * sizes.len());
        for (states_on_host, lean) in [(false, false), (true, false), (false, true)] {
            for one_f_one_b in [false, true] {
                for cut in [Cut::Same, Cut::Twice, Cut::One] {
                    let with_and_without_recompute = |&times: &usize| {
                        let change = Self { recompute: false, times, cut, one_f_one_b, states_on_host, lean };
                        [change, Self { recompute: true, ..change }]
                    };
                    all.extend(sizes.iter().flat_map(with_and_without_recompute));
                }
            }
        }
        all
    }

    pub(crate) fn levers(self, estimate: &MemoryEstimate, rows: usize) -> Vec<Lever> {
        let Self { recompute, times, cut, one_f_one_b, states_on_host, lean } = self;
        let cut = match cut {
            Cut::Same => None,
            Cut::Twice => Some(Lever::MoreStages { workers: 2 * estimate.plan.workers() }),
            Cut::One => Some(Lever::OneStage),
        };
        let micro_batches = estimate.plan.micro_batches() * times;
        let size = (times > 1).then_some(Lever::SmallerMicroBatches { rows: rows / times, micro_batches });
        let all = [recompute.then_some(Lever::Recompute), size, cut, one_f_one_b.then_some(Lever::OneFOneB)];
        let of_states = [states_on_host.then_some(Lever::StatesOnHost), lean.then_some(Lever::LeanerOptimizer)];
        all.into_iter().chain(of_states).flatten().collect()
    }

    /// Returns the memory estimate of the pipeline after this change. Returns `None` if the pipeline cannot be changed
    /// in this way, for one of these reasons:
    ///
    /// - Full recomputation was not measured.
    /// - No optimizer state can move to host memory.
    /// - The stages share devices or workers in a way that does not allow the change.
    /// - The schedule has no plan for the changed numbers of stages or micro-batches.
    fn of(self, estimate: &MemoryEstimate, schedule: &dyn Schedule) -> Option<MemoryEstimate> {
        let estimate = if self.recompute { estimate.recomputed.as_deref()? } else { estimate };
        let moved = if self.states_on_host { Some(estimate.with_states_on_host()?) } else { None };
        let estimate = moved.as_ref().unwrap_or(estimate);
        let changed = match self.cut {
            Cut::Same => estimate.clone(),
            Cut::Twice => estimate.have_devices_to_themselves().then(|| estimate.cut_in_two())?,
            Cut::One => estimate.in_one_stage()?,
        };
        let changed = if self.lean { changed.without_optimizer_states() } else { changed };
        let (stages, micro_batches) = (changed.stages.len(), estimate.plan.micro_batches() * self.times);
        if self.one_f_one_b && self.cut != Cut::One && estimate.plan.workers() != estimate.stages.len() {
            return None;
        }
        let schedule = if self.one_f_one_b { &OneFOneB } else { schedule };
        let plan = schedule.plan(stages, micro_batches).ok()?;
        Some(changed.with_rows_times(1.0 / self.times as f64).under(plan))
    }

    /// Returns the bytes of memory needed on each device after this change; `None` if the pipeline cannot be changed in
    /// this way. If the change splits stages in two, each half gets its own device: a device's need is that of the
    /// larger half, but host memory needs the sum of both.
    pub(crate) fn needs(self, estimate: &MemoryEstimate, schedule: &dyn Schedule) -> Option<Vec<(Device, u64)>> {
        let changed = self.of(estimate, schedule)?;
        let of_larger_half =
            |device: &Device, bytes: u64, more: u64| if is_host(device) { bytes + more } else { bytes.max(more) };
        Some(if self.cut == Cut::Twice { changed.devices_by(of_larger_half) } else { changed.devices() })
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline_schedule::Interleaved;

    use super::*;
    use crate::memory::estimate::tests::of_activations;

    #[test]
    fn more_stages_are_counted_in_workers() {
        let twice = Change {
            recompute: false,
            times: 1,
            cut: Cut::Twice,
            one_f_one_b: false,
            states_on_host: false,
            lean: false,
        };
        let estimate = of_activations(&[1.0; 4], 4);
        assert_eq!(twice.levers(&estimate, 1), [Lever::MoreStages { workers: 8 }]);
        let two_chunks = estimate.under(Interleaved { chunks: 2 }.plan(4, 4).unwrap());
        assert_eq!(twice.levers(&two_chunks, 1), [Lever::MoreStages { workers: 4 }]);
    }
}
