//! Checks a memory estimate against the memory of the devices, and lists the changes of settings ([`WayOut`]) with
//! which the training would fit.

use std::fmt;

use burn::tensor::Device;
use stageline_schedule::{OneFOneB, Schedule};

use crate::device::location::{is_host, share_memory};
use crate::memory::estimate::MemoryEstimate;
use crate::memory::worker_estimate::WorkerEstimate;

/// The error for a training that needs more memory than a device has, with the changes of settings that would help.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", self.explain(Lever::to_string, ", "))]
#[non_exhaustive]
pub struct DoesNotFit {
    /// The device that has too little memory for the training.
    pub device: Device,
    /// The memory that the training needs on the device, in bytes: the sum of the predicted peaks of the device's
    /// workers.
    pub needs: u64,
    /// The memory that the device with too little memory has, in bytes.
    pub has: u64,
    /// The memory estimates of the workers on the device that has too little memory.
    pub workers: Vec<WorkerEstimate>,
    /// The proposed changes of settings with which the device needs less memory: first each change of a single setting,
    /// in the order in which [`Lever`] lists the settings, and then, if no single setting is enough, one combination.
    pub ways_out: Vec<WayOut>,
}

/// A change of one or more settings with which the training needs less memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WayOut {
    /// The settings of the training that are changed together in this proposal to save memory.
    pub levers: Vec<Lever>,
    /// The predicted bytes of memory that the device with too little memory needs after the settings are changed.
    pub needs: u64,
}

/// A setting of the training that can be changed to need less memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lever {
    /// A change of settings that saves memory: full recomputation, [`Recompute::Full`](crate::Recompute::Full), which
    /// takes about a third more computation.
    Recompute,
    /// A change of settings that saves memory: more and smaller micro-batches of the same batch.
    SmallerMicroBatches {
        /// The number of rows (samples) of each proposed smaller micro-batch.
        rows: usize,
        /// The number of smaller micro-batches (M) of each replica in a step.
        micro_batches: usize,
    },
    /// A change of settings that saves memory: the layers of every stage are divided into two stages, on twice as many
    /// devices. It is proposed only if every stage has its own device and none of them is the CPU.
    MoreStages {
        /// The number of workers (P) after every stage was divided into two. In schedules with chunks, a worker has
        /// several stages.
        workers: usize,
    },
    /// A change of settings that saves memory: a single stage with all layers, proposed if the stages share a device.
    /// Only one micro-batch is then live (between forward and backward) at a time.
    OneStage,
    /// A change of settings that saves memory: the 1F1B schedule, under which each stage keeps the activations of the
    /// fewest micro-batches with which all stages stay at work.
    OneFOneB,
    /// A change of settings that saves memory: an optimizer with little or no state for each parameter.
    LeanerOptimizer,
}

impl fmt::Display for Lever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recompute => write!(f, "full recomputation"),
            Self::SmallerMicroBatches { rows, micro_batches } => {
                write!(f, "{micro_batches} micro-batches of {rows} rows")
            }
            Self::OneFOneB => write!(f, "the 1f1b schedule"),
            Self::MoreStages { workers } => write!(f, "stages on {workers} workers, each with a device of its own"),
            Self::OneStage => write!(f, "one stage"),
            Self::LeanerOptimizer => write!(f, "an optimizer without state, such as plain SGD"),
        }
    }
}

impl MemoryEstimate {
    /// Checks that every device has enough memory for its workers; `has` returns a device's memory in bytes, or `None`
    /// if it is unknown and counts as enough.
    ///
    /// `schedule` is the pipeline's schedule and `rows` the number of rows (samples) of a micro-batch; the possible
    /// changes of settings depend on both. Only changes for which `takes` returns true are suggested, so that a program
    /// can exclude settings that it does not have.
    ///
    /// # Errors
    /// Returns [`DoesNotFit`], with the changes of settings that would help, if a device has too little memory.
    pub fn check(
        &self,
        has: impl Fn(&Device) -> Option<u64>,
        schedule: &dyn Schedule,
        rows: usize,
        takes: impl Fn(&Lever) -> bool,
    ) -> Result<(), Box<DoesNotFit>> {
        let Some((device, needs, has)) = self.too_small(has) else { return Ok(()) };
        let ways_out = WayOut::all(self, schedule, rows, &Shortage { device: &device, needs, has }, takes);
        let workers = self.workers_on(&device);
        Err(Box::new(DoesNotFit { device, needs, has, workers, ways_out }))
    }

    /// Whether every device has enough memory for its workers; `has` returns a device's memory in bytes, or `None` if
    /// it is unknown and counts as enough, as in [`check`](Self::check).
    pub fn fits(&self, has: impl Fn(&Device) -> Option<u64>) -> bool {
        self.too_small(has).is_none()
    }

    fn workers_on(&self, device: &Device) -> Vec<WorkerEstimate> {
        let workers = self.placed_workers().into_iter().filter(|(other, _)| share_memory(other, device));
        workers.map(|(_, worker)| worker).collect()
    }

    /// Returns the first device with too little memory for its workers, with the bytes that it needs and the bytes that
    /// it has; `None` if all devices have enough. `has` returns a device's memory in bytes, if it is known.
    fn too_small(&self, has: impl Fn(&Device) -> Option<u64>) -> Option<(Device, u64, u64)> {
        self.devices().into_iter().find_map(|(device, needs)| {
            let has = has(&device).filter(|has| needs > *has)?;
            Some((device, needs, has))
        })
    }
}

/// The change of the number of stages in a proposal to save memory: no change, twice as many stages, or a single stage.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    Same,
    Twice,
    One,
}

/// A combination of changed settings with which a training may need less memory: recomputation, micro-batch size,
/// number of stages, schedule and optimizer.
#[derive(Clone, Copy)]
struct Change {
    recompute: bool,
    /// The number of smaller micro-batches into which the proposed change splits each micro-batch; 1 leaves the
    /// micro-batches as they are.
    times: usize,
    cut: Cut,
    one_f_one_b: bool,
    lean: bool,
}

impl Change {
    /// Returns all candidate changes of settings that may save memory, if a micro-batch has `rows` rows (samples), in
    /// the order of preference. The first changes nothing, and those that change the optimizer are last.
    fn all(rows: usize) -> Vec<Self> {
        let sizes: Vec<_> = (1..=rows.max(1)).filter(|times| rows.is_multiple_of(*times)).collect();
        let mut all = Vec::with_capacity(24 * sizes.len());
        for lean in [false, true] {
            for one_f_one_b in [false, true] {
                for cut in [Cut::Same, Cut::Twice, Cut::One] {
                    let with_and_without_recompute = |&times: &usize| {
                        [false, true].map(|recompute| Self { recompute, times, cut, one_f_one_b, lean })
                    };
                    all.extend(sizes.iter().flat_map(with_and_without_recompute));
                }
            }
        }
        all
    }

    fn levers(self, estimate: &MemoryEstimate, rows: usize) -> Vec<Lever> {
        let Self { recompute, times, cut, one_f_one_b, lean } = self;
        let cut = match cut {
            Cut::Same => None,
            Cut::Twice => Some(Lever::MoreStages { workers: 2 * estimate.plan.workers() }),
            Cut::One => Some(Lever::OneStage),
        };
        let micro_batches = estimate.plan.micro_batches() * times;
        let size = (times > 1).then_some(Lever::SmallerMicroBatches { rows: rows / times, micro_batches });
        let all = [recompute.then_some(Lever::Recompute), size, cut, one_f_one_b.then_some(Lever::OneFOneB)];
        all.into_iter().chain([lean.then_some(Lever::LeanerOptimizer)]).flatten().collect()
    }

    /// Returns the memory estimate of the pipeline with this combination of changes applied; `None` if the pipeline
    /// cannot be changed in this way.
    fn of(self, estimate: &MemoryEstimate, schedule: &dyn Schedule) -> Option<MemoryEstimate> {
        let estimate = if self.recompute { estimate.recomputed.as_deref()? } else { estimate };
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

    /// Returns the bytes of memory that a device needs with this combination of changes applied; `None` if the pipeline
    /// cannot be changed in this way. If the device's stage is cut in two, each half gets a device of its own, and the
    /// result is the need of the larger half.
    fn needs(self, estimate: &MemoryEstimate, schedule: &dyn Schedule, device: &Device) -> Option<u64> {
        let changed = self.of(estimate, schedule)?;
        let workers = changed.workers_on(device);
        let peaks = workers.iter().map(WorkerEstimate::peak);
        Some(if self.cut == Cut::Twice { peaks.max().unwrap_or(0) } else { peaks.sum() })
    }
}

/// A device with too little memory: the bytes that the training needs on it, and the bytes that it has.
pub(crate) struct Shortage<'a> {
    device: &'a Device,
    needs: u64,
    has: u64,
}

impl WayOut {
    /// Whether a device with `has` bytes of memory is large enough for the training after this change of settings: the
    /// predicted need must be at most 90% of `has`, because the changed training was not measured.
    fn is_enough(&self, has: u64) -> bool {
        self.needs <= has - has / 10
    }

    /// Returns the proposed changes of settings with which the training needs less memory on the device of `shortage`;
    /// `rows` is the number of rows (samples) of a micro-batch. Changes of a single setting come first, with
    /// micro-batches only as small as necessary. If no single setting is enough, one combination follows: the first in
    /// the order of preference that is enough, or else the one with which the device needs the least memory.
    pub(crate) fn all(
        estimate: &MemoryEstimate,
        schedule: &dyn Schedule,
        rows: usize,
        shortage: &Shortage,
        takes: impl Fn(&Lever) -> bool,
    ) -> Vec<Self> {
        let Shortage { device, needs, has } = *shortage;
        let way_out = |change: Change| {
            let levers = Some(change.levers(estimate, rows)).filter(|levers| levers.iter().all(&takes))?;
            Some(Self { levers, needs: change.needs(estimate, schedule, device)? })
        };
        let helps = |way_out: &Self| way_out.needs < needs;
        let all: Vec<_> = Change::all(rows).into_iter().filter_map(way_out).filter(helps).collect();
        let (single, several): (Vec<_>, Vec<_>) = all.into_iter().partition(|way_out| way_out.levers.len() == 1);
        let is_size = |way_out: &Self| matches!(way_out.levers[..], [Lever::SmallerMicroBatches { .. }]);
        let (sizes, mut chosen): (Vec<_>, Vec<_>) = single.into_iter().partition(is_size);
        let size = sizes.iter().find(|way_out| way_out.is_enough(has)).or(sizes.last()).cloned();
        let at = chosen.iter().take_while(|way_out| way_out.levers == [Lever::Recompute]).count();
        chosen.splice(at..at, size);
        if chosen.iter().all(|way_out| !way_out.is_enough(has)) {
            let fits = several.iter().find(|way_out| way_out.is_enough(has));
            chosen.extend(fits.or(several.iter().min_by_key(|way_out| way_out.needs)).cloned());
        }
        chosen
    }
}

impl DoesNotFit {
    /// Returns the error message for a training that does not fit into memory, with the need of each worker and the
    /// proposed changes of settings. `lever` gives a setting's name in the calling program, such as a flag; `between`
    /// separates settings that are changed together.
    pub fn explain(&self, lever: impl Fn(&Lever) -> String, between: &str) -> String {
        use fmt::Write;
        let (needs, has) = (Bytes(self.needs), Bytes(self.has));
        let place = if is_host(&self.device) { "the host".to_owned() } else { format!("{:?}", self.device) };
        let mut text = format!("about {needs} of memory are needed on {place}, which has {has}");
        for worker in &self.workers {
            let WorkerEstimate {
                replica, stages, parameters, optimizer, gradients, activations, transfers, kept, ..
            } = worker;
            let stages: Vec<_> = stages.iter().map(usize::to_string).collect();
            let stages = replica.name(format!("stage {}", stages.join(", ")));
            let (parameters, optimizer) = (Bytes(*parameters), Bytes(*optimizer));
            let (gradients, activations, transfers) = (Bytes(*gradients), Bytes(*activations), Bytes(*transfers));
            let kept = if *kept > 0 { format!(", the previous step {}", Bytes(*kept)) } else { String::new() };
            let (compute, flush) = (Bytes(worker.compute_peak), Bytes(worker.flush_peak));
            let _ = write!(
                text,
                "\n  {stages}: parameters {parameters}, optimizer {optimizer}, gradients {gradients}, activations \
                 {activations}, transfers {transfers}{kept}; at most {compute} while it computes, {flush} in the flush",
            );
        }
        for (index, way_out) in self.ways_out.iter().enumerate() {
            let WayOut { levers, needs } = way_out;
            let levers: Vec<_> = levers.iter().map(&lever).collect();
            let verdict = match needs {
                _ if way_out.is_enough(self.has) => "fits",
                needs if *needs <= self.has => "may fit",
                _ => "does not fit",
            };
            let head = if index == 0 { "\nways out, the cheapest first:" } else { "" };
            let _ = write!(text, "{head}\n  {}: about {}, {verdict}", levers.join(between), Bytes(*needs));
        }
        if self.ways_out.iter().all(|way_out| !way_out.is_enough(self.has)) {
            text.push_str("\nuse a device that has more, or a smaller model");
        }
        text
    }
}

/// A number of bytes that an error message shows in kB, MB or GB (powers of 1000).
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

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline_schedule::Interleaved;

    use super::*;
    use crate::memory::estimate::tests::of_activations;

    #[test]
    fn more_stages_are_counted_in_workers() {
        let twice = Change { recompute: false, times: 1, cut: Cut::Twice, one_f_one_b: false, lean: false };
        let estimate = of_activations(&[1.0; 4], 4);
        assert_eq!(twice.levers(&estimate, 1), [Lever::MoreStages { workers: 8 }]);
        let two_chunks = estimate.under(Interleaved { chunks: 2 }.plan(4, 4).unwrap());
        assert_eq!(twice.levers(&two_chunks, 1), [Lever::MoreStages { workers: 4 }]);
    }
}
