//! Finds the path that tensors take from one device of a pipeline to another ([`TransferPath`]): NCCL, the host's
//! memory or the network. Logs these paths when a pipeline starts.

use burn::tensor::Device;

use crate::device::location::{is_cuda, is_host, is_remote, share_memory};
use crate::device::opened::shown;
use crate::device::remote::goes_through_this_host;

/// The path of tensors between two devices without shared memory: directly by NCCL, through the host's memory, or over
/// the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferPath {
    /// A path of tensors between stages: directly from one CUDA device to another by NCCL.
    Nccl,
    /// A path of tensors between stages: from one CUDA device to another through the host's memory, because NCCL was
    /// not found or is broken.
    WithoutNccl,
    /// A path of tensors between stages: from one GPU to another through the host's memory. Tensors take this path if
    /// one of the GPUs is not a CUDA device. Gradients that are added up (of replicas or tied parameters) take it
    /// between any two GPUs of this host.
    BetweenGpus,
    /// A path of tensors between stages: a copy between the host's memory and the memory of a GPU.
    HostAndGpu,
    /// A path of tensors between stages: over the network directly from one host to the other.
    Network,
    /// A path of tensors between stages that are on devices of other hosts: over the network to this host, and from
    /// here to the device that receives them.
    NetworkByThisHost,
}

/// The kinds of tensors that a pipeline transfers between devices. Log messages about transfers name the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The activations and gradients of micro-batches, which neighbouring stages exchange.
    MicroBatches,
    /// Gradient sums, which each replica sends to the first replica at the end of a step, and the new parameters, which
    /// the first replica sends back.
    SumsOfReplicas,
    /// Gradients of tied parameters, which a stage sends to the stage that owns the parameters, and the updated
    /// parameters, which the owner sends back.
    TiedParameters,
}

impl Moved {
    /// Returns the words for this kind of tensors in log messages, such as "gradient sums of replicas".
    fn subject(self) -> &'static str {
        match self {
            Self::MicroBatches => "tensors",
            Self::SumsOfReplicas => "gradient sums of replicas",
            Self::TiedParameters => "gradients of tied parameters",
        }
    }

    /// Returns the path of this kind of tensors between two devices. `path` is the path that activations and gradients
    /// of micro-batches take between the same two devices. The result differs from it in one case: between CUDA
    /// devices, gradients that are added up (of replicas or tied parameters) go through the host's memory.
    fn by(self, path: TransferPath) -> TransferPath {
        match (self, path) {
            (Self::SumsOfReplicas | Self::TiedParameters, TransferPath::Nccl | TransferPath::WithoutNccl) => {
                TransferPath::BetweenGpus
            }
            _ => path,
        }
    }
}

/// The location of a device: this host's CPU, a GPU of this host, or another host. The path of tensors depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// The location of a device that is the CPU of this host.
    Host,
    /// The location of a device that is a GPU of this host and is used through CUDA.
    Cuda,
    /// The location of a device that is a GPU of this host and is used through an interface other than CUDA.
    OtherGpu,
    /// The location of a device that belongs to another host.
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

/// Returns the path of tensors between two devices without shared memory, from the locations of the devices. `has_nccl`
/// says whether NCCL is loaded. `meets_here` says whether tensors of another host must go through this host.
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

/// The pairs of devices between which a pipeline transfers tensors, as text. They are grouped by the kind of tensors
/// and by the path.
pub(crate) struct TransferPaths(Vec<((Moved, TransferPath), Vec<String>)>);

impl TransferPaths {
    /// Returns the pairs of devices between which a pipeline transfers tensors, with the path of each (such as NCCL).
    /// These are the pairs of devices of neighbouring stages, of the same stage in two replicas, and of stages with
    /// tied parameters. `replicas` lists the device of each stage, for each replica. `tied` lists pairs of stages: the
    /// owner of a tied parameter, and another stage that uses it. Devices that share a memory are left out.
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

    /// Logs the path of each kind of tensors between the devices of a pipeline. The message is a warning with the
    /// remedy if NCCL is missing or broken.
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

/// Returns the log message about the path of one kind of tensors. `pairs` lists the pairs of devices that use the path.
/// `nccl` is the file name of NCCL's library, or an error if NCCL cannot be used. The error says why NCCL is broken; it
/// is `None` if NCCL was not found.
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

/// Returns the file name of NCCL's library. The error says why NCCL is broken; it is `None` if NCCL was not found. A
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
