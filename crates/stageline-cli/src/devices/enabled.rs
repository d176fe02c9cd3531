//! `stageline devices`: lists the devices of this host.

use clap::Args;
use stageline::{DeviceMemory, Gpu, GpuApi, GpuSearchError};

use crate::output::print;

/// Lists the devices of this host by the names that `--device` takes
///
/// Each line has a device's name, the model of the processor or GPU, and the memory of the GPU: its size, and the bytes
/// that this command itself has reserved and allocated. The memory that other programs use is not known. A GPU that the
/// CPU emulates is marked "software". A GPU appears once for every API (such as CUDA) that this build supports for it.
/// An API without GPUs has one line, which says why and what to install.
#[derive(Args)]
pub(crate) struct Flags {}

pub(crate) fn run(Flags {}: Flags) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    print(&list(cores, GpuApi::gpus))
}

/// Returns the list of this host's devices as text: the CPU with its number of cores, and the GPUs that `search` finds
/// for each API (such as CUDA). For an API without GPUs, the text says why.
fn list(cores: usize, search: impl Fn(GpuApi) -> Result<Vec<Gpu>, GpuSearchError>) -> String {
    let mut lines = line("cpu", &format!("{cores} cores"));
    for api in GpuApi::ALL {
        match search(api) {
            Err(GpuSearchError::NotBuilt { api }) => {
                lines += &line(&format!("{api}:"), &format!("not in this build; install it with --features {api}"));
            }
            Err(error @ GpuSearchError::MissingLibrary { .. }) => {
                lines += &line(&format!("{api}:"), &format!("none found; {error}"));
            }
            Err(error) => lines += &line(&format!("{api}:"), &format!("cannot be searched; {error}")),
            Ok(gpus) if gpus.is_empty() => {
                lines += &line(&format!("{api}:"), &format!("none found; {}", api.needs()));
            }
            Ok(gpus) => {
                for (index, gpu) in gpus.iter().enumerate() {
                    lines += &line(&format!("{api}:{index}"), &described(api, gpu));
                }
            }
        }
    }
    lines
}

fn line(name: &str, text: &str) -> String {
    format!("{name:<12}{text}\n")
}

/// Returns the model and the memory of a GPU as text. If the GPU does not start, the text says why. `api` is the API,
/// such as CUDA, that found the GPU.
fn described(api: GpuApi, gpu: &Gpu) -> String {
    let model = match &gpu.model {
        Ok(model) if gpu.is_software => format!("{model}, software"),
        Ok(model) => model.clone(),
        Err(cause) => return format!("does not start ({cause}); {}", api.needs()),
    };
    let Some(DeviceMemory { total, reserved, in_use, .. }) = gpu.memory else { return model };
    let size = total.map_or_else(|| "memory of unknown size".to_owned(), |total| format!("{} of memory", shown(total)));
    format!("{model}, {size}, {} reserved, {} in use", shown(reserved), shown(in_use))
}

/// Returns a number of bytes as text, in GB, or in MB if it is below 1 GB.
fn shown(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes < 1e9 { format!("{:.1} MB", bytes / 1e6) } else { format!("{:.1} GB", bytes / 1e9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the line of text about one GPU API, such as CUDA: the GPUs that `search` finds, or the reason why there
    /// are none.
    fn line_of(api: GpuApi, search: impl Fn(GpuApi) -> Result<Vec<Gpu>, GpuSearchError>) -> String {
        let lines = list(4, search);
        assert_eq!(lines.lines().count(), 1 + GpuApi::ALL.len(), "{lines}");
        lines.lines().find(|line| line.starts_with(&format!("{api}:"))).unwrap().to_owned()
    }

    #[test]
    fn a_build_without_gpus_lists_the_cpu_and_the_missing_features() {
        let lines = list(4, |api| Err(GpuSearchError::NotBuilt { api }));
        assert!(lines.starts_with("cpu         4 cores\n"), "{lines}");
        for api in GpuApi::ALL {
            assert!(lines.contains(&format!("not in this build; install it with --features {api}\n")), "{lines}");
        }
    }

    #[test]
    fn an_interface_without_gpus_says_what_to_install() {
        let found = line_of(GpuApi::Vulkan, |_| Ok(Vec::new()));
        assert!(found.contains("none found") && found.contains("`mesa-vulkan-drivers`"), "{found}");
    }

    /// Tests the line of `stageline devices` about a GPU API, such as wgpu. A missing library (such as libvulkan), a
    /// broken library and a failed search for GPUs are reported in different words.
    #[test]
    fn a_broken_library_is_told_from_no_gpus() {
        let api = GpuApi::Wgpu;
        let library = "libvulkan.so.1";
        let missing = line_of(api, |api| Err(GpuSearchError::MissingLibrary { api, library }));
        assert!(missing.contains("none found; the library libvulkan.so.1 is not installed"), "{missing}");
        let cause = || "file too short".to_owned();
        let broken = line_of(api, |api| Err(GpuSearchError::BrokenLibrary { api, library, cause: cause() }));
        assert!(
            broken.contains("cannot be searched; the library libvulkan.so.1 is broken (file too short)"),
            "{broken}"
        );
        let failed = line_of(api, |api| Err(GpuSearchError::Failed { api, cause: cause() }));
        assert!(failed.contains("cannot be searched") && failed.contains("(file too short)"), "{failed}");
        assert!([missing, broken, failed].iter().all(|line| line.contains("`libvulkan1`")));
    }

    #[test]
    fn bytes_are_shown_in_megabytes_and_gigabytes() {
        assert_eq!([shown(0), shown(2_500_000), shown(85_200_000_000)], ["0.0 MB", "2.5 MB", "85.2 GB"]);
    }
}
