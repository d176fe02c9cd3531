//! The way of tensors between two stages.

use burn::tensor::Device;

/// Where the tensors of a boundary go, for the stage that receives them to take them from.
pub(crate) struct Route {
    pub(crate) activations: Device,
    pub(crate) gradients: Device,
}

impl Route {
    /// Straight to the other device, or where a host is between, to a session with it of its own: a tensor that is on its way then holds
    /// up neither stage.
    pub(crate) fn between(previous: &Device, next: &Device) -> Self {
        #[cfg(feature = "remote")]
        {
            use super::connected::find;

            let [transfers, of_next] = [previous, next].map(|device| find(device).map(|found| found.transfers));
            let route = match (transfers, of_next) {
                (None, None) => None,
                (Some(up), Some(down)) => Some([down.activations, up.gradients]),
                (Some(up), None) => Some([up.outgoing, up.gradients]),
                (None, Some(down)) => Some([down.activations, down.outgoing]),
            };
            if let Some([activations, gradients]) = route {
                return Self { activations, gradients };
            }
        }
        Self { activations: next.clone(), gradients: previous.clone() }
    }
}
