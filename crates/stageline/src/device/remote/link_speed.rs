//! The speed of a network between two devices.

use std::time::Duration;

/// The measured speed of the network between two devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// The time that the smallest tensor takes from one device to the other.
    pub latency: Duration,
    /// The bytes per second at which a large tensor crosses.
    pub bandwidth: f64,
}

/// Returns `None` for each pair of neighbours: without the feature `remote` every device is on this host.
///
/// # Errors
/// None.
#[cfg(not(feature = "remote"))]
pub fn link_speeds(
    devices: &[burn::tensor::Device],
) -> Result<Vec<Option<LinkSpeed>>, crate::threads::failure::Failure> {
    Ok(devices.windows(2).map(|_| None).collect())
}
