//! What is asked of all workers at once, and what they answer.

use std::sync::Arc;

use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::failure::stop::Stopped;
use crate::model::batch::{MicroBatches, Weights};
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::report::{EvalReport, LossTerm};
use crate::recording::events::Event;
use crate::runner::pass::{Context, Pass};
use crate::threads::Receiver;
use crate::transfer::order::Turns;
use crate::update::finite::{self, Culprit};
use crate::update::flush::{Flush, Outcome, Sums, Verdict, losses};
use crate::update::ledger::Ledger;
use crate::worker::messages::{Asked, Command, Recorded, Run, Stepped};

/// Why a pass ended early.
pub(crate) enum Ended {
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
    /// What the stages of each replica know of a step with this batch, whose losses are divided by this.
    pub(crate) fn contexts(&self, weights: &Weights, divisor: &Weight) -> Vec<Arc<Context>> {
        self.contexts_in_turns(weights.divided(self.plan().micro_batches()), divisor, &self.turns)
    }

    /// What they know of the step behind that one, if it steps.
    pub(crate) fn contexts_behind(&self, weights: &Weights) -> Vec<Arc<Context>> {
        let mut scaler = self.stepping.scaler;
        scaler.stepped();
        let behind = |context| {
            let context = Arc::into_inner(context).expect("nobody else has it yet");
            Arc::new(Context { step: self.steps + 1, loss_scale: scaler.scale(), ..context })
        };
        self.contexts(weights, &weights.total).into_iter().map(behind).collect()
    }

    /// The same as of this step, for other parts and plans.
    pub(crate) fn contexts_in_turns(
        &self,
        parts: Vec<Weights>,
        divisor: &Weight,
        turns: &[Arc<Turns>],
    ) -> Vec<Arc<Context>> {
        let context = |(weights, turns): (Weights, &Arc<Turns>)| {
            let (loss_scale, recompute) = (self.stepping.scaler.scale(), Arc::clone(&self.stepping.recompute));
            let (divisor, turns) = (divisor.clone(), Arc::clone(turns));
            Arc::new(Context { step: self.steps, weights, divisor, loss_scale, recompute, turns })
        };
        parts.into_iter().zip(turns).map(context).collect()
    }

    /// What each replica is asked for: a pass of the plan, with no other one behind it.
    pub(crate) fn asked(&self, contexts: &[Arc<Context>], pass: fn(Arc<Context>) -> Pass) -> Vec<Asked> {
        let asked = |context: &Arc<Context>| Asked {
            during: self.during,
            began: self.began,
            plan: Arc::clone(&self.plan),
            pass: pass(Arc::clone(context)),
            clock: self.stepping.clock(self.steps),
            flush: Flush::Together,
            behind: false,
        };
        contexts.iter().map(asked).collect()
    }

    /// The first part of a step: what all stages have summed.
    pub(crate) fn sums(&self, batch: &MicroBatches<In, Target>, contexts: &[Arc<Context>]) -> Result<Sums, Ended> {
        self.run(batch, self.asked(contexts, Pass::Train))?.sums(contexts)
    }

    /// The second part of a step: what every stage tells of it, in order.
    pub(crate) fn conclude(&self, verdict: Verdict) -> Result<Vec<Stepped>, Ended> {
        self.tell(verdict)?;
        self.concluded_stages(verdict)
    }

    /// To all workers.
    pub(crate) fn tell(&self, verdict: Verdict) -> Result<(), Ended> {
        for worker in &self.workers {
            self.send(&worker.verdicts, verdict)?;
        }
        Ok(())
    }

    /// Lets workers ask for the verdict on the last step, if nothing is behind it.
    pub(crate) fn settle(&self) -> Result<(), Ended> {
        for worker in &self.workers {
            self.send(&worker.commands, Command::Settle { during: self.during })?;
        }
        Ok(())
    }

    /// Runs a step again, without its flush, to find the first thing in it that is not finite.
    pub(crate) fn inspect(
        &self,
        batch: &MicroBatches<In, Target>,
        contexts: &[Arc<Context>],
    ) -> Result<Option<Culprit>, Ended> {
        let finished = self.run(batch, self.asked(contexts, Pass::Inspect))?;
        self.concluded_stages(Verdict::Skip)?;
        Ok(finite::first(finished.0.into_iter().flat_map(|outcome| outcome.culprits)))
    }

    /// With as many replicas as it has micro-batches for.
    pub(crate) fn evaluate(&mut self, batch: MicroBatches<In, Target>) -> Result<EvalReport, Ended> {
        self.begin(During::Evaluation { steps: self.steps });
        let (parts, total) = (batch.weights.divided(self.plan().micro_batches()), &batch.weights.total);
        let plans: Vec<_> = parts.iter().map(|part| Arc::new(self.plan.forwards(part.each.len()))).collect();
        let turns = Turns::of_replicas(plans.iter().map(|plan| &**plan).zip(&self.streams));
        let contexts = self.contexts_in_turns(parts, total, &turns);
        let asked = self.asked(&contexts, Pass::Evaluate).into_iter().zip(plans);
        let finished = self.run(&batch, asked.map(|(asked, plan)| Asked { plan, ..asked }).collect())?;
        let terms = terms(&losses(&finished.0), total);
        Ok(EvalReport { loss: total_loss(&terms), terms })
    }

    /// Runs one pass of every worker's list.
    pub(crate) fn run(&self, batch: &MicroBatches<In, Target>, asked: Vec<Asked>) -> Result<Finished, Ended> {
        let replicas = asked.len();
        self.ask(batch, asked)?;
        self.finished(replicas)
    }

    /// Asks the workers of replicas for a pass, each with its part of the batch.
    pub(crate) fn ask(&self, batch: &MicroBatches<In, Target>, asked: Vec<Asked>) -> Result<(), Ended> {
        let mut next = 0;
        let replicas = self.doors.iter().zip(self.workers.chunks(self.plan().workers()));
        for (asked, (door, workers)) in asked.into_iter().zip(replicas) {
            let part = next..next + asked.pass.context().weights.each.len();
            next = part.end;
            self.send(&door.inputs, batch.inputs[part.clone()].to_vec())?;
            self.send(&door.targets, batch.targets[part].to_vec())?;
            for worker in workers {
                let events =
                    if let Pass::Train(_) = asked.pass { Vec::with_capacity(worker.events) } else { Vec::new() };
                self.send(&worker.commands, Command::Run(Run { asked: asked.clone(), events }))?;
            }
        }
        Ok(())
    }

    /// What all stages of so many replicas show of a pass, in order.
    pub(crate) fn finished(&self, replicas: usize) -> Result<Finished, Ended> {
        let mut outcomes = self.gather(&self.finished, replicas)?;
        outcomes.sort_by_key(|outcome: &Outcome| (outcome.replica.index, outcome.stage));
        Ok(Finished(outcomes))
    }

    /// What each worker has done in a training pass, when that is over.
    pub(crate) fn recorded(&self) -> Result<Vec<Vec<Event>>, Ended> {
        let mut recorded =
            (0..self.workers.len()).map(|_| self.receive(&self.recorded)).collect::<Result<Vec<Recorded>, _>>()?;
        recorded.sort_by_key(|recorded| (recorded.replica.index, recorded.worker));
        Ok(recorded.into_iter().map(|recorded| recorded.events).collect())
    }

    /// One message of every stage of so many replicas.
    pub(crate) fn gather<R>(&self, messages: &Receiver<R>, replicas: usize) -> Result<Vec<R>, Ended> {
        (0..replicas * self.plan().stages()).map(|_| self.receive(messages)).collect()
    }

    /// What every stage tells when its step is over by this verdict, in order; what it has told before is void.
    pub(crate) fn concluded_stages(&self, verdict: Verdict) -> Result<Vec<Stepped>, Ended> {
        let stages = self.replicas() * self.plan().stages();
        let mut stepped = Vec::with_capacity(stages);
        while stepped.len() < stages {
            stepped.extend(Some(self.receive(&self.stepped)?).filter(|stage: &Stepped| stage.verdict == verdict));
        }
        stepped.sort_by_key(|stage| (stage.replica.index, stage.stage));
        Ok(stepped)
    }
}

/// What all stages show at the end of a pass.
pub(crate) struct Finished(Vec<Outcome>);

impl Finished {
    /// Added up, if it is the whole step.
    pub(crate) fn sums(self, contexts: &[Arc<Context>]) -> Result<Sums, Ended> {
        let of_replica =
            |Context { weights, .. }: &Context| Ledger { backwards: weights.each.len(), weight: weights.total.clone() };
        let expected: Vec<_> = contexts.iter().map(|context| of_replica(context)).collect();
        Sums::of(&self.0, &expected).map_err(|error| Ended::ByCaller(error.into()))
    }
}

/// The terms of a loss, of their sums.
pub(crate) fn terms(sums: &[f64], weight: &Weight) -> Vec<LossTerm> {
    let means = weight.divide(sums).into_iter();
    means.zip(weight.terms()).map(|(loss, &weight)| LossTerm { loss, weight }).collect()
}

pub(crate) fn total_loss(terms: &[LossTerm]) -> f64 {
    terms.iter().map(|term| term.loss).sum()
}
