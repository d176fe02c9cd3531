//! The registry of devices of other hosts that this program has connected. Each entry has the sessions with the device:
//! open connections, each with a queue of requests.

use std::sync::{Arc, OnceLock};

use burn::backend::tensor::Device as DeviceOf;
use burn::backend::{DispatchDevice, Remote};
use burn::tensor::Device;
use parking_lot::{Mutex, RwLock};

use super::name::RemoteName;
use super::token::Token;
use stageline_nn::kernels::remote::ServedKernels;

/// Random numbers that identify a server's process, so that clients notice a restart. A restarted server has new
/// numbers, and has lost its tensors.
pub(super) type Process = [f32; 4];

/// A connected device of another host: its name, its token, its server's process, and its sessions (connections).
pub(super) struct Connected {
    pub(super) device: DeviceOf<Remote>,
    pub(super) name: RemoteName,
    pub(super) token: Option<Token>,
    pub(super) kernels: ServedKernels,
    /// Random numbers that identified the server's process when the device was connected. If the server has other
    /// numbers later, it was restarted.
    pub(super) process: Process,
    /// The session (connection) for checking that the device's server is alive; `None` before the first check.
    pub(super) liveness: Mutex<Option<Device>>,
    /// The sessions (connections) that carry tensors to and from the device, for each kind of tensors ([`Lane`]). A
    /// kind's sessions are opened when its first tensor is transferred.
    pub(super) transfers: [OnceLock<Vec<Device>>; 3],
}

/// The kind of tensors that a session (a queue of requests to one device) carries. Each kind has its own sessions.
///
/// A server executes the requests of one session one after another, and a session that waits for a tensor executes
/// nothing else. Tensors are therefore transferred in separate sessions that run no kernels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
    /// Carries the activations that the device receives from the previous stage.
    Activations,
    /// Carries the gradients that the device receives from the next stage.
    Gradients,
    /// Carries the tensors that the device sends to this host, which may forward them to another host.
    Outgoing,
}

impl Lane {
    /// Returns the number of sessions (connections) to one device for this kind of tensors. Successive micro-batches
    /// use the sessions in turn.
    ///
    /// A session requests a tensor from another server only when the previous tensor has arrived. With two sessions,
    /// the next tensor is requested in one session while the previous one is in flight in the other. A schedule that
    /// starts micro-batches early, such as eager 1F1B, can thus hide the network latency.
    pub(super) fn sessions(self) -> usize {
        match self {
            Self::Activations | Self::Gradients => 2,
            Self::Outgoing => 1,
        }
    }
}

static CONNECTED: RwLock<Vec<Arc<Connected>>> = RwLock::new(Vec::new());

/// Adds a connected device of another host to the registry. A device that was connected before keeps its entry, with
/// the sessions (connections) that are in use, unless its server was restarted.
pub(super) fn remember(connected: Connected) {
    let mut all = CONNECTED.write();
    if !all.iter().any(|other| other.device == connected.device && other.process == connected.process) {
        all.retain(|other| other.device != connected.device);
        all.push(Arc::new(connected));
    }
}

/// Returns all devices of other hosts that this program has connected, in the order of their connection.
pub(super) fn all() -> Vec<Arc<Connected>> {
    CONNECTED.read().clone()
}

/// Converts `device` to burn's type for devices of other hosts. Returns `None` if it belongs to this host.
pub(super) fn remote(device: &Device) -> Option<DeviceOf<Remote>> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Remote(remote) => Some(remote.clone()),
        _ => None,
    }
}

/// Looks up a device of another host in the registry of connected devices. burn represents each connection to a device
/// as a burn device of its own, and `device` may be any of these. Returns `None` for devices of this host, and for
/// devices of other hosts that were not registered by [`remember`].
pub(super) fn find(device: &Device) -> Option<Arc<Connected>> {
    let session_device = device.clone().inner();
    let device = remote(device)?;
    let is_it = |connected: &&Arc<Connected>| {
        let sessions = connected.transfers.iter().filter_map(OnceLock::get).flatten();
        connected.device == device || sessions.into_iter().any(|session| *session == session_device)
    };
    CONNECTED.read().iter().find(is_it).cloned()
}
