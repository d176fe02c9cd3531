//! Sends commands, batches and verdicts (step the optimizers, or skip the step) to the workers, and gathers their
//! replies: outcomes (losses, gradient norms), reports, events and states.

use std::sync::Arc;

use super::{Ended, Workers};

use stageline_schedule::Event;

use crate::failure::activity::During;
use crate::model::loss_weight::{Weight, mean};
use crate::model::micro_batches::MicroBatches;
use crate::pipeline::report::{LossTerm, Metric};
use crate::runner::ErasedModule;
use crate::runner::pass::{Context, Pass};
use crate::state::frozen::FrozenFrom;
use crate::state::layout::StageState;
use crate::threads::Receiver;
use crate::update::flush::{self, Outcome, Sums, Verdict};
use crate::update::ledger::Ledger;
use crate::update::not_finite::Culprit;
use crate::worker::messages::{Asked, Command, Recorded, Run, Stepped};

impl<In: Clone, Out, Target: Clone> Workers<In, Out, Target> {
    /// Runs one pass (a step, evaluation, ...) over a batch on all workers, with one request in `asked` for each
    /// replica. Returns all stages' outcomes: losses, gradient norms and counts of summed micro-batches.
    pub(crate) fn run(&self, batch: &MicroBatches<In, Target>, asked: Vec<Asked>) -> Result<Finished, Ended> {
        let replicas = asked.len();
        self.ask(batch, asked)?;
        self.finished(replicas)
    }

    /// Starts one pass (a step, evaluation, ...) without waiting for its end: sends each replica its micro-batches, and
    /// each worker the replica's request from `asked`.
    pub(crate) fn ask(&self, batch: &MicroBatches<In, Target>, asked: Vec<Asked>) -> Result<(), Ended> {
        self.feed(&batch.inputs, Some(&batch.targets), asked)
    }

    /// Runs inference on `inputs` (one input for each micro-batch), and returns the last stage's outputs in the order
    /// of the inputs.
    pub(crate) fn infer(&self, inputs: &[In], asked: Vec<Asked>) -> Result<Vec<Out>, Ended> {
        let replicas = asked.len();
        self.feed(inputs, None, asked)?;
        // The last stages send their outputs before their outcomes.
        let outputs: Result<Vec<_>, Ended> =
            self.batches[..replicas].iter().map(|batch| self.receive(&batch.outputs)).collect();
        self.finished(replicas)?;
        Ok(outputs?.into_iter().flatten().collect())
    }

    /// Sends each replica its micro-batches' inputs and targets, and each worker the replica's request from `asked`.
    /// `targets` is `None` for inference.
    fn feed(&self, inputs: &[In], targets: Option<&[Target]>, asked: Vec<Asked>) -> Result<(), Ended> {
        let mut next = 0;
        let replicas = self.batches.iter().zip(self.handles.chunks(self.handles.len() / self.batches.len()));
        for (asked, (channels, workers)) in asked.into_iter().zip(replicas) {
            let part = next..next + asked.pass.context().weights.each.len();
            next = part.end;
            self.send(&channels.inputs, inputs[part.clone()].to_vec())?;
            if let Some(targets) = targets {
                self.send(&channels.targets, targets[part].to_vec())?;
            }
            for worker in workers {
                let events =
                    if let Pass::Train(_) = asked.pass { Vec::with_capacity(worker.events) } else { Vec::new() };
                self.send(&worker.commands, Command::Run(Run { asked: asked.clone(), events }))?;
            }
        }
        Ok(())
    }
}

impl<In, Out, Target> Workers<In, Out, Target> {
    /// Ends a step: sends its verdict (step the optimizers, skip the step, ...) to all workers, and waits until every
    /// stage has acted on it. Returns the stages' reports in the order of replicas and stages.
    pub(crate) fn conclude(&self, verdict: Verdict) -> Result<Vec<Stepped>, Ended> {
        self.tell(verdict)?;
        self.concluded_stages(verdict)
    }

    /// Sends the verdict on a rehearsal to one worker after another. The next worker gets it only when all stages of
    /// the previous worker have acted on it. So each worker's optimizer steps are measured without those of other
    /// workers, even if stages share a GPU. `stages` has the number of stages of each worker of a replica. Returns the
    /// stages' reports in the order of replicas and stages.
    pub(crate) fn conclude_in_turn(&self, verdict: Verdict, stages: &[usize]) -> Result<Vec<Stepped>, Ended> {
        let mut stepped = Vec::new();
        for (worker, stages) in self.handles.iter().zip(stages.iter().cycle()) {
            self.send(&worker.verdicts, verdict)?;
            stepped.extend(self.stepped(verdict, *stages)?);
        }
        Ok(in_order(stepped))
    }

    /// Sends the verdict on a step (to step the optimizers, to skip the step, ...) to all workers.
    pub(crate) fn tell(&self, verdict: Verdict) -> Result<(), Ended> {
        for worker in &self.handles {
            self.send(&worker.verdicts, verdict)?;
        }
        Ok(())
    }

    /// Commands all workers to receive the verdict on the last step (step or skip). Needed only if no step follows,
    /// because workers otherwise receive the verdict during the next step.
    pub(crate) fn settle(&self) -> Result<(), Ended> {
        for worker in &self.handles {
            self.send(&worker.commands, Command::Settle { during: self.during() })?;
        }
        Ok(())
    }

    /// Returns copies of the parameters and optimizer states of the first replica's stages, for a checkpoint. They are
    /// in the order of arrival, and each names its stage.
    pub(crate) fn copy_states(&mut self, during: During, frozen_from: FrozenFrom) -> Result<Vec<StageState>, Ended> {
        self.begin(during);
        for worker in self.handles.iter().filter(|worker| worker.replica.is_first()) {
            self.send(&worker.commands, Command::Save { during, frozen_from })?;
        }
        self.gather(&self.replies.saved, 1)
    }

    /// Returns the first replica's stages, each as its index and a copy of its module, in the order of arrival.
    pub(crate) fn copy_modules(&mut self, during: During) -> Result<Vec<(usize, ErasedModule)>, Ended> {
        self.begin(during);
        for worker in self.handles.iter().filter(|worker| worker.replica.is_first()) {
            self.send(&worker.commands, Command::Copy { during })?;
        }
        self.gather(&self.replies.copied, 1)
    }

    /// Waits until all stages of the first `replicas` replicas have finished a step or evaluation. Returns their
    /// outcomes (losses, gradient norms and counts of summed micro-batches) in the order of replicas and stages.
    pub(crate) fn finished(&self, replicas: usize) -> Result<Finished, Ended> {
        let mut outcomes = self.gather(&self.replies.finished, replicas)?;
        outcomes.sort_by_key(|outcome: &Outcome| (outcome.replica.index, outcome.stage));
        Ok(Finished(outcomes))
    }

    /// Waits until every worker has sent its events (timed computations, transfers and waits) of a training step.
    /// Returns them in the order of replicas and workers.
    pub(crate) fn recorded(&self) -> Result<Vec<Vec<Event>>, Ended> {
        let mut recorded = (0..self.handles.len())
            .map(|_| self.receive(&self.replies.recorded))
            .collect::<Result<Vec<Recorded>, _>>()?;
        recorded.sort_by_key(|recorded| (recorded.replica.index, recorded.worker));
        Ok(recorded.into_iter().map(|recorded| recorded.events).collect())
    }

    /// Waits for one reply from every stage of the first `replicas` replicas. Returns the replies in the order of
    /// arrival.
    fn gather<R>(&self, messages: &Receiver<R>, replicas: usize) -> Result<Vec<R>, Ended> {
        (0..replicas * self.stages).map(|_| self.receive(messages)).collect()
    }

    /// Waits until every stage has acted on `verdict` (stepped its optimizer, skipped the step, ...). Returns the
    /// stages' reports in the order of replicas and stages. Discards reports of stages that acted on a wrongly assumed
    /// verdict.
    pub(crate) fn concluded_stages(&self, verdict: Verdict) -> Result<Vec<Stepped>, Ended> {
        self.stepped(verdict, self.replicas() * self.stages).map(in_order)
    }

    /// Waits until `stages` stages have acted on `verdict` (stepped their optimizers, skipped the step, ...). Returns
    /// their reports in the order of arrival. Discards reports of stages that acted on a wrongly assumed verdict.
    fn stepped(&self, verdict: Verdict, stages: usize) -> Result<Vec<Stepped>, Ended> {
        let mut stepped = Vec::with_capacity(stages);
        while stepped.len() < stages {
            let reported = self.receive(&self.replies.stepped)?;
            stepped.extend(Some(reported).filter(|stage: &Stepped| stage.verdict == verdict));
        }
        Ok(stepped)
    }
}

/// Sorts the stages' reports by replica and then by stage.
fn in_order(mut stepped: Vec<Stepped>) -> Vec<Stepped> {
    stepped.sort_by_key(|stage| (stage.replica.index, stage.stage));
    stepped
}

/// All stages' outcomes (such as losses and gradient norms) of one pass over a batch: a step, evaluation or inference.
pub(crate) struct Finished(Vec<Outcome>);

impl Finished {
    /// Returns the losses, metrics and gradient norm of a step, over all stages. Returns an error if a stage's gradient
    /// sum lacks a micro-batch of the step.
    pub(crate) fn sums(self, contexts: &[Arc<Context>]) -> Result<Sums, Ended> {
        let ledger =
            |Context { weights, .. }: &Context| Ledger { backwards: weights.each.len(), weight: weights.total.clone() };
        let expected: Vec<_> = contexts.iter().map(|context| ledger(context)).collect();
        let weights: Vec<_> = contexts.iter().flat_map(|context| &context.weights.each).map(Weight::first).collect();
        Sums::of(&self.0, &expected, &weights).map_err(|error| Ended::ByCaller(error.into()))
    }

    /// Returns the sum of each loss term over the targets of all micro-batches.
    pub(crate) fn losses(&self) -> Vec<f64> {
        flush::losses(&self.0)
    }

    /// Returns the sum of each metric over the targets of all micro-batches.
    pub(crate) fn metrics(&self) -> Vec<f64> {
        flush::metrics(&self.0)
    }

    /// Returns the computations with a non-finite result that an inspection (a second run of a non-finite step) has
    /// found, in no particular order.
    pub(crate) fn culprits(self) -> impl Iterator<Item = Culprit> {
        self.0.into_iter().flat_map(|outcome| outcome.culprits)
    }
}

/// Returns the loss terms of a batch, given each term's sum over the targets and the total loss weight. A term's mean
/// is its sum divided by its weight.
pub(crate) fn terms(sums: &[f64], weight: &Weight) -> Vec<LossTerm> {
    let means = weight.divide(sums).into_iter();
    means.zip(weight.terms()).map(|(loss, &weight)| LossTerm { loss, weight }).collect()
}

/// Returns the metrics of a batch, given their names and their sums over the targets. A metric's value is its sum
/// divided by the weight of the first loss term.
pub(crate) fn metrics(names: &[&'static str], sums: &[f64], weight: &Weight) -> Vec<Metric> {
    names.iter().zip(sums).map(|(name, sum)| Metric { name, value: mean(*sum, weight.first()) }).collect()
}

/// Returns the total loss of a batch: the sum of the means of its loss terms.
pub(crate) fn total_loss(terms: &[LossTerm]) -> f64 {
    terms.iter().map(|term| term.loss).sum()
}
