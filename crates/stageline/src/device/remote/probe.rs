//! What the network between two devices is like, measured.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};

use super::connected;
use super::link_speed::LinkSpeed;
use super::pending::Pending;
use super::route::{Route, moved};
use crate::threads::failure::Failure;

/// Of so many the fastest counts: what is slower was held up.
const ROUNDS: usize = 5;

/// For one network.
const PATIENCE: Duration = Duration::from_secs(60);

/// A slow network is not asked as often.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// Numbers of the large tensor: 4 MB.
const LARGE: usize = 1 << 20;

/// How fast activations get from each device to the next, by the way that those of a training take; `None` where both are of one host,
/// or a device was not connected by its name.
///
/// It sends 4 MB up to five times over each network between hosts, one network after the other.
///
/// # Errors
/// [`Failure`] where a host does not answer.
pub fn link_speeds(devices: &[Device]) -> Result<Vec<Option<LinkSpeed>>, Failure> {
    let host = |device: &Device| connected::find(device).map(|found| found.name.host.clone());
    let between = |pair: &[Device]| (host(&pair[0]) != host(&pair[1])).then(|| in_time(&pair[0], &pair[1])).transpose();
    devices.windows(2).map(between).collect()
}

/// On a thread of its own, which is left behind where a tensor never arrives.
fn in_time(from: &Device, to: &Device) -> Result<LinkSpeed, Failure> {
    let devices = (from.clone(), to.clone());
    let measured = Pending::of(move || {
        let measured = catch_unwind(AssertUnwindSafe(|| speed(&devices.0, &devices.1)));
        measured.unwrap_or_else(|panic| Err(Failure::of_panic(panic)))
    });
    let name =
        |device| connected::find(device).map_or_else(|| "this host".to_owned(), |found| format!("`{}`", found.name));
    let cause = match measured.within(PATIENCE) {
        Ok(Ok(speed)) => return Ok(speed),
        Ok(Err(failure)) => failure.to_string(),
        Err(_) => format!("nothing came for {} s", PATIENCE.as_secs()),
    };
    let (from, to) = (name(from), name(to));
    let text = format!(
        "no tensor gets from {from} to {to}: {cause}; servers reach each other by the addresses in their names"
    );
    Err(Failure::Error(text.into()))
}

fn speed(from: &Device, to: &Device) -> Result<LinkSpeed, Failure> {
    let nothing = fastest(to, to, 1)?;
    let [small, large] = [fastest(from, to, 1)?, fastest(from, to, LARGE)?];
    let latency = small.saturating_sub(nothing);
    let rest = large.saturating_sub(small).max(Duration::from_nanos(1));
    Ok(LinkSpeed { latency, bandwidth: (LARGE * size_of::<f32>()) as f64 / rest.as_secs_f64() })
}

/// From a tensor that is there until something of it was read again.
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
