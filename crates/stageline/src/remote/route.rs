//! The way of tensors between two stages.

use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

/// Where the tensors of a boundary go, for the stage that receives them to take them from.
pub(crate) struct Route {
    pub(crate) activations: Lanes,
    pub(crate) gradients: Lanes,
}

/// Devices, or sessions with them, that take turns with micro-batches.
pub(crate) struct Lanes(Vec<Device>);

impl Lanes {
    pub(crate) fn of(&self, micro_batch: usize) -> &Device {
        &self.0[micro_batch % self.0.len()]
    }
}

impl From<&[Device]> for Lanes {
    fn from(devices: &[Device]) -> Self {
        Self(devices.to_vec())
    }
}

impl Route {
    /// Straight to the other device, or where a host is between, to sessions with it of their own: a tensor that is on its way then holds
    /// up neither stage.
    pub(crate) fn between(previous: &Device, next: &Device) -> Self {
        #[cfg(feature = "remote")]
        {
            use std::slice::from_ref;

            use super::connected::find;

            let found = [previous, next].map(find);
            let [transfers, of_next] = found.each_ref().map(|found| found.as_ref().map(|found| &found.transfers));
            let route: Option<[&[Device]; 2]> = match (transfers, of_next) {
                (None, None) => None,
                (Some(up), Some(down)) if by_this_host(&up.outgoing, &down.outgoing) => {
                    Some([from_ref(&up.outgoing), from_ref(&down.outgoing)])
                }
                (Some(up), Some(down)) => Some([&down.activations, &up.gradients]),
                (Some(up), None) => Some([from_ref(&up.outgoing), &up.gradients]),
                (None, Some(down)) => Some([&down.activations, from_ref(&down.outgoing)]),
            };
            if let Some([activations, gradients]) = route.map(|route| route.map(Lanes::from)) {
                return Self { activations, gradients };
            }
        }
        Self { activations: Lanes(vec![next.clone()]), gradients: Lanes(vec![previous.clone()]) }
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
