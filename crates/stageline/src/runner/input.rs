//! The input side of a stage ([`Source`]): the caller's batch on the first stage ([`FromBatch`]), or the connection to
//! the previous stage ([`FromPrevious`]).

use burn::tensor::{Device, Gradients};
use stageline_schedule::Transfer;

use crate::failure::stop::{Stopped, Waits};
use crate::model::payload::Payload;
use crate::runner::neighbour::Neighbour;
use crate::runner::pass::Pass;
use crate::runner::slots::Slots;
use crate::threads::Receiver;
use crate::transfer::hand_over::place;
use crate::transfer::leaves::{LeafGradients, Leaves, track};
use crate::transfer::link::{Upstream, Weighted};
use crate::transfer::order::Turns;
use crate::update::precision::Precision;

/// A stage's input side: it gets each micro-batch's input (of type `T`) from the caller's batch or the previous stage,
/// adds the input to the autodiff graph, and retains the input's gradients for the previous stage.
pub(crate) trait Source<T>: Send {
    /// Prepares the input side of a stage for the next step, evaluation or inference. On the first stage, receives the
    /// inputs of all micro-batches from the caller.
    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped>;
    /// Removes and returns one micro-batch's received input, on the stage's `device`, with its float tensors cast to
    /// the stage's compute `precision`.
    fn take(&mut self, micro_batch: usize, device: &Device, precision: Precision) -> Weighted<T>;
    /// Adds a stage's input to the autodiff graph. Returns the input in the graph, and the leaves: its float tensors,
    /// whose gradients go to the previous stage. The first stage has no leaves.
    fn track(&self, payload: T) -> (T, Leaves);
    /// Retains the gradients of a micro-batch's input for the previous stage; the first stage retains none. If
    /// `inspects` is true (in a search for NaN and infinity), returns whether these gradients are finite; otherwise
    /// returns true.
    fn keep(&mut self, micro_batch: usize, input: &Leaves, gradients: Option<&mut Gradients>, inspects: bool) -> bool;
    /// Returns the stage's connection to the previous stage, for receiving activations and sending gradients; `None` on
    /// the first stage.
    fn neighbour(&mut self) -> Option<&mut dyn Neighbour>;
}

/// The boxed input side of any stage, which gets inputs from the batch or from the previous stage.
pub(crate) type AnySource<T> = Box<dyn Source<T>>;

/// The first stage's input side. It receives the inputs of all micro-batches of a step, evaluation or inference from
/// the caller in one message.
pub(crate) struct FromBatch<T> {
    feed: Receiver<Vec<T>>,
    /// The inputs from the caller's batch, for the micro-batches whose forward pass has not yet run on the first stage.
    arrived: Slots<Weighted<T>>,
}

/// The input side of every stage except the first: the connection to the previous stage.
pub(crate) struct FromPrevious<T> {
    upstream: Upstream<T>,
    /// The inputs received from the previous stage, for the micro-batches whose forward pass has not yet run on this
    /// stage.
    arrived: Slots<Weighted<T>>,
    /// The gradients of this stage's inputs that are ready to be sent to the previous stage, by micro-batch.
    departing: Slots<LeafGradients>,
}

impl<T> FromBatch<T> {
    pub(crate) fn new(feed: Receiver<Vec<T>>) -> Self {
        Self { feed, arrived: Slots::new() }
    }
}

impl<T: Payload> Source<T> for FromBatch<T> {
    fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped> {
        let micro_batches = waits.receive(&self.feed)?.into_iter().zip(pass.context().weights.each.iter().cloned());
        self.arrived = micro_batches.map(|(payload, weight)| Weighted { payload, weight }).collect();
        Ok(())
    }

    fn take(&mut self, micro_batch: usize, device: &Device, precision: Precision) -> Weighted<T> {
        let Weighted { payload, weight } = self.arrived.take(micro_batch);
        Weighted { payload: precision.round_input(place(payload, device)), weight }
    }

    fn track(&self, payload: T) -> (T, Leaves) {
        (track(payload), Leaves::default())
    }

    fn keep(
        &mut self,
        _micro_batch: usize,
        _input: &Leaves,
        _gradients: Option<&mut Gradients>,
        _inspects: bool,
    ) -> bool {
        true
    }

    fn neighbour(&mut self) -> Option<&mut dyn Neighbour> {
        None
    }
}

impl<T> FromPrevious<T> {
    pub(crate) fn new(upstream: Upstream<T>) -> Self {
        Self { upstream, arrived: Slots::new(), departing: Slots::new() }
    }
}

impl<T: Payload> Source<T> for FromPrevious<T> {
    fn begin(&mut self, _pass: &Pass, _waits: &Waits) -> Result<(), Stopped> {
        Ok(())
    }

    /// Removes and returns one micro-batch's input, which is already on this stage's device and in its precision.
    fn take(&mut self, micro_batch: usize, _device: &Device, _precision: Precision) -> Weighted<T> {
        self.arrived.take(micro_batch)
    }

    fn track(&self, payload: T) -> (T, Leaves) {
        Leaves::of_input(payload)
    }

    fn keep(&mut self, micro_batch: usize, input: &Leaves, gradients: Option<&mut Gradients>, inspects: bool) -> bool {
        self.departing.put(micro_batch, input.gradients(gradients));
        !inspects || self.departing.get(micro_batch).is_finite()
    }

    fn neighbour(&mut self) -> Option<&mut dyn Neighbour> {
        Some(self)
    }
}

impl<T: Payload> Neighbour for FromPrevious<T> {
    fn receive(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        self.arrived.put(micro_batch, self.upstream.receive(waits, micro_batch)?);
        Ok(())
    }

    fn send(&mut self, transfer: Transfer, turns: &Turns, waits: &Waits) -> Result<u64, Stopped> {
        let gradients = self.departing.take(transfer.micro_batch);
        self.upstream.send_gradient(waits, turns, transfer, gradients)
    }
}
