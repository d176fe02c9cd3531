//! A boundary between two stages: activations one way, gradients the other.

use burn::tensor::{Bool, Device, Int, Tensor};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::StepError;
use crate::payload::{Payload, PayloadMapper};
use crate::stop::{Stop, Stopped};
use crate::tape::Cotangents;

/// One micro-batch's payload on its way.
struct Message<T> {
    micro_batch: usize,
    payload: T,
}

/// The end of the stage that sends activations.
pub(crate) struct Downstream<T> {
    activations: Sender<Message<T>>,
    gradients: Receiver<Message<Cotangents>>,
    next: Device,
}

/// The end of the stage that receives activations.
pub(crate) struct Upstream<T> {
    activations: Receiver<Message<T>>,
    gradients: Sender<Message<Cotangents>>,
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
    pub(crate) fn send(&self, stop: &Stop<StepError>, micro_batch: usize, payload: T) -> Result<(), Stopped> {
        let payload = move_to(payload, &self.next);
        stop.send(&self.activations, Message { micro_batch, payload })
    }

    pub(crate) fn receive_gradient(&self, stop: &Stop<StepError>, micro_batch: usize) -> Result<Cotangents, Stopped> {
        take(stop, &self.gradients, micro_batch)
    }
}

impl<T: Payload> Upstream<T> {
    pub(crate) fn receive(&self, stop: &Stop<StepError>, micro_batch: usize) -> Result<T, Stopped> {
        take(stop, &self.activations, micro_batch)
    }

    /// Hands over gradients, which are on the previous stage's device already.
    pub(crate) fn send_gradient(
        &self,
        stop: &Stop<StepError>,
        micro_batch: usize,
        payload: Cotangents,
    ) -> Result<(), Stopped> {
        stop.send(&self.gradients, Message { micro_batch, payload })
    }

    /// The device of the stage before.
    pub(crate) fn previous(&self) -> &Device {
        &self.previous
    }
}

fn take<T>(stop: &Stop<StepError>, channel: &Receiver<Message<T>>, micro_batch: usize) -> Result<T, Stopped> {
    let message = stop.receive(channel)?;
    assert_eq!(message.micro_batch, micro_batch, "a checked plan receives in the order in which it sends");
    Ok(message.payload)
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
