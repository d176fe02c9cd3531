//! Tells the user which GPUs report no size of their memory, so that nothing is refused on them
//! ([`tell_of_unknown_sizes`]).

use stageline::{DeviceMemory, DeviceName};

use crate::kernels::gpus;
use crate::settings::job::Running;

/// Prints the GPUs of this host with whose memory the estimate of a training is not compared: those that report no size
/// of their memory, unless the user gave a size with `--memory`. Prints nothing if there are none.
pub fn tell_of_unknown_sizes(running: &Running) {
    if running.memory.is_some() {
        return;
    }
    for gpu in gpus(&running.devices) {
        let total = DeviceMemory::of(&gpu).and_then(|memory| memory.total);
        if let Some(text) = unknown_size(&DeviceName::shown(&gpu), total) {
            println!("{text}");
        }
    }
}

/// Returns the text about the GPU with the name `device` if the size `total` of its memory is unknown.
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
