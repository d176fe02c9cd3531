//! The route of tensors between two neighbouring stages ([`Route`]). Tensors go directly to the other stage's device,
//! or through separate sessions (network connections that only carry tensors). Some go through this host.
//!
//! The worker of a receiving stage requests tensors in the order of its list of instructions. Over Iroh every tensor in
//! flight has a network stream of its own. A transfer therefore never waits for a transfer that comes later in the
//! plan, so these requests do not deadlock.

use std::thread;

use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

use super::error::RemoteError;
#[cfg(feature = "remote")]
use super::within_server;
use crate::device::location::between_other_gpus;

/// The route of tensors between two neighbouring stages, for activations and for gradients. The sender moves a tensor
/// to the receiver's device, or to a session (connection) with a device's server. In the latter case, the receiver
/// moves the tensor from there to its own device.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) activations: Lanes,
    pub(crate) gradients: Lanes,
}

/// The destinations for the activations, or the gradients, that a stage sends to a neighbouring stage: one device, or
/// several sessions (connections) with a device on another host. Successive micro-batches use the sessions in turn, so
/// that their transfers need not wait for each other.
#[derive(Clone)]
pub(crate) struct Lanes(Vec<Device>);

impl Lanes {
    /// Returns the destination, a device or a session (connection), for tensors of the micro-batch with the zero-based
    /// index `micro_batch`.
    pub(crate) fn of(&self, micro_batch: usize) -> &Device {
        &self.0[micro_batch % self.0.len()]
    }
}

impl Route {
    /// Prepares the routes of tensors between all pairs of neighbouring stages, in parallel. `devices` lists the device
    /// of each stage, in stage order.
    ///
    /// # Errors
    /// Returns [`RemoteError`] if a session (connection to a device of another host) cannot be opened.
    pub(crate) fn all(devices: &[Device]) -> Result<Vec<Self>, RemoteError> {
        thread::scope(|scope| {
            let between = |pair: &'_ [Device]| {
                let (previous, next) = (pair[0].clone(), pair[1].clone());
                scope.spawn(move || Self::between(&previous, &next))
            };
            let opening: Vec<_> = devices.windows(2).map(between).collect();
            opening.into_iter().map(|route| route.join().expect("opening a session returns its errors")).collect()
        })
    }

    /// Prepares the route of tensors between the devices of two neighbouring stages.
    ///
    /// Tensors go directly to the device of the other stage if both devices are on this host, or if they are the same
    /// device. Otherwise tensors go to separate sessions (connections to a device), so that a tensor in flight does not
    /// delay the computation of either stage.
    ///
    /// # Errors
    /// Returns [`RemoteError`] if a session with the other host cannot be opened.
    pub(crate) fn between(previous: &Device, next: &Device) -> Result<Self, RemoteError> {
        #[cfg(feature = "remote")]
        {
            use super::connect::sessions;
            use super::connected::{Lane, find};

            let ends = match [previous, next].map(find) {
                [None, None] => None,
                // Both stages are on one device, so nothing is transferred.
                [Some(_), Some(_)] if previous == next => None,
                [Some(up), Some(down)] if goes_through_this_host(previous, next) => {
                    Some([(up, Lane::Outgoing), (down, Lane::Outgoing)])
                }
                [Some(up), Some(down)] => Some([(down, Lane::Activations), (up, Lane::Gradients)]),
                [Some(up), None] => Some([(up.clone(), Lane::Outgoing), (up, Lane::Gradients)]),
                [None, Some(down)] => Some([(down.clone(), Lane::Activations), (down, Lane::Outgoing)]),
            };
            if let Some([(there, forth_lane), (back, back_lane)]) = ends {
                return Ok(Self {
                    activations: Lanes(sessions(&there, forth_lane)?.to_vec()),
                    gradients: Lanes(sessions(&back, back_lane)?.to_vec()),
                });
            }
        }
        Ok(Self { activations: Lanes(vec![next.clone()]), gradients: Lanes(vec![previous.clone()]) })
    }
}

/// Whether two devices are the same GPU of another host, perhaps over two sessions (connections). A tensor that one
/// thread hands to another on this GPU must be copied first.
#[cfg_attr(not(feature = "remote"), allow(unused_variables))]
pub(crate) fn one_lent_gpu(from: &Device, to: &Device) -> bool {
    #[cfg(feature = "remote")]
    {
        use stageline_nn::kernels::remote::ServedKernels;

        let [from, to] = [from, to].map(super::connected::find);
        from.zip(to).is_some_and(|(from, to)| {
            let places = [&from, &to].map(|connected| (connected.process, connected.name.index));
            places[0] == places[1] && matches!(from.kernels, ServedKernels::Gpu { .. })
        })
    }
    #[cfg(not(feature = "remote"))]
    false
}

/// Whether tensors between two devices must go through this host's memory. This is so in five cases:
///
/// - The devices are two GPUs of this host, and at least one of them is not a CUDA device.
/// - The devices belong to two servers on WebSocket. All tensors between these servers would share one connection, and
///   would have to wait for each other.
/// - One server uses WebSocket and the other Iroh, so they have no connection to each other.
/// - The devices are two GPUs of one server. They would exchange tensors by NCCL, which can deadlock, because the plan
///   of the pipeline does not fix the order of these transfers.
/// - The devices belong to other hosts, and this program has opened one of them directly through burn, not by its name.
pub(crate) fn goes_through_this_host(from: &Device, to: &Device) -> bool {
    if between_other_gpus(from, to) {
        return true;
    }
    #[cfg(feature = "remote")]
    {
        use stageline_nn::kernels::remote::ServedKernels;

        use super::connected::find;
        use super::name::HostName;
        use crate::device::location::is_remote;

        let is_web_socket = |host: &HostName| matches!(host, HostName::WebSocket { .. });
        let [Some(from), Some(to)] = [from, to].map(find) else {
            // The host of a device that was not opened by its name is not known.
            return is_remote(from) && is_remote(to) && from.clone().inner() != to.clone().inner();
        };
        let hosts = [&from.name.host, &to.name.host];
        match hosts[0] == hosts[1] {
            true => from.name.index != to.name.index && [from.kernels, to.kernels] != [ServedKernels::Cpu; 2],
            false => hosts.into_iter().any(is_web_socket),
        }
    }
    #[cfg(not(feature = "remote"))]
    false
}

/// Moves a tensor to the device `to`, through this host's memory if the two devices cannot exchange it directly. The
/// tensor must not be in an autodiff graph.
pub(crate) fn moved<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    let from = tensor.device();
    if goes_through_this_host(&from, to) {
        return by_the_host(tensor, to);
    }
    #[cfg(feature = "remote")]
    if within_server::has_both(&from, to) {
        return within_server::handed_over(tensor, to);
    }
    tensor.to_device(to)
}

pub(crate) fn by_the_host<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    let dtype = tensor.dtype();
    Tensor::from_data(tensor.into_data(), (to, dtype))
}
