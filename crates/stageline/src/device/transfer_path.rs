//! Determines how tensors get from one of a pipeline's devices to another ([`TransferPath`]): by NCCL, through host
//! memory or over the network. Logs these transports when a pipeline starts.

use burn::tensor::Device;

use crate::device::location::{is_cuda, is_host, is_remote, share_memory};
use crate::device::opened::shown;
use crate::device::remote::goes_through_this_host;

/// The transport of tensors between two devices without shared memory: directly by NCCL, through host memory, or over
/// the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferPath {
    /// Tensors go directly from one CUDA device to another by NCCL.
    Nccl,
    /// Tensors go from one CUDA device to another through host memory, because NCCL was not found or is broken.
    WithoutNccl,
    /// Tensors go from one GPU to another through host memory, because at least one of the GPUs is not a CUDA device.
    /// Gradients that are added up (of replicas or tied parameters) take this path between any two GPUs of this host.
    BetweenGpus,
    /// Tensors are copied between host memory and a GPU's device memory.
    HostAndGpu,
    /// Tensors go over the network directly from the sending host to the receiving host.
    Network,
    /// Tensors between devices of other hosts go over the network to this host, and from here to the receiving device,
    /// because the two devices cannot exchange them directly.
    NetworkByThisHost,
}

/// The kind of tensors that a pipeline transfers between two devices, for log messages about the transport (such as
/// NCCL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The activations and gradients of micro-batches, which neighbouring stages exchange.
    MicroBatches,
    /// Each replica's gradient sums, which it sends to the first replica at the end of a step, and the new parameters,
    /// which the first replica sends back.
    SumsOfReplicas,
    /// Gradients of tied parameters, which a stage sends to the stage that owns the parameters, and the updated
    /// parameters, which the owner sends back.
    TiedParameters,
}

impl Moved {
    /// Returns this kind of tensors in the words of log messages, such as "gradient sums of replicas".
    fn subject(self) -> &'static str {
        match self {
            Self::MicroBatches => "tensors",
            Self::SumsOfReplicas => "gradient sums of replicas",
            Self::TiedParameters => "gradients of tied parameters",
        }
    }

    /// Returns the transport for this kind of tensors between two devices. `path` is the transport for activations and
    /// gradients of micro-batches between the same devices. The result differs from `path` only between CUDA devices,
    /// where gradients that are added up (of replicas or tied parameters) go through host memory instead of NCCL.
    fn by(self, path: TransferPath) -> TransferPath {
        match (self, path) {
            (Self::SumsOfReplicas | Self::TiedParameters, TransferPath::Nccl | TransferPath::WithoutNccl) => {
                TransferPath::BetweenGpus
            }
            _ => path,
        }
    }
}

/// The location of a device, which decides how tensors reach it: this host's CPU, a GPU of this host, or another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// The device is the CPU of this host.
    Host,
    /// The device is a GPU of this host that is used through CUDA.
    Cuda,
    /// The device is a GPU of this host that is used through a GPU API other than CUDA.
    OtherGpu,
    /// The device belongs to another host.
    Remote,
}

impl Site {
    fn of(device: &Device) -> Self {
        match device {
            device if is_host(device) => Self::Host,
            device if is_remote(device) => Self::Remote,
            device if is_cuda(device) => Self::Cuda,
            _ => Self::OtherGpu,
        }
    }
}

/// Returns the transport between two devices without shared memory, from their locations. `has_nccl` says whether NCCL
/// is loaded. `meets_here` says whether tensors between the two devices must go through this host.
fn path_between(from: Site, to: Site, has_nccl: bool, meets_here: bool) -> TransferPath {
    match (from, to) {
        (Site::Remote, _) | (_, Site::Remote) if meets_here => TransferPath::NetworkByThisHost,
        (Site::Remote, _) | (_, Site::Remote) => TransferPath::Network,
        (Site::Host, _) | (_, Site::Host) => TransferPath::HostAndGpu,
        (Site::Cuda, Site::Cuda) if has_nccl => TransferPath::Nccl,
        (Site::Cuda, Site::Cuda) => TransferPath::WithoutNccl,
        (Site::Cuda | Site::OtherGpu, Site::Cuda | Site::OtherGpu) => TransferPath::BetweenGpus,
    }
}

/// A pipeline's pairs of devices that exchange tensors, grouped by the kind of tensors and the transport, such as NCCL.
/// Pairs are strings for the log, such as "cpu and cuda:0".
pub(crate) struct TransferPaths(Vec<((Moved, TransferPath), Vec<String>)>);

impl TransferPaths {
    /// Lists a pipeline's pairs of devices that exchange tensors, with each pair's transport (such as NCCL). These are
    /// the devices of neighbouring stages, of the same stage in two replicas, and of stages with tied parameters.
    /// `replicas` lists the device of each stage, for each replica. `tied` lists pairs of stages: a tied parameter's
    /// owner, and another stage that uses it. Pairs that share memory are left out.
    pub(crate) fn of(replicas: &[Vec<Device>], tied: &[(usize, usize)]) -> Self {
        let neighbours = replicas.iter().flat_map(|devices| devices.windows(2));
        let neighbours = neighbours.map(|pair| (Moved::MicroBatches, &pair[0], &pair[1]));
        let leaves = replicas.iter().skip(1).flat_map(|leaf| leaf.iter().zip(&replicas[0]));
        let leaves = leaves.map(|(leaf, root)| (Moved::SumsOfReplicas, leaf, root));
        let ties = replicas.iter().flat_map(|devices| {
            tied.iter().map(move |&(owner, holder)| (Moved::TiedParameters, &devices[holder], &devices[owner]))
        });
        let mut paths: Vec<((Moved, TransferPath), Vec<String>)> = Vec::new();
        for (moved, from, to) in neighbours.chain(leaves).chain(ties) {
            if share_memory(from, to) {
                continue;
            }
            let path = path_between(Site::of(from), Site::of(to), nccl().is_ok(), goes_through_this_host(from, to));
            let path = (moved, moved.by(path));
            let mut names = [shown(from), shown(to)];
            names.sort();
            let names = names.join(" and ");
            match paths.iter_mut().find(|(known, _)| *known == path) {
                Some((_, pairs)) if pairs.contains(&names) => {}
                Some((_, pairs)) => pairs.push(names),
                None => paths.push((path, vec![names])),
            }
        }
        Self(paths)
    }

    /// Logs how each kind of tensors gets from one of a pipeline's devices to another, such as by NCCL. If tensors go
    /// through host memory because NCCL is missing or broken, logs a warning that names the remedy.
    pub(crate) fn log(&self) {
        for ((moved, path), pairs) in &self.0 {
            let message = message(*moved, *path, &pairs.join(", "), nccl());
            match path {
                TransferPath::WithoutNccl => tracing::warn!("{message}"),
                _ => tracing::info!("{message}"),
            }
        }
    }
}

/// Returns the log message that one kind of tensors uses the transport `path` (such as NCCL) between the devices in
/// `pairs`. `nccl` is the file name of NCCL's library; its error says why NCCL is broken, and is `None` if NCCL was not
/// found.
fn message(moved: Moved, path: TransferPath, pairs: &str, nccl: Result<&str, Option<&str>>) -> String {
    let subject = moved.subject();
    match path {
        TransferPath::Nccl => {
            format!("{subject} go from GPU to GPU by NCCL ({}): {pairs}", nccl.unwrap_or_default())
        }
        TransferPath::WithoutNccl => {
            let slower = format!("so {subject} go from GPU to GPU through the host's memory, which is slower: {pairs}");
            match nccl.err().flatten() {
                Some(cause) => format!(
                    "NCCL is broken ({cause}), {slower}; install `libnccl2`, or pip's `nvidia-nccl-cu12`, again, and check that \
                     LD_LIBRARY_PATH names no damaged copy"
                ),
                None => format!(
                    "NCCL was not found, {slower}; install `libnccl2`, or pip's `nvidia-nccl-cu12` with its folder in \
                     LD_LIBRARY_PATH"
                ),
            }
        }
        TransferPath::BetweenGpus => format!("{subject} go from GPU to GPU through the host's memory: {pairs}"),
        TransferPath::HostAndGpu => format!("{subject} are copied between the host's memory and a GPU: {pairs}"),
        TransferPath::Network => format!("{subject} go over the network without a detour: {pairs}"),
        TransferPath::NetworkByThisHost => format!("{subject} go over the network through this host: {pairs}"),
    }
}

/// Returns the file name of NCCL's library. The error says why NCCL is broken, and is `None` if NCCL was not found. A
/// build without CUDA does not look for NCCL.
#[cfg(feature = "cuda")]
fn nccl() -> Result<&'static str, Option<&'static str>> {
    use crate::device::nccl::{BetweenGpus, load};

    match load() {
        BetweenGpus::Nccl(library) => Ok(*library),
        BetweenGpus::Host => Err(None),
        BetweenGpus::HostWithBrokenNccl(cause) => Err(Some(cause.as_str())),
    }
}

#[cfg(not(feature = "cuda"))]
fn nccl() -> Result<&'static str, Option<&'static str>> {
    Err(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cuda_devices_use_nccl_if_it_is_installed() {
        assert_eq!(path_between(Site::Cuda, Site::Cuda, true, false), TransferPath::Nccl);
        assert_eq!(path_between(Site::Cuda, Site::Cuda, false, false), TransferPath::WithoutNccl);
        let message = |path, nccl| message(Moved::MicroBatches, path, "cuda:0 and cuda:1", nccl);
        assert!(message(TransferPath::Nccl, Ok("libnccl.so.2")).ends_with("(libnccl.so.2): cuda:0 and cuda:1"));
        let missing = message(TransferPath::WithoutNccl, Err(None));
        assert!(missing.starts_with("NCCL was not found, so tensors go ") && missing.contains("install `libnccl2`"));
        let broken = message(TransferPath::WithoutNccl, Err(Some("libnccl.so.2: file too short")));
        assert!(broken.starts_with("NCCL is broken (libnccl.so.2: file too short), so tensors go "), "{broken}");
    }

    #[test]
    fn gradients_to_add_up_never_go_by_nccl() {
        for moved in [Moved::SumsOfReplicas, Moved::TiedParameters] {
            let by_nccl = [TransferPath::Nccl, TransferPath::WithoutNccl].map(|path| moved.by(path));
            assert_eq!(by_nccl, [TransferPath::BetweenGpus; 2]);
            assert_eq!(moved.by(TransferPath::Network), TransferPath::Network);
        }
        assert_eq!(
            message(Moved::SumsOfReplicas, TransferPath::BetweenGpus, "cuda:0 and cuda:2", Ok("libnccl.so.2")),
            "gradient sums of replicas go from GPU to GPU through the host's memory: cuda:0 and cuda:2"
        );
    }

    #[test]
    fn other_devices_of_this_host_go_through_its_memory() {
        for (from, to) in [(Site::Cuda, Site::OtherGpu), (Site::OtherGpu, Site::Cuda), (Site::OtherGpu, Site::OtherGpu)]
        {
            assert_eq!(path_between(from, to, true, true), TransferPath::BetweenGpus, "{from:?} to {to:?}");
        }
        for gpu in [Site::Cuda, Site::OtherGpu] {
            assert_eq!(path_between(Site::Host, gpu, true, false), TransferPath::HostAndGpu);
            assert_eq!(path_between(gpu, Site::Host, true, false), TransferPath::HostAndGpu);
        }
    }

    #[test]
    fn devices_of_other_hosts_are_reached_over_the_network() {
        for other in [Site::Host, Site::Cuda, Site::OtherGpu, Site::Remote] {
            assert_eq!(path_between(Site::Remote, other, true, false), TransferPath::Network);
            assert_eq!(path_between(other, Site::Remote, true, false), TransferPath::Network);
        }
        assert_eq!(path_between(Site::Remote, Site::Remote, true, true), TransferPath::NetworkByThisHost);
    }

    #[test]
    #[cfg(feature = "flex")]
    fn stages_that_share_a_memory_have_no_path() {
        let stages = vec![Device::flex(), Device::flex().autodiff(), Device::flex()];
        assert!(TransferPaths::of(&[stages.clone(), stages], &[(0, 2)]).0.is_empty());
    }

    /// Tests that a pair of devices is listed once, even if tensors move between them at several stage boundaries and
    /// in both directions.
    #[test]
    #[cfg(all(feature = "flex", feature = "wgpu"))]
    fn a_pair_of_devices_is_listed_once() {
        let gpu = crate::DeviceName::parse_list("wgpu:0").unwrap().remove(0).open().unwrap();
        let stages = vec![Device::flex(), gpu.clone(), gpu, Device::flex()];
        let TransferPaths(paths) = TransferPaths::of(&[stages.clone(), stages], &[]);
        assert_eq!(paths, [((Moved::MicroBatches, TransferPath::HostAndGpu), vec!["cpu and wgpu:0".to_owned()])]);
    }

    #[test]
    #[cfg(all(feature = "flex", feature = "wgpu"))]
    fn replicas_and_tied_parameters_have_paths_of_their_own() {
        let gpu = crate::DeviceName::parse_list("wgpu:0").unwrap().remove(0).open().unwrap();
        let of = |replicas: [Vec<Device>; 2]| {
            let TransferPaths(paths) = TransferPaths::of(&replicas, &[(0, 1)]);
            paths.into_iter().map(|((moved, _), _)| moved).collect::<Vec<_>>()
        };
        let (cpu, gpus) = (vec![Device::flex(); 2], vec![gpu.clone(); 2]);
        assert_eq!(of([cpu.clone(), gpus]), [Moved::SumsOfReplicas]);
        let mixed = vec![Device::flex(), gpu];
        assert_eq!(of([mixed.clone(), mixed.clone()]), [Moved::MicroBatches, Moved::TiedParameters]);
        assert_eq!(of([mixed, cpu]), [Moved::MicroBatches, Moved::SumsOfReplicas, Moved::TiedParameters]);
    }
}
