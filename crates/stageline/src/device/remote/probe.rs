//! Measures the network between the devices of neighbouring stages ([`link_speeds`]): latency and bandwidth of the
//! route that activations take.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};

use super::connected;
use super::link_speed::LinkSpeed;
use super::route::{Route, moved};
use super::with_time_limit::Pending;
use crate::threads::failure::Failure;

/// Largest number of test transfers that are timed for each tensor size. The shortest time counts, because other work
/// can delay a transfer.
const ROUNDS: usize = 5;

/// The time limit (60 s) for measuring one network link. Exceeding it is an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time limit (1 s) for starting another test transfer of the same tensor size, so that a slow network is measured
/// with fewer than [`ROUNDS`] transfers.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// Number of f32 elements in the test tensor (4 MB) that measures a network link's bandwidth.
const LARGE: usize = 1 << 20;

/// Measures the latency and bandwidth of transfers from each device to the next one in the list, on the route that
/// activations take in training.
///
/// The result has one entry for each pair of neighbouring devices. The entry is `None` if both are on one host. A
/// remote device that was not opened by its name counts as a device of this host. The network links are measured one
/// after the other, each with up to five transfers of 4 MB.
///
/// # Errors
/// Returns [`Failure`] if a session (a connection to a device) cannot be opened, or if a tensor does not arrive within
/// 60 s.
pub fn link_speeds(devices: &[Device]) -> Result<Vec<Option<LinkSpeed>>, Failure> {
    let host = |device: &Device| connected::find(device).map(|found| found.name.host.clone());
    let between = |pair: &[Device]| (host(&pair[0]) != host(&pair[1])).then(|| measure(&pair[0], &pair[1])).transpose();
    devices.windows(2).map(between).collect()
}

/// Measures the speed (latency and bandwidth) of the network link between two devices. The measurement runs on its own
/// thread, which is abandoned if a tensor does not arrive in time.
fn measure(from: &Device, to: &Device) -> Result<LinkSpeed, Failure> {
    let devices = (from.clone(), to.clone());
    let measured = Pending::start(move || {
        let measured = catch_unwind(AssertUnwindSafe(|| speed(&devices.0, &devices.1)));
        measured.unwrap_or_else(|panic| Err(Failure::of_panic(panic)))
    });
    let name =
        |device| connected::find(device).map_or_else(|| "this host".to_owned(), |found| format!("`{}`", found.name));
    let cause = match measured.within(PATIENCE) {
        Ok(Ok(speed)) => return Ok(speed),
        Ok(Err(failure)) => failure.to_string(),
        Err(_) => format!("nothing arrived within {} s", PATIENCE.as_secs()),
    };
    let (from, to) = (name(from), name(to));
    let text = format!(
        "no tensor gets from {from} to {to}: {cause}; servers reach each other by the addresses in their names"
    );
    Err(Failure::Error(text.into()))
}

/// Measures the latency and bandwidth of the network link between two devices. The latency is the time to move a tensor
/// of one element to `to` and read it there, minus the time to read it alone.
fn speed(from: &Device, to: &Device) -> Result<LinkSpeed, Failure> {
    let nothing = fastest(to, to, 1)?;
    let [small, large] = [fastest(from, to, 1)?, fastest(from, to, LARGE)?];
    let latency = small.saturating_sub(nothing);
    let rest = large.saturating_sub(small).max(Duration::from_nanos(1));
    Ok(LinkSpeed { latency, bandwidth: (LARGE * size_of::<f32>()) as f64 / rest.as_secs_f64() })
}

/// Returns the shortest time of up to [`ROUNDS`] test transfers: moving a tensor of `numbers` elements from the device
/// `from` to the device `to`, and reading one element there. If both are the same device, times only the read. The
/// clock starts when the tensor is complete on `from`.
fn fastest(from: &Device, to: &Device, numbers: usize) -> Result<Duration, Failure> {
    let error = |error: &dyn std::fmt::Display| Failure::Error(error.to_string().into());
    let [from, to] = [from, to].map(|device| device.clone().inner());
    let via = if from == to {
        to.clone()
    } else {
        Route::between(&from, &to).map_err(|cause| error(&cause))?.activations.of(0).clone()
    };
    let (mut best, began) = (Duration::MAX, Instant::now());
    for round in 0..ROUNDS {
        if round > 0 && began.elapsed() > LONG_ENOUGH {
            break;
        }
        let tensor = Tensor::<1>::ones([numbers], &from);
        from.sync().map_err(|cause| error(&cause))?;
        let start = Instant::now();
        let there = moved(moved(tensor, &via), &to);
        there.slice_dim(0, 0..1).try_into_data().map_err(|cause| error(&cause))?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}
