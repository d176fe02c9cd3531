//! Creates the requests that make the workers run one pass (a training step, evaluation or inference) over a batch,
//! with the pass's context (step number, loss weights, loss scale, ...). Also runs evaluations and inspections. An
//! inspection reruns a step with a NaN or infinite result, to find the first such result.

use std::sync::Arc;

use crate::failure::activity::During;
use crate::model::loss_weight::Weight;
use crate::model::micro_batches::{MicroBatches, Weights};
use crate::model::payload::Payload;
use crate::pipeline::Pipeline;
use crate::pipeline::report::EvalReport;
use crate::pipeline::workers::{Ended, metrics, terms, total_loss};
use crate::runner::pass::{Context, Pass};
use crate::transfer::order::Turns;
use crate::update::flush::{Flush, Sums, Verdict};
use crate::update::loss_scale::Scaler;
use crate::update::not_finite::{self, Culprit};
use crate::worker::messages::Asked;

impl<In: Payload, Out: Payload, Target: Payload> Pipeline<In, Out, Target> {
    /// Returns each replica's context for the current step: step number, loss weights, loss scale and GPU transfer
    /// order. `weights` has the loss weights of the batch's micro-batches. The loss sum is divided by `divisor`.
    pub(crate) fn contexts(&self, weights: &Weights, divisor: &Weight) -> Vec<Arc<Context>> {
        self.contexts_in_turns(weights.divided(self.plan().micro_batches()), divisor, &self.transfers.turns)
    }

    /// Returns each replica's context for the training step that begins now: step number, loss weights, loss scale and
    /// GPU transfer order.
    pub(crate) fn contexts_of_step(&self, weights: &Weights) -> Vec<Arc<Context>> {
        self.contexts_in_training(weights, self.done.steps, self.stepping.scaler)
    }

    /// Returns each replica's context for the training step after the running one: step number, loss weights, loss
    /// scale and GPU transfer order. The loss scale assumes that the running step is not skipped.
    pub(crate) fn contexts_behind(&self, weights: &Weights) -> Vec<Arc<Context>> {
        let mut scaler = self.stepping.scaler;
        scaler.stepped();
        self.contexts_in_training(weights, self.done.steps + 1, scaler)
    }

    /// Returns each replica's context for training step `step`: step number, loss weights, loss scale and GPU transfer
    /// order. The stages also measure the gradient noise if `noise_every` selects the step and at least two
    /// micro-batches have a loss weight above 0.
    fn contexts_in_training(&self, weights: &Weights, step: usize, scaler: Scaler) -> Vec<Arc<Context>> {
        let weighted = weights.each.iter().filter(|weight| weight.first() > 0.0).count();
        let measures_noise = weighted > 1 && self.stepping.flush.measures_noise(step);
        let in_training = |context| {
            let context = Arc::into_inner(context).expect("a new context has one owner");
            Arc::new(Context { step, loss_scale: scaler.scale(), measures_noise, ..context })
        };
        self.contexts(weights, &weights.total).into_iter().map(in_training).collect()
    }

    /// Returns each replica's context for the current step, with the replica's loss weights from `parts` and its GPU
    /// transfer order from `turns`. The loss sum is divided by `divisor`.
    pub(crate) fn contexts_in_turns(
        &self,
        parts: Vec<Weights>,
        divisor: &Weight,
        turns: &[Arc<Turns>],
    ) -> Vec<Arc<Context>> {
        let context = |(weights, turns): (Weights, &Arc<Turns>)| {
            let (loss_scale, recompute) = (self.stepping.scaler.scale(), Arc::clone(&self.stepping.recompute));
            let (divisor, turns) = (divisor.clone(), Arc::clone(turns));
            let (step, measures_noise) = (self.done.steps, false);
            Arc::new(Context { step, weights, divisor, loss_scale, recompute, measures_noise, turns })
        };
        parts.into_iter().zip(turns).map(context).collect()
    }

    /// Returns the request to run a pass (a step, evaluation, ...) over a batch for each replica's workers. `pass` is
    /// the constructor of the kind of pass, such as `Pass::Train`. In a training step, stages wait for the verdict
    /// (step or skip), which depends on all stages, before they step their optimizers.
    pub(crate) fn asked(&self, contexts: &[Arc<Context>], pass: fn(Arc<Context>) -> Pass) -> Vec<Asked> {
        let asked = |context: &Arc<Context>| Asked {
            during: self.workers.during(),
            began: self.workers.began(),
            plan: Arc::clone(&self.plan),
            pass: pass(Arc::clone(context)),
            clock: self.stepping.clock(self.done.steps),
            flush: Flush::Together,
            behind: false,
        };
        contexts.iter().map(asked).collect()
    }

    /// Runs the forward and backward passes of a training step on all replicas. Returns the sums of losses and metrics
    /// over the batch's targets, and the global gradient norm. The stages then wait for the verdict: to step their
    /// optimizers, or to skip the step.
    pub(crate) fn sums(&self, batch: &MicroBatches<In, Target>, contexts: &[Arc<Context>]) -> Result<Sums, Ended> {
        self.workers.run(batch, self.asked(contexts, Pass::Train))?.sums(contexts)
    }

    /// Reruns the forward and backward passes of a step with a NaN or infinite result, without optimizer steps. Returns
    /// the first computation with such a result; `None` if all results of the rerun are finite.
    pub(crate) fn inspect(
        &self,
        batch: &MicroBatches<In, Target>,
        contexts: &[Arc<Context>],
    ) -> Result<Option<Culprit>, Ended> {
        let finished = self.workers.run(batch, self.asked(contexts, Pass::Inspect))?;
        self.workers.concluded_stages(Verdict::Skip)?;
        Ok(not_finite::first(finished.culprits()))
    }

    /// Returns the request to run only forward passes, for each replica that gets micro-batches. `pass` is the
    /// constructor of the kind of pass: evaluation or inference.
    pub(crate) fn asked_forwards(&self, weights: &Weights, pass: fn(Arc<Context>) -> Pass) -> Vec<Asked> {
        let parts = weights.divided(self.plan().micro_batches());
        let plans: Vec<_> = parts.iter().map(|part| Arc::new(self.plan.forwards(part.each.len()))).collect();
        let turns = Turns::of_replicas(plans.iter().map(|plan| &**plan).zip(&self.transfers.streams));
        let contexts = self.contexts_in_turns(parts, &weights.total, &turns);
        self.asked(&contexts, pass).into_iter().zip(plans).map(|(asked, plan)| Asked { plan, ..asked }).collect()
    }

    /// Evaluates a batch by forward passes only, and returns the report with its loss and metrics. Replicas for which
    /// there are no micro-batches stay idle.
    pub(crate) fn evaluate(&mut self, batch: MicroBatches<In, Target>) -> Result<EvalReport, Ended> {
        self.workers.begin(During::Evaluation { steps: self.done.steps });
        let total = &batch.weights.total;
        let finished = self.workers.run(&batch, self.asked_forwards(&batch.weights, Pass::Evaluate))?;
        let terms = terms(&finished.losses(), total);
        let metrics = metrics(self.scoring.metrics, &finished.metrics(), total);
        Ok(EvalReport { loss: total_loss(&terms), terms, metrics })
    }
}
