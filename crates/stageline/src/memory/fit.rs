//! A configuration that needs more memory than there is, and what could be done about it.

use std::fmt;

use burn::tensor::Device;
use stageline_schedule::{OneFOneB, Schedule};

use crate::device::location::{is_host, share_memory};
use crate::memory::estimate::{MemoryEstimate, WorkerEstimate};

/// More memory is needed than a device has.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", self.explain(Lever::to_string, ", "))]
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
    /// Each lever by itself that helps, the cheapest first, and then, if none of them is enough, several together.
    pub ways_out: Vec<WayOut>,
}

/// What needs less memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WayOut {
    /// What to change, all of it.
    pub levers: Vec<Lever>,
    /// What is then needed, in bytes.
    pub needs: u64,
}

/// What can be changed so that less memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lever {
    /// [`Recompute::Full`](crate::Recompute::Full): about a third more is computed.
    Recompute,
    /// The same batch in smaller micro-batches.
    SmallerMicroBatches {
        /// The rows of each.
        rows: usize,
        /// M.
        micro_batches: usize,
    },
    /// Each stage cut in two, where every stage has a device to itself that is not the host: on twice as many.
    MoreStages {
        /// P.
        stages: usize,
    },
    /// All layers in one stage, where stages share a device: one micro-batch is live at a time.
    OneStage,
    /// 1F1B, with the fewest live micro-batches that keep every stage at work.
    OneFOneB,
    /// An optimizer that remembers nothing, or little, of each parameter.
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
            Self::MoreStages { stages } => write!(f, "{stages} stages, each on a device of its own"),
            Self::OneStage => write!(f, "one stage"),
            Self::LeanerOptimizer => write!(f, "an optimizer that remembers nothing, such as plain SGD"),
        }
    }
}

impl MemoryEstimate {
    /// Whether every device of which `has` knows what it has, in bytes, has what its workers hold.
    ///
    /// `schedule` is the pipeline's, and `rows` are those of its micro-batches: what could be changed depends on them, and on what
    /// the program `takes`.
    ///
    /// # Errors
    /// [`DoesNotFit`], with the ways out.
    pub fn check(
        &self,
        has: impl Fn(&Device) -> Option<u64>,
        (schedule, rows): (&dyn Schedule, usize),
        takes: impl Fn(&Lever) -> bool,
    ) -> Result<(), Box<DoesNotFit>> {
        let Some((device, needs, has)) = self.too_small(has) else { return Ok(()) };
        let ways_out = WayOut::all(self, (schedule, rows), (needs, has), &device, takes);
        let workers = self.workers_on(&device);
        Err(Box::new(DoesNotFit { device, needs, has, workers, ways_out }))
    }

    /// Whether [`check`](Self::check) finds nothing.
    pub fn fits(&self, has: impl Fn(&Device) -> Option<u64>) -> bool {
        self.too_small(has).is_none()
    }

    fn workers_on(&self, device: &Device) -> Vec<WorkerEstimate> {
        let workers = self.placed_workers().into_iter().filter(|(other, _)| share_memory(other, device));
        workers.map(|(_, worker)| worker).collect()
    }

    /// A device that has less than is needed on it, what that is, and what it has.
    fn too_small(&self, has: impl Fn(&Device) -> Option<u64>) -> Option<(Device, u64, u64)> {
        self.devices().into_iter().find_map(|(device, needs)| {
            let has = has(&device).filter(|has| needs > *has)?;
            Some((device, needs, has))
        })
    }
}

/// Another number of stages.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    Same,
    Twice,
    One,
}

/// Something else than what was asked for.
#[derive(Clone, Copy)]
struct Change {
    recompute: bool,
    /// How many times smaller micro-batches are.
    times: usize,
    cut: Cut,
    one_f_one_b: bool,
    lean: bool,
}

impl Change {
    /// All that could be made of micro-batches of so many rows, what costs least first; the first one changes nothing.
    fn all(rows: usize) -> Vec<Self> {
        let sizes: Vec<_> = (1..=rows.max(1)).filter(|times| rows.is_multiple_of(*times)).collect();
        let mut all = Vec::with_capacity(24 * sizes.len());
        for lean in [false, true] {
            for one_f_one_b in [false, true] {
                for cut in [Cut::Same, Cut::Twice, Cut::One] {
                    let of = |&times: &usize| {
                        [false, true].map(|recompute| Self { recompute, times, cut, one_f_one_b, lean })
                    };
                    all.extend(sizes.iter().flat_map(of));
                }
            }
        }
        all
    }

    fn levers(self, estimate: &MemoryEstimate, rows: usize) -> Vec<Lever> {
        let Self { recompute, times, cut, one_f_one_b, lean } = self;
        let cut = match cut {
            Cut::Same => None,
            Cut::Twice => Some(Lever::MoreStages { stages: 2 * estimate.stages.len() }),
            Cut::One => Some(Lever::OneStage),
        };
        let micro_batches = estimate.plan.micro_batches() * times;
        let size = (times > 1).then_some(Lever::SmallerMicroBatches { rows: rows / times, micro_batches });
        let all = [recompute.then_some(Lever::Recompute), size, cut, one_f_one_b.then_some(Lever::OneFOneB)];
        all.into_iter().chain([lean.then_some(Lever::LeanerOptimizer)]).flatten().collect()
    }

    /// What is then held; `None` where it cannot be changed so.
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

    /// What is then held on a device; on none of those that it becomes is it more.
    fn needs(self, estimate: &MemoryEstimate, schedule: &dyn Schedule, device: &Device) -> Option<u64> {
        let changed = self.of(estimate, schedule)?;
        let workers = changed.workers_on(device);
        let peaks = workers.iter().map(WorkerEstimate::peak);
        Some(if self.cut == Cut::Twice { peaks.max().unwrap_or(0) } else { peaks.sum() })
    }
}

impl WayOut {
    /// Whether it is, for all that the figure is an estimate of something that was not run.
    fn is_enough(&self, has: u64) -> bool {
        self.needs <= has - has / 10
    }

    /// What would need less, of what has micro-batches of so many rows: each lever by itself, micro-batches only as small as
    /// they have to be; then, if it takes more than one, the cheapest that fit, or those that need least.
    pub(crate) fn all(
        estimate: &MemoryEstimate,
        (schedule, rows): (&dyn Schedule, usize),
        (needs, has): (u64, u64),
        device: &Device,
        takes: impl Fn(&Lever) -> bool,
    ) -> Vec<Self> {
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
    /// What it says, with each lever in the words of a program, and these between several of them.
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
            let kept = if *kept > 0 { format!(", the step before {}", Bytes(*kept)) } else { String::new() };
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
