//! Connects a stage with other stages and replicas: it selects the neighbour for a transfer, and receives the values of
//! parameters that another stage or replica owns (steps with its optimizer).

use burn::module::Module;
use stageline_schedule::Carried;

use crate::failure::stop::{Stopped, Waits};
use crate::runner::neighbour::Neighbour;
use crate::runner::output::Sink;
use crate::runner::stage::StageRunner;
use crate::runner::{Conclusion, Runner};
use crate::update::flush::Verdict;

impl<M: Module + 'static, K: Sink<M>> StageRunner<M, K> {
    /// Receives the stage's parameter values from the same stage of replica 0, whose optimizer updates them. Replica 0
    /// itself does not call this function.
    pub(super) fn follow_root(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.trained.change(|module| self.collective.follow(module, waits))
    }

    /// Receives the values of tied (shared) parameters from the stages that own them. Does nothing if this stage has no
    /// copies of tied parameters.
    pub(super) fn follow_owners(&mut self, waits: &Waits) -> Result<(), Stopped> {
        if self.ties.follows() { self.trained.change(|module| self.ties.follow(module, waits)) } else { Ok(()) }
    }

    /// Acts on the verdict on a step (step the optimizers, or skip) in a replica other than replica 0, which alone has
    /// optimizers. If the optimizers step, the stage receives the new parameter values from replica 0. It then sends
    /// the values of tied parameters to the stages of its own replica that have copies. Returns an empty report.
    pub(super) fn conclude_as_leaf(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped> {
        if verdict.counts() {
            self.follow_root(waits)?;
            self.publish(waits)?;
        }
        Ok(Conclusion::default())
    }

    /// Returns the connection to the neighbouring stage to which the stage sends tensors (`is_sent`), or from which it
    /// receives them. `carried` is the kind of the tensors. Activations come from the previous stage, and gradients
    /// from the next stage.
    pub(super) fn neighbour(&mut self, carried: Carried, is_sent: bool) -> &mut dyn Neighbour {
        let neighbour = match (carried, is_sent) {
            (Carried::Activation, false) | (Carried::Gradient, true) => self.source.neighbour(),
            (Carried::Activation, true) | (Carried::Gradient, false) => self.sink.neighbour(),
        };
        neighbour.expect("a checked plan has no transfer before the first stage or behind the last one")
    }
}
