//! Tells the user which GPUs do not report their memory size ([`tell_of_unknown_sizes`]). On these GPUs, no run is
//! rejected for lack of memory.

use anyhow::Result;
use stageline::{DeviceMemory, DeviceName};

use crate::kernel_messages::gpus;
use crate::settings::running::Running;
use crate::terminal::say;

/// Prints which of this host's GPUs do not report their memory size, so that their memory estimate cannot be checked.
/// Prints nothing if all report it, or if the user gave a size with `--memory`.
///
/// # Errors
/// Returns an error if a line cannot be written to the standard output.
pub fn tell_of_unknown_sizes(running: &Running) -> Result<()> {
    if running.memory.is_some() {
        return Ok(());
    }
    for gpu in gpus(&running.devices) {
        let total = DeviceMemory::of(&gpu).and_then(|memory| memory.total);
        if let Some(text) = unknown_size(&DeviceName::shown(&gpu), total) {
            say(text)?;
        }
    }
    Ok(())
}

/// Returns the message for a GPU that does not report its memory size; `None` if it does. `device` is the GPU's name,
/// and `total` is its memory size in bytes.
fn unknown_size(device: &str, total: Option<u64>) -> Option<String> {
    let text = || {
        format!(
            "{device} reports no size of its memory, so the estimate is not compared with it; give --memory GB to have \
             trainings refused that need more"
        )
    };
    total.is_none().then(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_without_a_known_size_is_named_with_the_flag() {
        let text = unknown_size("wgpu:0", None).unwrap();
        let expected =
            "wgpu:0 reports no size of its memory, so the estimate is not compared with it; give --memory GB";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(unknown_size("cuda:0", Some(80 << 30)), None);
    }
}
