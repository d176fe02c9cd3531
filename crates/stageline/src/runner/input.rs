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

/// The source of a stage's input: the caller's batch, or the previous stage.
pub(crate) enum Source<T> {
    Batch(FromBatch<T>),
    Previous(Box<FromPrevious<T>>),
}

/// The input side of the first stage, where inputs come from the caller's batch: in each pass, one message with the
/// inputs of all micro-batches.
pub(crate) struct FromBatch<T> {
    feed: Receiver<Vec<T>>,
    /// The inputs of the micro-batches in the current pass whose forward has not yet run on this stage.
    arrived: Slots<Weighted<T>>,
}

/// The input side of every stage except the first: the connection to the previous stage.
pub(crate) struct FromPrevious<T> {
    upstream: Upstream<T>,
    /// The inputs that have arrived from the previous stage, for the micro-batches whose forward has not yet run on
    /// this stage.
    arrived: Slots<Weighted<T>>,
    /// The gradients of the stage's inputs, by micro-batch, that wait to be sent to the previous stage.
    departing: Slots<LeafGradients>,
}

impl<T> Source<T> {
    pub(crate) fn batch(feed: Receiver<Vec<T>>) -> Self {
        Self::Batch(FromBatch { feed, arrived: Slots::new() })
    }

    pub(crate) fn previous(upstream: Upstream<T>) -> Self {
        Self::Previous(Box::new(FromPrevious { upstream, arrived: Slots::new(), departing: Slots::new() }))
    }

    /// Whether this is the input side of the first stage, which reads the caller's batch and not the output of a
    /// previous stage.
    pub(super) fn is_batch(&self) -> bool {
        matches!(self, Self::Batch(_))
    }
}

impl<T: Payload> Source<T> {
    /// Prepares the input side of a stage for a pass: the first stage receives the inputs of its micro-batches from the
    /// caller, and other stages do nothing.
    pub(super) fn begin(&mut self, pass: &Pass, waits: &Waits) -> Result<(), Stopped> {
        if let Self::Batch(FromBatch { feed, arrived }) = self {
            let micro_batches = waits.receive(feed)?.into_iter().zip(pass.context().weights.each.iter().cloned());
            *arrived = micro_batches.map(|(payload, weight)| Weighted { payload, weight }).collect();
        }
        Ok(())
    }

    /// Removes and returns the arrived input of one micro-batch, placed on the stage's device and rounded to the
    /// stage's precision. An input from the previous stage has arrived on that device and in that precision already.
    pub(super) fn take(&mut self, micro_batch: usize, device: &Device, precision: Precision) -> Weighted<T> {
        match self {
            Self::Batch(batch) => {
                let Weighted { payload, weight } = batch.arrived.take(micro_batch);
                Weighted { payload: precision.round_input(place(payload, device)), weight }
            }
            Self::Previous(previous) => previous.arrived.take(micro_batch),
        }
    }

    /// Adds a stage's input to the stage's autodiff graph. Returns the input, and its float tensors as leaves (inputs)
    /// of the graph, whose gradients go to the previous stage. On the first stage there are no leaves.
    pub(super) fn track(&self, payload: T) -> (T, Leaves) {
        match self {
            Self::Batch(_) => (track(payload), Leaves::default()),
            Self::Previous(_) => Leaves::of_input(payload),
        }
    }

    /// Keeps the gradients of a micro-batch's input until they are sent to the previous stage; the first stage keeps
    /// none. Returns false if this pass searches for non-finite results (`inspects`) and one of these gradients is not
    /// finite, else true.
    pub(super) fn keep(
        &mut self,
        micro_batch: usize,
        input: &Leaves,
        gradients: Option<&mut Gradients>,
        inspects: bool,
    ) -> bool {
        match self {
            Self::Batch(_) => true,
            Self::Previous(previous) => {
                previous.departing.put(micro_batch, input.gradients(gradients));
                !inspects || previous.departing.get(micro_batch).is_finite()
            }
        }
    }

    /// Returns the stage's connection to the previous stage, for receiving activations and sending gradients; `None` on
    /// the first stage.
    pub(super) fn neighbour(&mut self) -> Option<&mut dyn Neighbour> {
        match self {
            Self::Batch(_) => None,
            Self::Previous(previous) => Some(&mut **previous),
        }
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
