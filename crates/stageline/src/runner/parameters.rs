//! A stage's parameters ([`StageParameters`]): their optimizer step, if the verdict on a step is to step, and the
//! exchange of shared parameters. A shared parameter's owner is the stage whose optimizer updates it; other stages and
//! replicas have copies.

use burn::module::Module;
use burn::optim::GradientsParams;

use crate::failure::stop::{Stopped, Waits};
use crate::runner::Conclusion;
use crate::transfer::replicas::Collective;
use crate::transfer::ties::Ties;
use crate::update::clip::Scaling;
use crate::update::flush::Verdict;
use crate::update::health::Examination;
use crate::update::optimizer_step::{Made, Trained};
use crate::update::parameter_gradient::show;

/// A stage's parameters, with their optimizer and the connections to the stages and replicas that share them.
pub(super) struct StageParameters<M> {
    pub(super) trained: Trained<M>,
    pub(super) ties: Ties,
    pub(super) collective: Collective,
    /// Whether the stage has prepared its parameters for its first step or evaluation (see [`settle`](Self::settle)):
    /// trained parameters are copied to memory that the worker's thread allocates, and the first values of shared
    /// parameters are exchanged.
    settled: bool,
}

impl<M: Module + 'static> StageParameters<M> {
    pub(super) fn new(trained: Trained<M>, ties: Ties, collective: Collective) -> Self {
        Self { trained, ties, collective, settled: false }
    }

    /// Prepares the parameters for the stage's first step or evaluation; does nothing later. In replica 0, copies
    /// trained parameters in host memory or on a CUDA device, and optimizer state in host memory, to memory that the
    /// calling thread allocates. Then exchanges the first values of shared parameters with the stages and replicas that
    /// share them.
    pub(super) fn settle(&mut self, waits: &Waits) -> Result<(), Stopped> {
        if !self.settled {
            match self.collective.is_root() {
                true => self.trained.settle(),
                false => self.follow_root(waits)?,
            }
            self.publish(waits)?;
            self.follow_owners(waits)?;
            self.settled = true;
        }
        Ok(())
    }

    /// Sends the current values of the shared parameters that this stage owns (updates with its own optimizer) to the
    /// stages and replicas that have copies.
    pub(super) fn publish(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.ties.publish(self.trained.module(), waits)?;
        self.collective.broadcast(self.trained.module(), waits)
    }

    /// Receives the parameter values from the same stage of replica 0, whose optimizer updates them. Must be called
    /// only in other replicas.
    fn follow_root(&mut self, waits: &Waits) -> Result<(), Stopped> {
        self.trained.change(|module| self.collective.follow(module, waits))
    }

    /// Receives the values of tied (shared) parameters from the stages that own them. Does nothing if this stage has no
    /// copies of tied parameters.
    fn follow_owners(&mut self, waits: &Waits) -> Result<(), Stopped> {
        if self.ties.follows() { self.trained.change(|module| self.ties.follow(module, waits)) } else { Ok(()) }
    }

    /// Carries out the `verdict` on a step (step the optimizers, or skip), and returns the stage's report. `stage` is
    /// the stage's index, and `gradients` are its gradient sums. To step, a stage of replica 0 steps its optimizer, and
    /// a stage of another replica receives the new parameter values from replica 0.
    pub(super) fn conclude(
        &mut self,
        stage: usize,
        gradients: GradientsParams,
        verdict: Verdict,
        waits: &Waits,
    ) -> Result<Conclusion, Stopped> {
        if !self.collective.is_root() {
            return self.conclude_as_leaf(verdict, waits);
        }
        let module = self.trained.module();
        let (scaling, examine) = match verdict {
            Verdict::Step { scaling, examine } => (scaling, examine),
            Verdict::Show { scaling } => {
                let gradients = show(stage, module, gradients, scaling, |id| self.ties.holds(*id));
                return Ok(Conclusion { gradients, ..Conclusion::default() });
            }
            Verdict::Rehearse { examine } => (Scaling::Keep, examine),
            Verdict::Skip => return Ok(Conclusion::default()),
        };
        let examination = examine.then(|| Examination::before(module, &gradients));
        let gradients = scaling.apply(module, gradients);
        let Made { learning_rate, states_on_host } = self.trained.step(gradients, !verdict.counts());
        let module = self.trained.module();
        let health = examination.map(|before| before.after(stage, module, &self.trained.second_moments()));
        if verdict.counts() {
            self.publish(waits)?;
        }
        let (learning_rate, health) = (Some(learning_rate), health.unwrap_or_default());
        Ok(Conclusion { learning_rate, health, states_on_host, ..Conclusion::default() })
    }

    /// Carries out the `verdict` on a step in a replica other than replica 0, which alone has optimizers. If the
    /// optimizers step, receives the new parameter values from replica 0, and sends the values of tied parameters to
    /// the stages of its own replica that have copies. Returns an empty report.
    fn conclude_as_leaf(&mut self, verdict: Verdict, waits: &Waits) -> Result<Conclusion, Stopped> {
        if verdict.counts() {
            self.follow_root(waits)?;
            self.publish(waits)?;
        }
        Ok(Conclusion::default())
    }

    /// Completes a step after [`conclude`](Self::conclude) has carried out the `verdict`. Receives the new values of
    /// tied (shared) parameters from the stages that own them, or rolls back a rehearsal (a step that only measures
    /// memory).
    pub(super) fn follow(&mut self, verdict: Verdict, waits: &Waits) -> Result<(), Stopped> {
        match verdict {
            Verdict::Step { .. } => self.follow_owners(waits)?,
            Verdict::Rehearse { .. } => self.trained.roll_back(),
            Verdict::Show { .. } | Verdict::Skip => {}
        }
        Ok(())
    }
}
