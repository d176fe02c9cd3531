//! The boundary between two neighbouring stages: activations go downstream, gradients go upstream.
//!
//! Each direction is one bounded channel. Sends between GPUs are issued in the plan's global order of transfers (see
//! `order`), and sent tensors are kept alive until NCCL has read them (see `in_flight`).

use burn::tensor::{Bool, Device, Int, Tensor};
use stageline_schedule::Transfer;

use crate::device::location::between_cuda;
use crate::device::remote::{Lanes, Route, moved};
use crate::failure::stop::{Stopped, Waits};
use crate::model::loss_weight::Weight;
use crate::model::payload::{Payload, PayloadMapper, SharedInput, bytes_of};
use crate::threads::{Receiver, Sender, bounded};
use crate::transfer::hand_over::Place;
use crate::transfer::in_flight::Sent;
use crate::transfer::leaves::LeafGradients;
use crate::transfer::order::Turns;

/// The input or activations of one micro-batch, with the micro-batch's loss weight.
pub(crate) struct Weighted<T> {
    pub(crate) payload: T,
    pub(crate) weight: Weight,
}

struct Message<T> {
    micro_batch: usize,
    content: T,
}

/// A stage's connection to the next stage: sends activations to it, and receives gradients from it.
pub(crate) struct Downstream<T> {
    activations: Sender<Message<Weighted<T>>>,
    gradients: Receiver<Message<LeafGradients>>,
    here: Device,
    /// The destination of sent activations: the next stage's device, or, if one of the two stages is on another host, a
    /// list of sessions (connections) that successive micro-batches use in turn.
    to: Lanes,
    sent: Sent,
}

/// A stage's connection to the previous stage: receives activations from it, and sends gradients to it.
pub(crate) struct Upstream<T> {
    activations: Receiver<Message<Weighted<T>>>,
    gradients: Sender<Message<LeafGradients>>,
    here: Device,
    /// The destination of sent gradients: the previous stage's device, or, if one of the two stages is on another host,
    /// a list of sessions (connections) that successive micro-batches use in turn.
    to: Lanes,
    sent: Sent,
}

/// Connects a stage on the device `previous` to the next stage, on the device `next`, and returns both ends of the
/// connection. The channel for each direction (activations, gradients) has room for `capacity` micro-batches. `route`
/// decides how tensors get from one device to the other.
pub(crate) fn link<T>(capacity: usize, previous: Device, next: Device, route: Route) -> (Downstream<T>, Upstream<T>) {
    let (activation_sender, activation_receiver) = bounded(capacity);
    let (gradient_sender, gradient_receiver) = bounded(capacity);
    (
        Downstream {
            activations: activation_sender,
            gradients: gradient_receiver,
            sent: Sent::new(previous.clone()),
            here: previous,
            to: route.activations,
        },
        Upstream {
            activations: activation_receiver,
            gradients: gradient_sender,
            sent: Sent::new(next.clone()),
            here: next,
            to: route.gradients,
        },
    )
}

impl<T: Payload> Downstream<T> {
    /// Sends one micro-batch's activations to the next stage, on that stage's device, and returns their size in bytes.
    /// Waits until `turns` (the order of transfers between GPUs) allows `transfer`.
    pub(crate) fn send(
        &mut self,
        waits: &Waits,
        turns: &Turns,
        transfer: Transfer,
        activation: Weighted<T>,
    ) -> Result<u64, Stopped> {
        let Weighted { payload, weight } = activation;
        let device = self.to.of(transfer.micro_batch);
        let mut departure = Departure { sent: &mut self.sent, device, bytes: 0 };
        let send = || {
            departure.sent.settle();
            payload.map(&mut departure)
        };
        let payload = turns.issue(transfer, waits, send)?;
        let content = Weighted { payload, weight };
        waits.send(&self.activations, Message { micro_batch: transfer.micro_batch, content })?;
        Ok(departure.bytes)
    }

    /// Waits for one micro-batch's gradients of this stage's output, and moves them to this stage's device.
    pub(crate) fn receive_gradient(&self, waits: &Waits, micro_batch: usize) -> Result<LeafGradients, Stopped> {
        Ok(take(waits, &self.gradients, micro_batch)?.moved_to(&self.here))
    }
}

impl<T: Payload> Upstream<T> {
    /// Waits for a micro-batch's activations from the previous stage, and moves them to this stage's device.
    pub(crate) fn receive(&self, waits: &Waits, micro_batch: usize) -> Result<Weighted<T>, Stopped> {
        let Weighted { payload, weight } = take(waits, &self.activations, micro_batch)?;
        Ok(Weighted { payload: payload.map(&mut Arrival(&self.here)), weight })
    }

    /// Sends the gradients of this stage's input to the previous stage, on that stage's device, and returns their size
    /// in bytes. Waits until `turns` (the order of transfers between GPUs) allows `transfer`.
    pub(crate) fn send_gradient(
        &mut self,
        waits: &Waits,
        turns: &Turns,
        transfer: Transfer,
        gradients: LeafGradients,
    ) -> Result<u64, Stopped> {
        let bytes = gradients.bytes();
        let device = self.to.of(transfer.micro_batch);
        let send = || {
            self.sent.settle();
            gradients.sent_to(device, &mut self.sent)
        };
        let content = turns.issue(transfer, waits, send)?;
        waits.send(&self.gradients, Message { micro_batch: transfer.micro_batch, content })?;
        Ok(bytes)
    }
}

/// Waits for a neighbouring stage's next message on `channel`, and returns the tensors in it. Panics if the message
/// does not belong to the micro-batch `micro_batch`.
fn take<T>(waits: &Waits, channel: &Receiver<Message<T>>, micro_batch: usize) -> Result<T, Stopped> {
    let message = waits.receive(channel)?;
    assert_eq!(message.micro_batch, micro_batch, "a checked plan receives in the order in which it sends");
    Ok(message.content)
}

/// A [`PayloadMapper`] that detaches each tensor of a payload from its autodiff graph, sends it to a device, and counts
/// the bytes sent.
struct Departure<'a> {
    sent: &'a mut Sent,
    device: &'a Device,
    bytes: u64,
}

impl PayloadMapper for Departure<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.bytes += bytes_of(&tensor);
        self.sent.send(tensor.inner(), self.device)
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.bytes += bytes_of(&tensor);
        self.sent.send(tensor.inner(), self.device)
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.bytes += bytes_of(&tensor);
        let tensor = tensor.inner();
        // NCCL has no bool type, so the tensor is sent as integers.
        if between_cuda(&tensor.device(), self.device) {
            self.sent.send(tensor.int(), self.device).bool()
        } else {
            self.sent.send(tensor, self.device)
        }
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared.leave()
    }
}

/// A [`PayloadMapper`] that moves each tensor of a received payload to the receiving stage's device.
struct Arrival<'a>(&'a Device);

impl PayloadMapper for Arrival<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        moved(tensor, self.0)
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        moved(tensor, self.0)
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        moved(tensor, self.0)
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared.map_given_to_here(&mut Place(self.0))
    }
}
