//! The way of tensors between two stages.

use std::thread;

use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

use super::error::RemoteError;

/// Where the tensors of a boundary go, for the stage that receives them to take them from.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) activations: Lanes,
    pub(crate) gradients: Lanes,
}

/// Devices, or sessions with them, that take turns with micro-batches.
#[derive(Clone)]
pub(crate) struct Lanes(Vec<Device>);

impl Lanes {
    pub(crate) fn of(&self, micro_batch: usize) -> &Device {
        &self.0[micro_batch % self.0.len()]
    }
}

impl Route {
    /// From each device to the next, all at once.
    ///
    /// # Errors
    /// [`RemoteError`] where a session cannot be opened.
    pub(crate) fn all(devices: &[Device]) -> Result<Vec<Self>, RemoteError> {
        thread::scope(|scope| {
            let between = |pair: &'_ [Device]| {
                let (previous, next) = (pair[0].clone(), pair[1].clone());
                scope.spawn(move || Self::between(&previous, &next))
            };
            let opening: Vec<_> = devices.windows(2).map(between).collect();
            opening.into_iter().map(|route| route.join().expect("it returns its errors")).collect()
        })
    }

    /// Straight to the other device, or where a host is between, to sessions with it of their own: a tensor that is on its way then holds
    /// up neither stage.
    ///
    /// # Errors
    /// [`RemoteError`] where a session cannot be opened.
    pub(crate) fn between(previous: &Device, next: &Device) -> Result<Self, RemoteError> {
        #[cfg(feature = "remote")]
        {
            use super::connect::sessions;
            use super::connected::{Lane, find};

            let ways = match [previous, next].map(find) {
                [None, None] => None,
                // What is computed there stays there.
                [Some(_), Some(_)] if previous == next => None,
                [Some(up), Some(down)] if by_this_host(previous, next) => {
                    Some([(up, Lane::Outgoing), (down, Lane::Outgoing)])
                }
                [Some(up), Some(down)] => Some([(down, Lane::Activations), (up, Lane::Gradients)]),
                [Some(up), None] => Some([(up.clone(), Lane::Outgoing), (up, Lane::Gradients)]),
                [None, Some(down)] => Some([(down.clone(), Lane::Activations), (down, Lane::Outgoing)]),
            };
            if let Some([(there, way), (back, way_back)]) = ways {
                return Ok(Self {
                    activations: Lanes(sessions(&there, way)?.to_vec()),
                    gradients: Lanes(sessions(&back, way_back)?.to_vec()),
                });
            }
        }
        Ok(Self { activations: Lanes(vec![next.clone()]), gradients: Lanes(vec![previous.clone()]) })
    }
}

/// Whether tensors go from one device to the other by this host: burn's servers have one connection for all tensors between two of them
/// over WebSocket, on which those of one session wait for those of another. Between one of WebSocket and one of Iroh they have none.
/// And two GPUs of one server would exchange them by NCCL, in an order that nobody has decided.
pub(super) fn by_this_host(from: &Device, to: &Device) -> bool {
    #[cfg(feature = "remote")]
    {
        use super::connected::find;
        use super::name::HostName;

        let of_web_socket = |host: &HostName| matches!(host, HostName::WebSocket { .. });
        find(from).zip(find(to)).is_some_and(|(from, to)| {
            let hosts = [&from.name.host, &to.name.host];
            match hosts[0] == hosts[1] {
                true => from.name.index != to.name.index && !(from.has_kernels && to.has_kernels),
                false => hosts.into_iter().any(of_web_socket),
            }
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
