//! A boundary between two stages: activations one way, gradients the other.

use burn::tensor::{Bool, Device, Int, Tensor};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::payload::{Payload, PayloadMapper};
use crate::stop::{Stopped, Waits};
use crate::tape::LeafGradients;
use crate::weight::Weight;

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
    next: Device,
}

/// The end of the stage that receives activations.
pub(crate) struct Upstream<T> {
    activations: Receiver<Message<Weighted<T>>>,
    gradients: Sender<Message<LeafGradients>>,
    previous: Device,
}

/// Joins a stage on `previous` to one on `next` by channels that hold `capacity` micro-batches each way.
pub(crate) fn link<T>(capacity: usize, previous: Device, next: Device) -> (Downstream<T>, Upstream<T>) {
    let (activation_sender, activation_receiver) = bounded(capacity);
    let (gradient_sender, gradient_receiver) = bounded(capacity);
    (
        Downstream { activations: activation_sender, gradients: gradient_receiver, next },
        Upstream { activations: activation_receiver, gradients: gradient_sender, previous },
    )
}

impl<T: Payload> Downstream<T> {
    /// Moves an activation to the next stage's device and hands it over.
    pub(crate) fn send(&self, waits: &Waits, micro_batch: usize, activation: Weighted<T>) -> Result<(), Stopped> {
        let content = Weighted { payload: move_to(activation.payload, &self.next), ..activation };
        waits.send(&self.activations, Message { micro_batch, content })
    }

    pub(crate) fn receive_gradient(&self, waits: &Waits, micro_batch: usize) -> Result<LeafGradients, Stopped> {
        take(waits, &self.gradients, micro_batch)
    }
}

impl<T: Payload> Upstream<T> {
    pub(crate) fn receive(&self, waits: &Waits, micro_batch: usize) -> Result<Weighted<T>, Stopped> {
        take(waits, &self.activations, micro_batch)
    }

    /// Moves gradients to the previous stage's device and hands them over.
    pub(crate) fn send_gradient(
        &self,
        waits: &Waits,
        micro_batch: usize,
        gradients: LeafGradients,
    ) -> Result<(), Stopped> {
        waits.send(&self.gradients, Message { micro_batch, content: gradients.moved_to(&self.previous) })
    }
}

fn take<T>(waits: &Waits, channel: &Receiver<Message<T>>, micro_batch: usize) -> Result<T, Stopped> {
    let message = waits.receive(channel)?;
    assert_eq!(message.micro_batch, micro_batch, "a checked plan receives in the order in which it sends");
    Ok(message.content)
}

/// Moves a payload to a device, out of any graph.
pub(crate) fn move_to<P: Payload>(payload: P, device: &Device) -> P {
    payload.map(&mut MoveTo(device))
}

struct MoveTo<'a>(&'a Device);

impl PayloadMapper for MoveTo<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.inner().to_device(self.0)
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.inner().to_device(self.0)
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.inner().to_device(self.0)
    }
}
