//! The settings that decide how a training run is executed ([`Running`]). Also opens the run's devices.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, FloatDType};
use stageline::remote::Token;
use stageline::{DeviceName, Fallbacks, OptimizerState, Precision, Watchdog, device_speeds};

use super::flags::TrainingFlags;
use super::values::{CutBy, FallbacksName, FlushName, RecomputeBy, ScheduleBy, SpeedsBy};
use crate::terminal::say;

/// The settings that decide how a training run is executed: workers, devices, schedule, precision, memory and watchdog.
pub struct Running {
    /// The number of workers (P) of each data-parallel replica.
    pub workers: usize,
    pub replicas: usize,
    pub chunks: Option<usize>,
    pub cut: CutBy,
    pub schedule: ScheduleBy,
    /// The workers' devices, in the order of the workers, one replica after the other. If there are fewer devices than
    /// workers, consecutive workers share a device.
    pub devices: Vec<Device>,
    /// Relative speed of each entry in `devices`; `None` if all are equally fast. Faster devices get more of the
    /// model's layers.
    pub speeds: Option<Vec<f64>>,
    pub precision: Precision,
    /// Policy for operations without a fast kernel on their stage's device: an error or a warning. `None` if
    /// `--fallbacks` is unset.
    pub fallbacks: Option<Fallbacks>,
    pub synchronise_every: Option<usize>,
    /// The total peak throughput of all devices that the workers use, in FLOP/s; `None` if `--peak-tflops` is unset. A
    /// device that is listed several times counts once.
    pub peak_flops: Option<f64>,
    pub channel_capacity: Option<usize>,
    pub cores_per_stage: Option<usize>,
    pub recompute: RecomputeBy,
    pub flush: FlushName,
    pub rollback: bool,
    pub optimizer_state: OptimizerState,
    /// Memory of each device in bytes, from `--memory`; `None` measures it.
    pub memory: Option<u64>,
    /// The number of batches to prefetch, each on a thread of its own.
    pub read_ahead: usize,
    pub watchdog: Option<Watchdog>,
}

impl Running {
    /// Takes the settings from the flags, and opens the devices. The flags must have passed `check`, because their
    /// ranges are not checked again here.
    ///
    /// # Errors
    /// Returns an error if a name in `--device` is invalid, if the file of `--token-file` cannot be read, or if a
    /// device cannot be opened. Also returns an error if `--speeds` does not list one speed for each entry of
    /// `--device`.
    pub fn of(flags: &TrainingFlags) -> Result<Self> {
        if flags.flush == FlushName::Ahead && (!flags.rollback || flags.replicas > 1) {
            tracing::warn!("--flush ahead has no effect with --rollback false or with several replicas");
        }
        let devices = devices(flags)?;
        let used = distinct(&devices[..devices.len().min(flags.replicas * flags.stages)]).count();
        Ok(Self {
            workers: flags.stages,
            replicas: flags.replicas,
            chunks: flags.chunks,
            cut: flags.cut.clone(),
            schedule: flags.schedule.clone(),
            speeds: flags.speeds.as_ref().map(|list| speeds(list, &devices, flags.precision)).transpose()?,
            devices,
            precision: flags.precision,
            fallbacks: flags.fallbacks.map(fallbacks),
            synchronise_every: flags.synchronise_every,
            peak_flops: flags.peak_tflops.map(|tflops| tflops * 1e12 * used as f64),
            channel_capacity: flags.channel_capacity,
            cores_per_stage: flags.cores_per_stage,
            recompute: flags.recompute,
            flush: flags.flush,
            rollback: flags.rollback,
            optimizer_state: flags.optimizer_state,
            memory: flags.memory.map(|gigabytes| (gigabytes * 1e9) as u64),
            read_ahead: flags.read_ahead,
            watchdog: watchdog(flags.watchdog),
        })
    }
}

/// Returns the devices of a list without duplicates, in the order in which they first occur.
pub fn distinct(devices: &[Device]) -> impl Iterator<Item = &Device> {
    devices.iter().enumerate().filter(|(at, device)| !devices[..*at].contains(device)).map(|(_, device)| device)
}

fn fallbacks(name: FallbacksName) -> Fallbacks {
    match name {
        FallbacksName::Refuse => Fallbacks::Refuse,
        FallbacksName::Warn => Fallbacks::Warn,
    }
}

/// Opens the devices of `--device`, including those of other hosts.
fn devices(flags: &TrainingFlags) -> Result<Vec<Device>> {
    let names = DeviceName::parse_list(&flags.device).context("--device")?;
    let from_server = |path: &PathBuf| format!("--token-file {}: give a copy of the server's file", path.display());
    let read = |path: &PathBuf| Token::read(path).with_context(|| from_server(path));
    let token = flags.token_file.as_ref().map(read).transpose()?;
    DeviceName::open_all(&names, token.as_ref()).context("--device")
}

/// Returns the relative speed of each entry in `devices`: listed by the user, or measured with matrix products in the
/// training precision, as `--speeds` (`by`) says. Repeated entries for a device share its measured speed.
fn speeds(by: &SpeedsBy, devices: &[Device], precision: Precision) -> Result<Vec<f64>> {
    match by {
        SpeedsBy::List(speeds) => {
            let (given, count) = (speeds.len(), devices.len());
            ensure!(
                given == count,
                "--speeds: {given} speeds for {count} devices; give one for each entry of --device"
            );
            Ok(speeds.clone())
        }
        SpeedsBy::Measured => {
            let (dtype, name) = match precision {
                Precision::Full => (FloatDType::F32, "f32"),
                Precision::Bf16 => (FloatDType::BF16, "bf16"),
                Precision::F16 => (FloatDType::F16, "f16"),
            };
            let measured = device_speeds(devices, dtype);
            let entries = |device: &Device| devices.iter().filter(|other| *other == device).count() as f64;
            let shown = devices.iter().zip(&measured);
            let shown: Vec<_> =
                shown.map(|(device, speed)| format!("{} {speed:.2}", DeviceName::shown(device))).collect();
            say(format_args!("measured speeds in {name}: {}", shown.join(", ")))?;
            Ok(devices.iter().zip(measured).map(|(device, speed)| speed / entries(device)).collect())
        }
    }
}

/// Returns a watchdog that warns of a stall after `seconds` seconds (longer if actions are slow) in which no worker
/// begins an action, such as a forward pass or a send. It ends the training run 10 x `seconds` seconds after the
/// warning. Returns `None` if `seconds` is 0.
fn watchdog(seconds: u32) -> Option<Watchdog> {
    let floor = Duration::from_secs(seconds.into());
    (seconds > 0).then(|| Watchdog { floor, grace: 10 * floor, ..Watchdog::default() })
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use crate::settings::job::Job;

    #[test]
    fn the_peak_of_a_device_that_is_listed_twice_counts_once() {
        let peak = |flags: &str| Job::of_line(flags).unwrap().running.peak_flops;
        assert_eq!(peak("--device cpu,cpu --stages 2 --peak-tflops 3"), Some(3e12));
        assert_eq!(peak("--device cpu --stages 2"), None);
    }
}
