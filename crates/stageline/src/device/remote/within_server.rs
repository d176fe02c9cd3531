//! Moves tensors between two sessions of this program with one server, inside the server.
//!
//! burn 0.22 can also move tensors inside a server, but every program then numbers its tensors from zero. Two programs
//! that use one server could take each other's tensors, and a program could take the tensors of an earlier program
//! whose sessions have not ended. Here a tensor's name begins with random numbers that identify this program.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::tensor::Device as DeviceOf;
use burn::backend::{Backend, BackendTensor, DeviceOps, DispatchKindConversion, DispatchTensor, Remote};
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};
use burn_ir::ScalarIr;

use super::connected::{find, remote};
use stageline_nn::kernels::remote::{ask, name};

/// Random numbers that identify this program to servers, so that two programs that use one server cannot take each
/// other's tensors.
static PROGRAM: LazyLock<[u64; 2]> = LazyLock::new(|| {
    let random = burn::remote::IrohIdentity::random().to_bytes();
    let (words, _) = random.as_chunks::<8>();
    [words[0], words[1]].map(u64::from_le_bytes)
});

/// Returns a session's name on the server: two random numbers that identify this program, and burn's number for the
/// session's device in this program. A session is a queue of requests to one device.
pub(super) fn session_name(device: &DeviceOf<Remote>) -> Vec<ScalarIr> {
    let number = u64::from(device.id().index_id);
    PROGRAM.iter().copied().chain([number]).map(ScalarIr::UInt).collect()
}

/// Whether `from` and `to` are two different sessions (connections to devices) with the same server.
pub(super) fn has_both(from: &Device, to: &Device) -> bool {
    let processes = find(from).zip(find(to)).map(|(from, to)| [from.process, to.process]);
    processes.is_some_and(|[from, to]| from == to) && remote(from) != remote(to)
}

/// Moves a tensor to `to`, another session (connection) with the same server, without waiting for the tensor. Panics if
/// the tensor is in an autodiff graph or quantized. If the giving session ends before it has given the tensor, the
/// server ends the session `to` as well.
pub(super) fn handed_over<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    let [from, to] = [&tensor.device(), to].map(|device| remote(device).expect("both devices belong to a server"));
    let mut tensor_name = session_name(&from);
    tensor_name.push(ScalarIr::UInt(GIVEN.fetch_add(1, Ordering::Relaxed)));
    let output = (tensor.shape(), tensor.dtype());

    let given = <DispatchTensor as DispatchKindConversion<Remote>>::try_into_backend(tensor.into_dispatch());
    let given = match given.expect("the tensor is on a server and in no autodiff graph") {
        BackendTensor::Float(given) | BackendTensor::Int(given) | BackendTensor::Bool(given) => given,
        other => panic!("a {} tensor cannot be moved to another session", other.name()),
    };
    let [] = ask(&from, name::GIVE, vec![given.into_ir()], tensor_name.clone(), []);
    send(&from);
    let dtype = output.1;
    let [taken] = ask(&to, name::TAKE, Vec::new(), tensor_name, [output]);
    send(&to);
    let taken = match dtype {
        dtype if dtype.is_float() => BackendTensor::Float(taken),
        dtype if dtype.is_bool() => BackendTensor::Bool(taken),
        _ => BackendTensor::Int(taken),
    };
    Tensor::from_dispatch(<DispatchTensor as DispatchKindConversion<Remote>>::from_backend(taken))
}

/// Sends the requests that burn has buffered for a session (a connection to a device). The session that takes a tensor
/// waits for the session that gives it, so buffered requests of either would block both.
fn send(session: &DeviceOf<Remote>) {
    Remote::flush(session).expect("burn's flush of a remote device has no error of its own");
}
