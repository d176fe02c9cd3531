//! The route of tensors between two neighbouring stages ([`Route`]): directly to the other stage's device, or through
//! separate sessions (network connections that only carry tensors), with or without a detour through this host.
//!
//! The worker of a receiving stage requests tensors in the order of its list of instructions. Over Iroh every tensor in
//! flight has a network stream of its own, so no order of these requests can deadlock: nothing that must come before a
//! tensor waits for that tensor.

use std::thread;

use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

use super::error::RemoteError;
use crate::device::location::between_other_gpus;

/// The route by which two neighbouring stages exchange tensors. The sender moves activations and gradients to a device
/// of the route, or to a session (a connection to a device). The receiver moves each tensor from there to its own
/// device.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) activations: Lanes,
    pub(crate) gradients: Lanes,
}

/// The targets to which a stage moves tensors of one kind (activations or gradients) for a neighbouring stage: a
/// device, or one or more sessions (connections) with a device. Successive micro-batches use the targets in turn.
#[derive(Clone)]
pub(crate) struct Lanes(Vec<Device>);

impl Lanes {
    /// Returns the device, or the session (the connection to a device of another host), to which the sender moves the
    /// tensors of the micro-batch `micro_batch`, counted from 0.
    pub(crate) fn of(&self, micro_batch: usize) -> &Device {
        &self.0[micro_batch % self.0.len()]
    }
}

impl Route {
    /// Prepares one route for every pair of neighbouring stages, given the device of each stage in stage order. All
    /// routes are prepared in parallel.
    ///
    /// # Errors
    /// Returns [`RemoteError`] if a session (a connection to a device of another host) cannot be opened.
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
    /// On one host, tensors go directly to the other stage's device. If another host is involved, tensors go to
    /// separate sessions (connections with request queues of their own), so that a tensor in flight delays neither
    /// stage's computation.
    ///
    /// # Errors
    /// Returns [`RemoteError`] if a session with the other host cannot be opened.
    pub(crate) fn between(previous: &Device, next: &Device) -> Result<Self, RemoteError> {
        #[cfg(feature = "remote")]
        {
            use super::connect::sessions;
            use super::connected::{Lane, find};

            let ways = match [previous, next].map(find) {
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

/// Whether tensors between two devices must go through this host's memory. Such a detour is necessary in four cases:
///
/// - The devices are two GPUs of this host of which at least one is not a CUDA device.
/// - The devices belong to two servers that are reached over WebSocket: tensors between them share one connection, on
///   which the tensors of one session (one queue of requests to a device) would wait for those of another.
/// - One server is reached over WebSocket and the other over Iroh: they have no connection to each other.
/// - The devices are two GPUs of one server: they would exchange tensors by NCCL, which can deadlock, because the
///   pipeline's plan does not fix the order of these transfers.
pub(crate) fn goes_through_this_host(from: &Device, to: &Device) -> bool {
    if between_other_gpus(from, to) {
        return true;
    }
    #[cfg(feature = "remote")]
    {
        use stageline_nn::kernels::remote::ServedKernels;

        use super::connected::find;
        use super::name::HostName;

        let is_web_socket = |host: &HostName| matches!(host, HostName::WebSocket { .. });
        find(from).zip(find(to)).is_some_and(|(from, to)| {
            let hosts = [&from.name.host, &to.name.host];
            match hosts[0] == hosts[1] {
                true => from.name.index != to.name.index && [from.kernels, to.kernels] != [ServedKernels::Cpu; 2],
                false => hosts.into_iter().any(is_web_socket),
            }
        })
    }
    #[cfg(not(feature = "remote"))]
    false
}

/// Moves a tensor to another device, through this host's memory if the two devices cannot exchange it directly.
pub(crate) fn moved<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    if goes_through_this_host(&tensor.device(), to) { by_the_host(tensor, to) } else { tensor.to_device(to) }
}

/// Moves a tensor to another device through this host's memory.
pub(crate) fn by_the_host<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    let dtype = tensor.dtype();
    Tensor::from_data(tensor.into_data(), (to, dtype))
}
