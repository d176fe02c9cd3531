//! A boundary between two stages: activations one way, gradients the other.

use burn::tensor::{Bool, Device, Int, Tensor};
use stageline_schedule::Transfer;

use crate::device::location::between_gpus;
use crate::device::remote::{Lanes, Route, moved};
use crate::failure::stop::{Stopped, Waits};
use crate::model::loss_weight::Weight;
use crate::model::payload::{Payload, PayloadMapper, bytes_of};
use crate::threads::{Receiver, Sender, bounded};
use crate::transfer::in_flight::Sent;
use crate::transfer::leaves::LeafGradients;
use crate::transfer::order::Turns;

/// One micro-batch's payload, and the loss weight that it stands for.
pub(crate) struct Weighted<T> {
    pub(crate) payload: T,
    pub(crate) weight: Weight,
}

struct Message<T> {
    micro_batch: usize,
    content: T,
}

/// The end of the stage that sends activations.
pub(crate) struct Downstream<T> {
    activations: Sender<Message<Weighted<T>>>,
    gradients: Receiver<Message<LeafGradients>>,
    here: Device,
    /// Where activations go, to be taken from.
    to: Lanes,
    sent: Sent,
}

/// The end of the stage that receives activations.
pub(crate) struct Upstream<T> {
    activations: Receiver<Message<Weighted<T>>>,
    gradients: Sender<Message<LeafGradients>>,
    here: Device,
    /// Where gradients go, to be taken from.
    to: Lanes,
    sent: Sent,
}

/// Joins a stage on `previous` to one on `next` by channels that hold `capacity` micro-batches each way.
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
    /// Moves an activation to the next stage's device, or to where that takes it from, and hands it over; so many bytes.
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

    pub(crate) fn receive_gradient(&self, waits: &Waits, micro_batch: usize) -> Result<LeafGradients, Stopped> {
        Ok(take(waits, &self.gradients, micro_batch)?.moved_to(&self.here))
    }
}

impl<T: Payload> Upstream<T> {
    pub(crate) fn receive(&self, waits: &Waits, micro_batch: usize) -> Result<Weighted<T>, Stopped> {
        let Weighted { payload, weight } = take(waits, &self.activations, micro_batch)?;
        Ok(Weighted { payload: payload.map(&mut Arrival(&self.here)), weight })
    }

    /// Moves gradients to the previous stage's device, or to where that takes them from, and hands them over; so many bytes.
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

fn take<T>(waits: &Waits, channel: &Receiver<Message<T>>, micro_batch: usize) -> Result<T, Stopped> {
    let message = waits.receive(channel)?;
    assert_eq!(message.micro_batch, micro_batch, "a checked plan receives in the order in which it sends");
    Ok(message.content)
}

/// What is sent leaves its graph, and goes straight to another device.
struct Departure<'a> {
    sent: &'a mut Sent,
    device: &'a Device,
    /// Of what was sent so far.
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
        // NCCL has no type for it.
        if between_gpus(&tensor.device(), self.device) {
            self.sent.send(tensor.int(), self.device).bool()
        } else {
            self.sent.send(tensor, self.device)
        }
    }
}

/// What was sent to where it is taken from comes to its device.
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
}
