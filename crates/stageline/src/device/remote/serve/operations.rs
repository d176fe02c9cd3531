//! The operations that a server runs for its clients.

use std::sync::Arc;

use burn::server::CustomOpRegistry;
use burn::tensor::TensorData;
use burn_ir::ScalarIr;
use iroh::EndpointId;

use super::super::greeting::{Greeting, this_process};
use super::handed_over::HandedOver;
use super::peers::Peers;
use stageline_nn::kernels::remote::serve::{Served, operations};
use stageline_nn::kernels::remote::{ID_WORDS, name};

/// Returns the operations of a server with devices of the backend `B`:
///
/// - Stageline's own kernels.
/// - The answers to a client's first requests, which ask for the server's greeting (its version and kernels), ask for
///   the numbers that identify its process, or introduce other servers to it.
/// - The moves of tensors between a client's sessions.
pub(super) fn all_operations<B: Served>(peers: &Arc<Peers>) -> CustomOpRegistry<B> {
    let mut operations = operations(CustomOpRegistry::new());
    operations.register(name::HELLO, |tensors, asked, device| {
        let greeting = TensorData::from(Greeting::numbers(B::kernels(device)));
        tensors.register_float_tensor::<B>(&asked.outputs[0].id, B::float_from_data(greeting, device));
    });
    let process = TensorData::from(this_process());
    operations.register(name::PROCESS, move |tensors, asked, device| {
        tensors.register_float_tensor::<B>(&asked.outputs[0].id, B::float_from_data(process.clone(), device));
    });
    let peers = Arc::clone(peers);
    operations.register(name::PEERS, move |tensors, asked, device| {
        let named = introduced(&asked.scalars);
        let count = TensorData::from([named.len() as f32]);
        named.into_iter().for_each(|peer| peers.admit(peer));
        tensors.register_float_tensor::<B>(&asked.outputs[0].id, B::float_from_data(count, device));
    });
    hand_over(&mut operations);
    operations
}

/// Registers the operations that move tensors from one session (a queue of requests to one device) of a client to
/// another, inside the server.
fn hand_over<B: Served>(operations: &mut CustomOpRegistry<B>) {
    let handed_over = HandedOver::<B>::new();
    let sessions = Arc::clone(&handed_over);
    operations.register(name::JOIN, move |tensors, asked, device| {
        sessions.join(asked);
        let joined = B::float_from_data(TensorData::from([1f32]), device);
        tensors.register_float_tensor::<B>(&asked.outputs[0].id, joined);
    });
    let sessions = Arc::clone(&handed_over);
    operations.register(name::GIVE, move |tensors, asked, _| sessions.give(tensors, asked));
    operations.register(name::TAKE, move |tensors, asked, device| handed_over.take(tensors, asked, device));
}

/// Decodes the ids (public keys) of the client's other servers, which may exchange tensors with this server, from the
/// integers in the client's request. Invalid ids are left out.
fn introduced(scalars: &[ScalarIr]) -> Vec<EndpointId> {
    let words: Vec<u64> = scalars.iter().map(|scalar| scalar.elem()).collect();
    let (ids, _) = words.as_chunks::<ID_WORDS>();
    let id = |words: &[u64; ID_WORDS]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        EndpointId::try_from(bytes.as_slice()).ok()
    };
    ids.iter().filter_map(id).collect()
}
