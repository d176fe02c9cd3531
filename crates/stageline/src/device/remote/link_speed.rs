//! The latency and bandwidth of the network between two devices of different hosts ([`LinkSpeed`]).

use std::time::Duration;

/// The measured network speed (latency and bandwidth) between two devices, as returned by `link_speeds`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// One-way network latency between the two devices: the time that a tensor of one element takes from one to the
    /// other.
    pub latency: Duration,
    /// One-way network bandwidth between the two devices in bytes per second, measured with a large tensor.
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
