//! The exchange of a stage with other stages and replicas: inputs and gradients of micro-batches, and the values of
//! parameters that another stage or replica owns.

use crate::runner::stage::Source;
use crate::runner::stage::StageRunner;

use burn::module::Module;
use stageline_schedule::Transfer;

use crate::failure::stop::{Stopped, Waits};
use crate::runner::output::Sink;
use crate::runner::{Conclusion, Runner};
use crate::update::flush::Verdict;

impl<M: Module + 'static, K: Sink<M>> StageRunner<M, K> {
    /// Receives the stage's parameter values from replica 0, whose optimizer steps them. Only replicas other than
    /// replica 0 call this function.
    pub(super) fn follow_root(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.trained.change(|module| self.collective.follow(module, waits))
    }

    /// Receives the values of tied parameters from the stages that own them, if this stage has copies of tied
    /// parameters.
    pub(super) fn follow_owners(&mut self, waits: &Waits) -> Result<(), Stopped> {
        if self.ties.follows() { self.trained.change(|module| self.ties.follow(module, waits)) } else { Ok(()) }
    }

    /// Receives the activation of a micro-batch from the previous stage, which is the input of this stage.
    pub(super) fn receive(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        match &self.source {
            Source::Link(upstream) => self.arrived.put(micro_batch, upstream.receive(waits, micro_batch)?),
            Source::Batch(_) => unreachable!("the plan has no transfer before the first stage"),
        }
        Ok(())
    }

    /// Acts on the verdict on a step in a replica without an optimizer. After a step, receives the new parameter values
    /// from replica 0, and sends them to the stages of its own replica that hold copies of tied parameters.
    pub(super) fn conclude_as_leaf(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped> {
        if verdict.counts() {
            self.follow_root(waits)?;
            self.publish(waits)?;
        }
        Ok(Conclusion::default())
    }

    /// Sends the gradient of a micro-batch's input to the previous stage, and returns the number of bytes sent.
    pub(super) fn send_gradient(&mut self, transfer: Transfer, waits: &Waits) -> Result<u64, Stopped> {
        match &mut self.source {
            Source::Link(upstream) => {
                let gradients = self.departing.take(transfer.micro_batch);
                upstream.send_gradient(waits, &self.turns, transfer, gradients)
            }
            Source::Batch(_) => unreachable!("the plan has no transfer before the first stage"),
        }
    }
}
