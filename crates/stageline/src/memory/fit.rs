//! Checks a memory estimate against the memory of the devices, and lists the changes of settings ([`WayOut`]) with
//! which the training would fit.

use std::fmt;

use burn::tensor::Device;
use stageline_schedule::Schedule;

use crate::device::location::{host, is_host, share_memory};
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
    /// The memory estimates of the workers on the device that has too little memory. If this device is the host's CPU,
    /// the list also has workers on other devices, if they keep their optimizer states in the host's memory.
    pub workers: Vec<WorkerEstimate>,
    /// The part of the needed memory, in bytes, that the program uses outside its workers, such as for batches that it
    /// reads ahead; 0 if the device with too little memory is not the host's CPU.
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
    /// A device, besides the one with too little memory now, that may have too little after the settings are changed:
    /// for example the host, if optimizer states move to it. `None` if there is no such device.
    pub elsewhere: Option<Shortage>,
}

/// A device that has, or may have, too little memory for a training.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// The device that has, or may have, too little memory.
    pub device: Device,
    /// The predicted bytes of memory that the training needs on the device.
    pub needs: u64,
    /// The memory that the device has, in bytes.
    pub has: u64,
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
        let Some(short) = self.too_small(&has) else { return Ok(()) };
        let ways_out = WayOut::all(self, schedule, rows, &Room::new(self, &short, has), takes);
        let Shortage { device, needs, has } = short;
        let workers = self.needs_on(&device).into_iter().map(|(_, worker)| worker).collect();
        let beside_workers = self.beside_workers_on(&device);
        Err(Box::new(DoesNotFit { device, needs, has, workers, beside_workers, ways_out }))
    }

    /// Whether every device has enough memory for its workers; `has` returns a device's memory in bytes, or `None` if
    /// it is unknown and counts as enough, as in [`check`](Self::check).
    pub fn fits(&self, has: impl Fn(&Device) -> Option<u64>) -> bool {
        self.too_small(has).is_none()
    }

    /// Returns the first device with too little memory for its workers; `None` if all devices have enough. `has`
    /// returns a device's memory in bytes, or `None` if it is unknown and counts as enough.
    fn too_small(&self, has: impl Fn(&Device) -> Option<u64>) -> Option<Shortage> {
        self.devices().into_iter().find_map(|(device, needs)| {
            let has = has(&device).filter(|has| needs > *has)?;
            Some(Shortage { device, needs, has })
        })
    }
}

/// The memory of each device of a training for which one device is too small: the bytes that the device has, and the
/// bytes that the training needs there before a change of settings.
pub(crate) struct Room<'a> {
    short: &'a Shortage,
    /// The devices besides the one with too little memory, each with the bytes that the training needs there and the
    /// bytes that the device has. Devices whose memory is unknown are left out; the host is included even if the
    /// training needs nothing there yet.
    others: Vec<Shortage>,
}

impl<'a> Room<'a> {
    /// Creates the record of the memory that a training needs, and the memory that exists, on each device. `short` is
    /// the device with too little memory, and `has` returns a device's memory in bytes, or `None` if it is unknown.
    fn new(estimate: &MemoryEstimate, short: &'a Shortage, has: impl Fn(&Device) -> Option<u64>) -> Self {
        let mut needs = estimate.devices();
        let unused = host().filter(|host| !needs.iter().any(|(device, _)| share_memory(device, host)));
        needs.extend(unused.map(|host| (host, 0)));
        needs.retain(|(device, _)| !share_memory(device, &short.device));
        let known = needs.into_iter().filter_map(|(device, needs)| {
            let has = has(&device)?;
            Some(Shortage { device, needs, has })
        });
        Self { short, others: known.collect() }
    }

    /// Returns a device that may be too small after a change of settings, besides the one that is too small before it;
    /// `None` if there is no such device. `needs` has the bytes needed on each device after the change. A device that
    /// needs more memory than it has is returned first. Otherwise it is a device where the change raises the need above
    /// nine tenths of the memory: a tenth must stay free, because the changed training was not measured.
    fn elsewhere(&self, needs: &[(Device, u64)]) -> Option<Shortage> {
        let may_be_too_small = self.others.iter().filter_map(|Shortage { device, needs: before, has }| {
            let after = of_device(needs, device);
            let too_small = after > *has || (after > *before && !leaves_a_tenth(after, *has));
            too_small.then(|| Shortage { device: device.clone(), needs: after, has: *has })
        });
        may_be_too_small.min_by_key(|other| other.needs <= other.has)
    }
}

/// Returns the bytes that are needed on the device `device`; 0 if the list `needs`, which has the bytes needed on each
/// device, does not contain the device.
fn of_device(needs: &[(Device, u64)], device: &Device) -> u64 {
    needs.iter().find(|(other, _)| share_memory(other, device)).map_or(0, |(_, bytes)| *bytes)
}

/// Whether the `needs` bytes that a training needs on a device are at most 90% of the device's memory, which has `has`
/// bytes.
fn leaves_a_tenth(needs: u64, has: u64) -> bool {
    needs <= has - has / 10
}

impl WayOut {
    /// Whether the training fits on all devices after this change of settings. `has` is the memory, in bytes, of the
    /// device that has too little before the change; a tenth of it must stay free, because the changed training was not
    /// measured.
    fn is_enough(&self, has: u64) -> bool {
        leaves_a_tenth(self.needs, has) && self.elsewhere.is_none()
    }

    /// Whether every device has at least the memory that the training is predicted to need there after this change of
    /// settings. `has` is the memory, in bytes, of the device that has too little before the change. No part of the
    /// memory has to stay free.
    fn may_be_enough(&self, has: u64) -> bool {
        self.needs <= has && self.elsewhere.as_ref().is_none_or(|other| other.needs <= other.has)
    }

    /// Returns the proposed changes of settings that reduce the memory needed on the device that has too little; `rows`
    /// is the number of rows (samples) of a micro-batch.
    ///
    /// Changes of a single setting come first. Only one smaller size of micro-batches is proposed: the largest that is
    /// enough, or else the smallest. If no single setting is enough, one combination of changes follows: the first in
    /// the order of preference that is enough. If no combination is enough either, it is the one with which the device
    /// needs the least memory; combinations with which all other devices have enough memory take precedence.
    pub(crate) fn all(
        estimate: &MemoryEstimate,
        schedule: &dyn Schedule,
        rows: usize,
        room: &Room,
        takes: impl Fn(&Lever) -> bool,
    ) -> Vec<Self> {
        let Shortage { device, needs, has } = room.short;
        let has = *has;
        let way_out = |change: Change| {
            let levers = Some(change.levers(estimate, rows)).filter(|levers| levers.iter().all(&takes))?;
            let after = change.needs(estimate, schedule)?;
            Some(Self { levers, needs: of_device(&after, device), elsewhere: room.elsewhere(&after) })
        };
        let helps = |way_out: &Self| way_out.needs < *needs;
        let all: Vec<_> = Change::all(rows).into_iter().filter_map(way_out).filter(helps).collect();
        let (single, several): (Vec<_>, Vec<_>) = all.into_iter().partition(|way_out| way_out.levers.len() == 1);
        let is_size = |way_out: &Self| matches!(way_out.levers[..], [Lever::SmallerMicroBatches { .. }]);
        let (sizes, mut chosen): (Vec<_>, Vec<_>) = single.into_iter().partition(is_size);
        let size = sizes.iter().find(|way_out| way_out.is_enough(has)).or(sizes.last()).cloned();
        let at = chosen.iter().take_while(|way_out| way_out.levers == [Lever::Recompute]).count();
        chosen.splice(at..at, size);
        if chosen.iter().all(|way_out| !way_out.is_enough(has)) {
            let fits = several.iter().find(|way_out| way_out.is_enough(has));
            let least = || several.iter().min_by_key(|way_out| (way_out.elsewhere.is_some(), way_out.needs));
            chosen.extend(fits.or_else(least).cloned());
        }
        chosen
    }

    /// Returns the words that say whether the training fits after this change of settings, such as "may fit". `has` is
    /// the memory in bytes of the device that has too little before the change. If another device may be too small
    /// after the change, the words name it, with its need and its memory.
    fn verdict(&self, has: u64) -> String {
        let verdict = match self.is_enough(has) {
            true => "fits",
            false if self.may_be_enough(has) => "may fit",
            false => "does not fit",
        };
        let Some(Shortage { device, needs, has }) = &self.elsewhere else { return verdict.to_owned() };
        let (place, needs, has) = (place(device), Bytes(*needs), Bytes(*has));
        format!("{verdict}: {place} would need about {needs}, and has {has}")
    }
}

impl DoesNotFit {
    /// Returns the error message for a training that does not fit into memory, with the need of each worker and the
    /// proposed changes of settings. `lever` gives a setting's name in the calling program, such as a flag; `between`
    /// separates settings that are changed together.
    pub fn explain(&self, lever: impl Fn(&Lever) -> String, between: &str) -> String {
        use fmt::Write;
        let (needs, has) = (Bytes(self.needs), Bytes(self.has));
        let place = place(&self.device);
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
            let levers: Vec<_> = way_out.levers.iter().map(&lever).collect();
            let head = if index == 0 { "\nways out, the cheapest first:" } else { "" };
            let (levers, verdict) = (levers.join(between), way_out.verdict(self.has));
            let _ = write!(text, "{head}\n  {levers}: about {}, {verdict}", Bytes(way_out.needs));
        }
        if self.ways_out.iter().all(|way_out| !way_out.is_enough(self.has)) {
            text.push_str("\nuse a device that has more, or a smaller model");
        }
        text
    }
}

/// Returns the words for a device in an error message: "the host" for the host's CPU, and the device's name otherwise.
fn place(device: &Device) -> String {
    if is_host(device) { "the host".to_owned() } else { shown(device) }
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
