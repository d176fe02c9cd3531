//! The latency and bandwidth of the network between two devices.

use std::time::Duration;

/// The measured speed of the network between two devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// The time that a tensor of one element takes from one device to the other.
    pub latency: Duration,
    /// The bytes per second that a large tensor reaches.
    pub bandwidth: f64,
}

/// Returns `None` for each pair of neighbours, because without the feature `remote` every device is on this host.
///
/// # Errors
/// Returns no error; the signature is that of the function with the feature `remote`.
#[cfg(not(feature = "remote"))]
pub fn link_speeds(
    devices: &[burn::tensor::Device],
) -> Result<Vec<Option<LinkSpeed>>, crate::threads::failure::Failure> {
    Ok(devices.windows(2).map(|_| None).collect())
}
