//! Checks a memory estimate against the devices' memory, and proposes changes of settings ([`Remedy`]) that would let
//! the training run fit.

use std::fmt;

use burn::tensor::Device;
use stageline_schedule::Schedule;

use crate::device::location::{host, is_host, share_memory};
use crate::device::opened::shown;
use crate::memory::changed_settings::Change;
use crate::memory::estimate::MemoryEstimate;
use crate::memory::lever::Lever;
use crate::memory::worker_estimate::WorkerEstimate;

/// The error for a training run that does not fit into a device's memory, with proposed changes of settings.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", self.explain(Lever::to_string, ", "))]
#[non_exhaustive]
pub struct DoesNotFit {
    /// The device whose memory is too small for the training run. All CPUs of the host count as one device.
    pub device: Device,
    /// The predicted bytes of memory needed on `device`, the device that is too small: the sum of its workers' peaks,
    /// and, on the host, the program's memory outside its workers.
    pub needs: u64,
    /// The size, in bytes, of the memory of `device`, which is less than `needs`.
    pub has: u64,
    /// The memory estimates of all workers that need memory on `device`, the device that is too small. For the host's
    /// CPU, they include other devices' workers that keep optimizer states or checkpoint copies on the host.
    pub workers: Vec<WorkerEstimate>,
    /// The bytes that the program needs outside its workers, such as for prefetched batches, if `device` is the host's
    /// CPU; otherwise 0.
    pub beside_workers: u64,
    /// The proposed changes of settings. Changes of a single setting come first. If none of them is enough, one
    /// combination of several settings follows.
    pub remedies: Vec<Remedy>,
}

/// A proposal to change one or more settings so that the training run needs less memory, with the predicted need after
/// the change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remedy {
    /// The changes of settings that this proposal combines to save memory.
    pub levers: Vec<Lever>,
    /// The predicted bytes needed, after the proposed changes, on the device that is too small without them.
    pub needs: u64,
    /// A second device that may lack memory after the proposed changes, such as the host if optimizer states move to
    /// it. `None` if no second device may lack memory.
    pub elsewhere: Option<Shortage>,
}

/// A device whose memory is, or may be, too small for the training run: its memory size, and the bytes needed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// The device whose memory is, or may be, too small.
    pub device: Device,
    /// The predicted bytes of memory that the training run needs on this device.
    pub needs: u64,
    /// The size of the device's memory in bytes.
    pub has: u64,
}

impl MemoryEstimate {
    /// Checks that every device has enough memory for its workers. `has` returns a device's memory size in bytes;
    /// `None` (unknown) counts as enough.
    ///
    /// `schedule` is the pipeline's schedule, and `rows` is the number of rows (samples) of a micro-batch. The proposed
    /// changes of settings depend on both. `takes` returns whether the calling program supports a change; other changes
    /// are not proposed.
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
        let remedies = Remedy::all(self, schedule, rows, &Room::new(self, &short, has), takes);
        let Shortage { device, needs, has } = short;
        let workers = self.needs_on(&device).into_iter().map(|(_, worker)| worker).collect();
        let beside_workers = self.beside_workers_on(&device);
        Err(Box::new(DoesNotFit { device, needs, has, workers, beside_workers, remedies }))
    }

    /// Whether every device has enough memory for its workers. `has` returns a device's memory size in bytes; `None`
    /// (unknown) counts as enough.
    pub fn fits(&self, has: impl Fn(&Device) -> Option<u64>) -> bool {
        self.too_small(has).is_none()
    }

    /// Returns the first device with too little memory for its workers, or `None` if all have enough. `has` returns a
    /// device's memory size in bytes; `None` (unknown) counts as enough.
    fn too_small(&self, has: impl Fn(&Device) -> Option<u64>) -> Option<Shortage> {
        self.devices().into_iter().find_map(|(device, needs)| {
            let has = has(&device).filter(|has| needs > *has)?;
            Some(Shortage { device, needs, has })
        })
    }
}

/// The memory sizes and needs of all devices when one of them is too small (`short`). Used to check that a proposed
/// change of settings does not overload another device.
pub(crate) struct Room<'a> {
    short: &'a Shortage,
    /// The devices except the one that is too small, with their memory sizes and the bytes that the training run needs
    /// on them. Devices of unknown memory size are left out. The host is included even if the unchanged run needs
    /// nothing there.
    others: Vec<Shortage>,
}

impl<'a> Room<'a> {
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

    /// Returns another device that a change of settings may overload, or `None`. `needs` has the bytes needed on each
    /// device after the change. A device may be overloaded in two cases, of which the first takes precedence:
    ///
    /// - The training run needs more than the device's memory.
    /// - The change raises the need, and less than a tenth of the memory stays free.
    fn elsewhere(&self, needs: &[(Device, u64)]) -> Option<Shortage> {
        let may_be_too_small = self.others.iter().filter_map(|Shortage { device, needs: before, has }| {
            let after = of_device(needs, device);
            let too_small = after > *has || (after > *before && !leaves_a_tenth(after, *has));
            too_small.then(|| Shortage { device: device.clone(), needs: after, has: *has })
        });
        may_be_too_small.min_by_key(|other| other.needs <= other.has)
    }
}

fn of_device(needs: &[(Device, u64)], device: &Device) -> u64 {
    needs.iter().find(|(other, _)| share_memory(other, device)).map_or(0, |(_, bytes)| *bytes)
}

fn leaves_a_tenth(needs: u64, has: u64) -> bool {
    needs <= has - has / 10
}

impl Remedy {
    /// Whether the training run fits after this change with a tenth of the memory free, a safety margin because the
    /// changed run was not measured. `has` is the memory, in bytes, of the device that is too small without the change.
    fn is_enough(&self, has: u64) -> bool {
        leaves_a_tenth(self.needs, has) && self.elsewhere.is_none()
    }

    /// Whether the training run fits after this change of settings, without a safety margin. `has` is the memory, in
    /// bytes, of the device that is too small without the change.
    fn may_be_enough(&self, has: u64) -> bool {
        self.needs <= has && self.elsewhere.as_ref().is_none_or(|other| other.needs <= other.has)
    }

    /// Returns the changes of settings to propose for a device that is too small; each lowers the bytes needed there. A
    /// change is "enough" if the run then fits with a tenth of the memory free. `rows` is the number of rows (samples)
    /// of a micro-batch. `takes` returns whether the calling program supports a change.
    ///
    /// Changes of a single setting come first. Only one smaller micro-batch size is proposed: the largest that is
    /// enough, or else the smallest. If no single change is enough, one combination follows: the first that is enough.
    /// If there is none, it is the combination that needs the least memory on the device, preferably one that overloads
    /// no other device.
    pub(crate) fn all(
        estimate: &MemoryEstimate,
        schedule: &dyn Schedule,
        rows: usize,
        room: &Room,
        takes: impl Fn(&Lever) -> bool,
    ) -> Vec<Self> {
        let Shortage { device, needs, has } = room.short;
        let has = *has;
        let remedy = |change: Change| {
            let levers = Some(change.levers(estimate, rows)).filter(|levers| levers.iter().all(&takes))?;
            let after = change.needs(estimate, schedule)?;
            Some(Self { levers, needs: of_device(&after, device), elsewhere: room.elsewhere(&after) })
        };
        let helps = |remedy: &Self| remedy.needs < *needs;
        let all: Vec<_> = Change::all(rows).into_iter().filter_map(remedy).filter(helps).collect();
        let (single, several): (Vec<_>, Vec<_>) = all.into_iter().partition(|remedy| remedy.levers.len() == 1);
        let is_size = |remedy: &Self| matches!(remedy.levers[..], [Lever::SmallerMicroBatches { .. }]);
        let (sizes, mut chosen): (Vec<_>, Vec<_>) = single.into_iter().partition(is_size);
        let size = sizes.iter().find(|remedy| remedy.is_enough(has)).or(sizes.last()).cloned();
        let at = chosen.iter().take_while(|remedy| remedy.levers == [Lever::Recompute]).count();
        chosen.splice(at..at, size);
        if chosen.iter().all(|remedy| !remedy.is_enough(has)) {
            let fits = several.iter().find(|remedy| remedy.is_enough(has));
            let least = || several.iter().min_by_key(|remedy| (remedy.elsewhere.is_some(), remedy.needs));
            chosen.extend(fits.or_else(least).cloned());
        }
        chosen
    }

    /// Returns the error message's verdict on this change of settings, such as "may fit". If the change may overload
    /// another device, that device's name, need and memory size follow. `has` is the memory, in bytes, of the device
    /// that is too small without the change.
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
    /// Returns the error message for a training run that does not fit into memory. It contains the memory that each
    /// worker needs and the proposed changes of settings. `lever` returns the name of a setting in the calling program,
    /// such as a flag. `between` separates settings that are changed together.
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
                checkpoint_on_host,
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
            let copies = beside("copies for a checkpoint on the host", *checkpoint_on_host);
            let (compute, flush) = (Bytes(worker.compute_peak), Bytes(worker.flush_peak));
            let _ = write!(
                text,
                "\n  {stages}: parameters {parameters}, optimizer {optimizer}, gradients {gradients}, activations \
                 {activations}, transfers {transfers}{kept}{on_host}{copies}; at most {compute} while it computes, {flush} in \
                 the flush",
            );
        }
        if self.beside_workers > 0 {
            let _ = write!(text, "\n  batches and other memory of the program {}", Bytes(self.beside_workers));
        }
        for (index, remedy) in self.remedies.iter().enumerate() {
            let levers: Vec<_> = remedy.levers.iter().map(&lever).collect();
            let head = if index == 0 { "\nremedies, the cheapest first:" } else { "" };
            let (levers, verdict) = (levers.join(between), remedy.verdict(self.has));
            let _ = write!(text, "{head}\n  {levers}: about {}, {verdict}", Bytes(remedy.needs));
        }
        if self.remedies.iter().all(|remedy| !remedy.is_enough(self.has)) {
            text.push_str("\nuse a device that has more, or a smaller model");
        }
        text
    }
}

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
