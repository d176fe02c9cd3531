//! The names of opened devices, such as `cuda:0`, for messages about these devices.

use burn::tensor::Device;
use parking_lot::Mutex;

use crate::device::location::is_host;

/// All devices that this program has opened by name, each with its name, such as `cuda:0`.
static OPENED: Mutex<Vec<(Device, String)>> = Mutex::new(Vec::new());

/// Records the name of an opened device, for messages. A device that was opened by several names keeps the first.
pub(super) fn record(device: &Device, name: String) {
    let device = device.clone().inner();
    let mut opened = OPENED.lock();
    if opened.iter().all(|(known, _)| *known != device) {
        opened.push((device, name));
    }
}

/// Returns the name of an opened device, such as `cuda:0`. For a device that was opened without a name, returns `cpu`
/// if it is the CPU of this host, and otherwise burn's debug output for the device.
pub(crate) fn shown(device: &Device) -> String {
    let device = device.clone().inner();
    let opened = OPENED.lock();
    let name = opened.iter().find(|(known, _)| *known == device).map(|(_, name)| name.clone());
    name.unwrap_or_else(|| if is_host(&device) { "cpu".to_owned() } else { format!("{device:?}") })
}
