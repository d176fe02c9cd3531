//! Checks a memory estimate against the memory of the devices, and lists the changes of settings ([`WayOut`]) with
//! which the training would fit.

use std::fmt;

use burn::tensor::Device;
use stageline_schedule::Schedule;

use crate::device::location::is_host;
use crate::device::opened::shown;
use crate::memory::change::Change;
use crate::memory::estimate::MemoryEstimate;
use crate::memory::lever::Lever;
use crate::memory::worker_estimate::WorkerEstimate;

/// The error for a training that needs more memory than a device has, with the changes of settings that would help.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", self.explain(Lever::to_string, ", "))]
#[non_exhaustive]
pub struct DoesNotFit {
    /// The device that has too little memory for the training.
    pub device: Device,
    /// The memory that the training needs on the device, in bytes: the sum of the predicted peaks of the device's
    /// workers, and on the host the memory of the program besides its workers.
    pub needs: u64,
    /// The memory that the device with too little memory has, in bytes.
    pub has: u64,
    /// The memory estimates of the workers on the device that has too little memory. For the host's CPU these are also
    /// workers of other devices that keep their optimizer states on the host.
    pub workers: Vec<WorkerEstimate>,
    /// The bytes of `needs` that the program needs besides its workers, such as batches that it reads ahead.
    pub beside_workers: u64,
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
        let workers = self.needs_on(&device).into_iter().map(|(_, worker)| worker).collect();
        let beside_workers = self.beside_workers_on(&device);
        Err(Box::new(DoesNotFit { device, needs, has, workers, beside_workers, ways_out }))
    }

    /// Whether every device has enough memory for its workers; `has` returns a device's memory in bytes, or `None` if
    /// it is unknown and counts as enough, as in [`check`](Self::check).
    pub fn fits(&self, has: impl Fn(&Device) -> Option<u64>) -> bool {
        self.too_small(has).is_none()
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
        let place = if is_host(&self.device) { "the host".to_owned() } else { shown(&self.device) };
        let mut text = format!("about {needs} of memory are needed on {place}, which has {has}");
        for worker in &self.workers {
            let WorkerEstimate {
                replica,
                stages,
                parameters,
                optimizer,
                optimizer_on_host,
                gradients,
                activations,
                transfers,
                kept,
                ..
            } = worker;
            let stages: Vec<_> = stages.iter().map(usize::to_string).collect();
            let stages = replica.name(format!("stage {}", stages.join(", ")));
            let (parameters, optimizer) = (Bytes(*parameters), Bytes(*optimizer));
            let (gradients, activations, transfers) = (Bytes(*gradients), Bytes(*activations), Bytes(*transfers));
            let beside = |what: &str, bytes: u64| match bytes {
                0 => String::new(),
                bytes => format!(", {what} {}", Bytes(bytes)),
            };
            let kept = beside("the previous step", *kept);
            let on_host = beside("optimizer states on the host", *optimizer_on_host);
            let (compute, flush) = (Bytes(worker.compute_peak), Bytes(worker.flush_peak));
            let _ = write!(
                text,
                "\n  {stages}: parameters {parameters}, optimizer {optimizer}, gradients {gradients}, activations \
                 {activations}, transfers {transfers}{kept}{on_host}; at most {compute} while it computes, {flush} in \
                 the flush",
            );
        }
        if self.beside_workers > 0 {
            let _ = write!(text, "\n  batches and other memory of the program {}", Bytes(self.beside_workers));
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
