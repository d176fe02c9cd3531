//! What is asked of all workers at once, and what they answer.

use std::sync::Arc;

use stageline_schedule::Checked;

use super::Pipeline;
use crate::batch::{MicroBatches, Weights};
use crate::context::{Context, Pass};
use crate::error::StepError;
use crate::events::Event;
use crate::failure::During;
use crate::finite::{self, Culprit};
use crate::flush::{Flush, Outcome, Sums, Verdict, losses};
use crate::ledger::Ledger;
use crate::payload::Payload;
use crate::recording::Clock;
use crate::report::{EvalReport, LossTerm};
use crate::stop::Stopped;
use crate::threads::Receiver;
use crate::turns::Turns;
use crate::weight::Weight;
use crate::worker::{Asked, Command, Recorded, Run, Stepped};

/// Why a pass ended early.
pub(super) enum Ended {
    /// A worker stopped; it has said why.
    ByWorker,
    /// The caller stops the workers, with this error.
    ByCaller(StepError),
}

impl From<Stopped> for Ended {
    fn from(Stopped: Stopped) -> Self {
        Self::ByWorker
    }
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// What the stages know of a step.
    pub(super) fn context(&self, weights: Weights, divisor: Weight) -> Arc<Context> {
        self.context_in_turns(weights, divisor, Arc::clone(&self.turns))
    }

    /// What they know of the step behind that one, if it steps.
    pub(super) fn context_behind(&self, weights: Weights) -> Arc<Context> {
        let mut scaler = self.stepping.scaler;
        scaler.stepped();
        let divisor = weights.total.clone();
        let context = self.context(weights, divisor);
        let context = Arc::into_inner(context).expect("nobody else has it yet");
        Arc::new(Context { step: self.steps + 1, loss_scale: scaler.scale(), ..context })
    }

    /// The same as of this step, for another plan.
    pub(super) fn context_in_turns(&self, weights: Weights, divisor: Weight, turns: Arc<Turns>) -> Arc<Context> {
        let (loss_scale, recompute) = (self.stepping.scaler.scale(), Arc::clone(&self.stepping.recompute));
        Arc::new(Context { step: self.steps, weights, divisor, loss_scale, recompute, turns })
    }

    /// The first part of a step: what all stages have summed.
    pub(super) fn sums(&self, inputs: Vec<In>, targets: Vec<Target>, context: &Arc<Context>) -> Result<Sums, Ended> {
        self.run(inputs, targets, Arc::clone(&self.plan), Pass::Train(Arc::clone(context)))?.sums(context)
    }

    /// The second part of a step: what every stage tells of it, in order.
    pub(super) fn conclude(&self, verdict: Verdict) -> Result<Vec<Stepped>, Ended> {
        self.tell(verdict)?;
        self.concluded_stages(verdict)
    }

    /// To all workers.
    pub(super) fn tell(&self, verdict: Verdict) -> Result<(), Ended> {
        for worker in &self.workers {
            self.send(&worker.verdicts, verdict)?;
        }
        Ok(())
    }

    /// Lets workers ask for the verdict on the last step, if nothing is behind it.
    pub(super) fn settle(&self) -> Result<(), Ended> {
        for worker in &self.workers {
            self.send(&worker.commands, Command::Settle { during: self.during })?;
        }
        Ok(())
    }

    /// Runs a step again, without its flush, to find the first thing in it that is not finite.
    pub(super) fn inspect(
        &self,
        (inputs, targets): (Vec<In>, Vec<Target>),
        context: &Arc<Context>,
    ) -> Result<Option<Culprit>, Ended> {
        let finished = self.run(inputs, targets, Arc::clone(&self.plan), Pass::Inspect(Arc::clone(context)))?;
        self.concluded_stages(Verdict::Skip)?;
        Ok(finite::first(finished.0.into_iter().flat_map(|outcome| outcome.culprits)))
    }

    pub(super) fn evaluate(&mut self, batch: MicroBatches<In, Target>) -> Result<EvalReport, Ended> {
        self.begin(During::Evaluation { steps: self.steps });
        let total = batch.weights.total.clone();
        let plan = Arc::new(self.plan.forwards(batch.inputs.len()));
        let turns = Arc::new(Turns::new(&plan, &self.streams));
        let context = self.context_in_turns(batch.weights, total, turns);
        let finished = self.run(batch.inputs, batch.targets, plan, Pass::Evaluate(Arc::clone(&context)))?;
        let terms = terms(&losses(&finished.0), &context.weights.total);
        Ok(EvalReport { loss: total_loss(&terms), terms })
    }

    /// Runs one pass of every worker's list.
    fn run(&self, inputs: Vec<In>, targets: Vec<Target>, plan: Arc<Checked>, pass: Pass) -> Result<Finished, Ended> {
        self.run_by((inputs, targets), plan, pass, self.stepping.clock(self.steps))
    }

    /// The same, by this clock.
    pub(super) fn run_by(
        &self,
        batch: (Vec<In>, Vec<Target>),
        plan: Arc<Checked>,
        pass: Pass,
        clock: Clock,
    ) -> Result<Finished, Ended> {
        let (during, began) = (self.during, self.began);
        self.ask(batch, Asked { during, began, plan, pass, clock, flush: Flush::Together, behind: false })?;
        self.finished()
    }

    /// Asks all workers for a pass.
    pub(super) fn ask(&self, (inputs, targets): (Vec<In>, Vec<Target>), asked: Asked) -> Result<(), Ended> {
        self.send(&self.door.inputs, inputs)?;
        self.send(&self.door.targets, targets)?;
        for worker in &self.workers {
            let events = if let Pass::Train(_) = asked.pass { Vec::with_capacity(worker.events) } else { Vec::new() };
            self.send(&worker.commands, Command::Run(Run { asked: asked.clone(), events }))?;
        }
        Ok(())
    }

    /// What all stages show of a pass.
    pub(super) fn finished(&self) -> Result<Finished, Ended> {
        Ok(Finished(self.gather(&self.finished)?))
    }

    /// What each worker has done in a training pass, when that is over.
    pub(super) fn recorded(&self) -> Result<Vec<Vec<Event>>, Ended> {
        let mut recorded =
            (0..self.plan().workers()).map(|_| self.receive(&self.recorded)).collect::<Result<Vec<Recorded>, _>>()?;
        recorded.sort_by_key(|recorded| recorded.worker);
        Ok(recorded.into_iter().map(|recorded| recorded.events).collect())
    }

    /// One message of every stage.
    pub(super) fn gather<R>(&self, messages: &Receiver<R>) -> Result<Vec<R>, Ended> {
        (0..self.plan().stages()).map(|_| self.receive(messages)).collect()
    }

    /// What every stage tells when its step is over by this verdict, in order; what it has told before is void.
    pub(super) fn concluded_stages(&self, verdict: Verdict) -> Result<Vec<Stepped>, Ended> {
        let mut stepped = Vec::with_capacity(self.plan().stages());
        while stepped.len() < self.plan().stages() {
            stepped.extend(Some(self.receive(&self.stepped)?).filter(|stage: &Stepped| stage.verdict == verdict));
        }
        stepped.sort_by_key(|stage| stage.stage);
        Ok(stepped)
    }
}

/// What all stages show at the end of a pass.
pub(super) struct Finished(Vec<Outcome>);

impl Finished {
    /// Added up, if it is the whole step.
    pub(super) fn sums(self, context: &Context) -> Result<Sums, Ended> {
        let expected = Ledger { backwards: context.weights.each.len(), weight: context.weights.total.clone() };
        Sums::of(self.0, &expected).map_err(|error| Ended::ByCaller(error.into()))
    }
}

/// The terms of a loss, of their sums.
pub(super) fn terms(sums: &[f64], weight: &Weight) -> Vec<LossTerm> {
    let means = weight.divide(sums).into_iter();
    means.zip(weight.terms()).map(|(loss, &weight)| LossTerm { loss, weight }).collect()
}

pub(super) fn total_loss(terms: &[LossTerm]) -> f64 {
    terms.iter().map(|term| term.loss).sum()
}
