//! The way of tensors between two stages.

use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

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

            let found = [previous, next].map(find);
            let [transfers, of_next] = found.each_ref().map(|found| found.as_ref().map(|found| &found.transfers));
            let route = match (transfers, of_next) {
                (None, None) => None,
                (Some(up), Some(down)) if by_this_host(&up.outgoing, &down.outgoing) => {
                    Some([&up.outgoing, &down.outgoing])
                }
                (Some(up), Some(down)) => Some([&down.activations, &up.gradients]),
                (Some(up), None) => Some([&up.outgoing, &up.gradients]),
                (None, Some(down)) => Some([&down.activations, &down.outgoing]),
            };
            if let Some([activations, gradients]) = route.map(|route| route.map(Device::clone)) {
                return Self { activations, gradients };
            }
        }
        Self { activations: next.clone(), gradients: previous.clone() }
    }
}

/// Whether tensors go from one device to the other by this host: burn's servers have one connection for all tensors between two of them
/// over WebSocket, on which those of one session wait for those of another.
/// Between one of WebSocket and one of Iroh they have none.
fn by_this_host(from: &Device, to: &Device) -> bool {
    #[cfg(feature = "remote")]
    {
        use super::connected::find;
        use super::name::HostName;

        let of_web_socket = |host: &HostName| matches!(host, HostName::WebSocket { .. });
        find(from).zip(find(to)).is_some_and(|(from, to)| {
            let hosts = [&from.name.host, &to.name.host];
            hosts[0] != hosts[1] && hosts.into_iter().any(of_web_socket)
        })
    }
    #[cfg(not(feature = "remote"))]
    {
        let _ = (from, to);
        false
    }
}

/// Moves a tensor.
pub(crate) fn moved<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    if by_this_host(&tensor.device(), to) { by_the_host(tensor, to) } else { tensor.to_device(to) }
}

/// Moves a tensor by the memory of this host.
pub(crate) fn by_the_host<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    let dtype = tensor.dtype();
    Tensor::from_data(tensor.into_data(), (to, dtype))
}
