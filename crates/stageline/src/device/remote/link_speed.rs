//! The latency and bandwidth of the network between two devices of different hosts ([`LinkSpeed`]).

use std::time::Duration;

/// The measured speed (latency and bandwidth) of the network between two devices. `link_speeds` measures it for each
/// pair of neighbouring devices in a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// The latency of the network: the time that a tensor of one element takes from one device to the other, in one
    /// direction.
    pub latency: Duration,
    /// The bandwidth of the network in bytes per second, measured with a large tensor in one direction.
    pub bandwidth: f64,
}

/// Returns `None` for each pair of neighbouring devices, because without the feature `remote` every device is on this
/// host.
///
/// # Errors
/// This function never fails. It returns a `Result` because the function with the feature `remote` can fail.
#[cfg(not(feature = "remote"))]
pub fn link_speeds(
    devices: &[burn::tensor::Device],
) -> Result<Vec<Option<LinkSpeed>>, crate::threads::failure::Failure> {
    Ok(devices.windows(2).map(|_| None).collect())
}
