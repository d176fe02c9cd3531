//! The devices of other hosts that this program has connected.

use std::sync::{Arc, OnceLock};

use burn::backend::tensor::Device as DeviceOf;
use burn::backend::{DispatchDevice, Remote};
use burn::tensor::Device;
use parking_lot::{Mutex, RwLock};

use super::name::RemoteName;
use super::token::Token;

/// A server's process, by random numbers: one that is started again has lost all that it held.
pub(super) type Process = [f32; 4];

/// One of them.
pub(super) struct Connected {
    pub(super) device: DeviceOf<Remote>,
    pub(super) name: RemoteName,
    pub(super) token: Option<Token>,
    pub(super) has_kernels: bool,
    /// What serves it.
    pub(super) process: Process,
    /// The session by which it is asked whether it is there, once it was.
    pub(super) asking: Mutex<Option<Device>>,
    /// The same device by other sessions, once they are needed.
    pub(super) transfers: [OnceLock<Vec<Device>>; 3],
}

/// What sessions are for in which nothing but transfers has a place: a server does what is asked of it in one session one after the
/// other, and one that waits for a tensor does nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
    /// To the device, down the stages.
    Activations,
    /// To it, up the stages.
    Gradients,
    /// From it.
    Outgoing,
}

impl Lane {
    /// How many sessions take turns. One asks another server for a tensor only when the one before is there; while that is on its way the
    /// other one asks. Eager 1F1B runs two micro-batches further ahead than 1F1B for each boundary.
    pub(super) fn lanes(self) -> usize {
        match self {
            Self::Activations | Self::Gradients => 2,
            Self::Outgoing => 1,
        }
    }
}

static CONNECTED: RwLock<Vec<Arc<Connected>>> = RwLock::new(Vec::new());

pub(super) fn remember(connected: Connected) {
    let mut all = CONNECTED.write();
    all.retain(|other| other.device != connected.device);
    all.push(Arc::new(connected));
}

pub(super) fn has_kernels(device: &DeviceOf<Remote>) -> bool {
    CONNECTED.read().iter().any(|connected| connected.device == *device && connected.has_kernels)
}

/// burn's device of another host, if it is one.
pub(super) fn remote(device: &Device) -> Option<DeviceOf<Remote>> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Remote(remote) => Some(remote.clone()),
        _ => None,
    }
}

/// What is known of a device, or of a session for its transfers, if it is one of another host, and was connected by its name.
pub(super) fn find(device: &Device) -> Option<Arc<Connected>> {
    let asked = device.clone().inner();
    let device = remote(device)?;
    let is_it = |connected: &&Arc<Connected>| {
        let sessions = connected.transfers.iter().filter_map(OnceLock::get).flatten();
        connected.device == device || sessions.into_iter().any(|session| *session == asked)
    };
    CONNECTED.read().iter().find(is_it).cloned()
}
