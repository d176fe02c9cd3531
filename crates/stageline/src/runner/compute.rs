//! A stage's forward and backward passes. A backward pass may be split into input gradient and weight gradients (B and
//! W in zero-bubble schedules). Also finds the origin of NaN and infinity in an inspection (a second run of a
//! non-finite step).

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::GradientsParams;

use crate::failure::refused_fallback::RefusedFallback;
use crate::failure::stop::{Stopped, Waits};
use crate::runner::output::Sink;
use crate::runner::stage::{Differentiated, Mode, StageRunner, Taped};
use crate::runner::warnings::{unnamed, warn_of_fallbacks};
use crate::threads::failure::BoxError;
use crate::transfer::link::Weighted;
use crate::update::micro_batch_gradients::{MicroBatchGradients, joined};
use crate::update::norm::SquaredNorms;
use crate::update::not_finite::{Culprit, Origin, Soundness, not_finite_parameter, soundness};
use stageline_nn::autograd::{collect, finding_single_uses, gather};
use stageline_nn::{Recompute, finding_fallbacks};

use stageline_nn::params::describe;

/// The time at which a backward pass computes weight gradients: immediately, or in the second half of a split backward
/// pass. Layers that cannot defer weight gradients always compute them immediately.
#[derive(Clone, Copy)]
pub(super) enum WeightGradients {
    /// Compute weight gradients during the backward pass, and add them to the stage's gradient sum immediately.
    AtOnce,
    /// Defer weight gradients to the second half of a split backward pass (W in zero-bubble schedules).
    Later,
}

impl<M: Module + 'static, K: Sink<M>> StageRunner<M, K> {
    /// Runs the stage's forward pass on one micro-batch. The first forward pass also looks for operations without a
    /// Stageline kernel that no earlier warning has named. It logs a warning about them, or returns an error if the
    /// pipeline's settings forbid such operations.
    pub(super) fn forward(&mut self, micro_batch: usize) -> Result<(), BoxError> {
        if std::mem::replace(&mut self.warned.fallbacks, true) {
            return self.run_forward(micro_batch);
        }
        let (ran, found) = finding_fallbacks(|| self.run_forward(micro_batch));
        let found = unnamed(found, &self.warned.named);
        if !self.refuses_fallbacks {
            warn_of_fallbacks(&found, self.stage, self.replica.index);
            return ran;
        }
        ran?;
        let refused = RefusedFallback::of_forward(self.stage, &self.device, found);
        refused.map_or(Ok(()), |refused| Err(refused.into()))
    }

    /// Runs the stage's forward pass on one micro-batch. In training, retains the autodiff graph for the backward pass.
    /// In an inspection (a second run of a non-finite step), also records whether this forward pass, or the caller's
    /// batch, is the origin of non-finite values.
    fn run_forward(&mut self, micro_batch: usize) -> Result<(), BoxError> {
        let arrived = self.source.take(micro_batch, &self.device, self.parameters.trained.precision());
        let Mode::Training { context, .. } = &self.mode else { return self.evaluate(arrived, micro_batch) };
        let context = Arc::clone(context);
        let Weighted { payload, weight } = arrived;
        let given = self.inspects().then(|| soundness(&payload));
        let (payload, input) = self.source.track(payload);
        let samples = context.weights.samples(context.step, micro_batch);
        let (sink, module) = (&mut self.sink, self.parameters.trained.computing());
        let weighted = Weighted { payload, weight: weight.clone() };
        let recompute = context.recompute[self.stage];
        let forward = || samples.during(|| sink.forward(module, weighted, micro_batch));
        let ((residual, used_once), parts) = recompute.counting(|| finding_single_uses(forward));
        let residual = residual?;
        if recompute != Recompute::Nothing
            && let Some(complaint) = parts.complaint().filter(|_| !std::mem::replace(&mut self.warned.recompute, true))
        {
            let (stage, replica) = (self.stage, self.replica.index);
            if parts.are_none() {
                tracing::info!(stage, replica, %recompute, "stage {stage} recomputes nothing: {complaint}");
            } else {
                tracing::warn!(stage, replica, %recompute, "stage {stage} recomputes nothing: {complaint}");
            }
        }
        self.tape.put(micro_batch, Taped { context, input, residual, used_once, weight });
        match given {
            // The input of stage 0 is the caller's batch, so the NaN has not come from a computation.
            Some(Soundness::NaN) if self.stage == 0 => self.add_culprit(micro_batch, Origin::Input),
            Some(given) if self.sink.output_soundness(micro_batch) > given => {
                self.add_culprit(micro_batch, self.origin_in_forward())
            }
            _ => {}
        }
        Ok(())
    }

    fn evaluate(&mut self, input: Weighted<K::Input>, micro_batch: usize) -> Result<(), BoxError> {
        match &self.mode {
            Mode::Evaluating(module) => self.sink.evaluate(module, input, micro_batch),
            _ => Err("a forward was asked for outside a pass, which is a bug in the pipeline".into()),
        }
    }

    /// Whether the stage is running an inspection: a second run of a step with NaN or infinity, to find the first
    /// non-finite result.
    pub(super) fn inspects(&self) -> bool {
        matches!(self.mode, Mode::Training { inspection: Some(_), .. })
    }

    /// Returns the origin of a forward pass's first non-finite result in an inspection: the stage's parameters if one
    /// of them is not finite, and otherwise the forward pass. Parameters are read for the first such result only.
    fn origin_in_forward(&self) -> Origin {
        if let Mode::Training { inspection: Some(culprits), .. } = &self.mode
            && let Some(before) =
                culprits.iter().find(|culprit| matches!(culprit.origin, Origin::Parameters | Origin::Forward))
        {
            return before.origin;
        }
        let Some(path) = not_finite_parameter(self.parameters.trained.module()) else { return Origin::Forward };
        let (stage, replica) = (self.stage, self.replica.index);
        tracing::warn!(stage, replica, "the parameter `{path}` of stage {stage} is not finite");
        Origin::Parameters
    }

    /// Records that a micro-batch's computation `origin`, such as the forward pass, gave a non-finite result. Does
    /// nothing except in an inspection (a second run of a non-finite step, to find the cause).
    pub(super) fn add_culprit(&mut self, micro_batch: usize, origin: Origin) {
        if let Mode::Training { inspection: Some(culprits), .. } = &mut self.mode {
            culprits.push(Culprit { replica: self.replica, stage: self.stage, micro_batch, origin });
        }
    }

    /// Runs one micro-batch's unsplit backward pass (input and weight gradients together), and adds the gradients to
    /// the stage's gradient sum.
    pub(super) fn backward(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        let Differentiated { gradients, .. } = self.differentiate(micro_batch, waits, WeightGradients::AtOnce)?;
        self.sum(micro_batch, gradients);
        Ok(())
    }

    /// Adds one micro-batch's gradients to the stage's gradient sum, except in an inspection (a second run of a
    /// non-finite step), which steps no optimizer.
    fn sum(&mut self, micro_batch: usize, gradients: MicroBatchGradients) {
        let gradients = if self.inspects() { MicroBatchGradients::of_weight(gradients.weight) } else { gradients };
        let module = self.parameters.trained.module();
        let several = self.sums.add(module, micro_batch, gradients);
        if several.is_empty() || std::mem::replace(&mut self.warned.several, true) {
            return;
        }
        let (stage, replica) = (self.stage, self.replica.index);
        let named = describe(module).into_iter().filter(|found| several.contains(&found.id));
        let paths: Vec<_> = named.map(|found| format!("`{}`", found.path)).collect();
        tracing::warn!(
            stage,
            replica,
            "stage {stage} uses {} both in a layer and directly, and used it once in the first micro-batch of the step: the last \
             bits of its gradient may depend on the schedule, and the measured gradient noise is wrong; use it in the same way \
             in every micro-batch",
            paths.join(", ")
        );
    }

    /// Runs the first half of a split backward pass: computes the gradients of the stage's input and of tied
    /// parameters. Layers that support it defer all other weight gradients to the second half.
    pub(super) fn input_gradient(&mut self, micro_batch: usize, waits: &Waits) -> Result<(), Stopped> {
        let differentiated = self.differentiate(micro_batch, waits, WeightGradients::Later)?;
        if !std::mem::replace(&mut self.warned.split, true) {
            self.warn_of_whole_backwards(&differentiated.gradients);
        }
        self.halves.put(micro_batch, differentiated);
        Ok(())
    }

    /// Warns that a split backward pass computes some parameters' weight gradients in its first half, because their
    /// layers, such as burn's own, cannot defer them. The second half then fills less idle time.
    ///
    /// No warning is logged if these parameters have at most a tenth of the stage's trainable elements, as a position
    /// embedding does. A log message at level DEBUG always lists them.
    pub(super) fn warn_of_whole_backwards(&self, gradients: &MicroBatchGradients) {
        let shared: HashSet<_> = self.parameters.ties.ids().collect();
        let module = self.parameters.trained.computing();
        let computed = gradients.computed(module);
        let (mut all, mut whole, mut paths) = (0, 0, Vec::new());
        for found in describe(module).into_iter().filter(|found| found.trained) {
            let elements: usize = found.shape.iter().product();
            all += elements;
            if computed.contains(&found.id) && !shared.contains(&found.id) {
                whole += elements;
                paths.push(found.path);
            }
        }
        let (stage, replica) = (self.stage, self.replica.index);
        let (count, listed) = (paths.len(), paths.join(", "));
        tracing::debug!(
            stage,
            replica,
            "weight gradients in the first halves of backwards of stage {stage}: {count} ({listed})"
        );
        if let Some(first) = paths.first().filter(|_| whole > all / 10) {
            let more = count - 1;
            tracing::warn!(
                stage,
                replica,
                "the backward of `{first}` in stage {stage}, and of {more} more of its parameters, is not split: \
                 use `stageline::nn::{{Linear, Embedding, LayerNorm, RmsNorm}}` for layers that have a counterpart \
                 there (convolutions have none, and LoRA adapters of layers other than `Linear` are not split), or choose \
                 a schedule without split backwards"
            );
        }
    }

    /// Runs the second half of a split backward pass: computes the deferred weight gradients, and adds all of the
    /// micro-batch's gradients to the stage's gradient sum. An inspection (a second run of a non-finite step) adds no
    /// gradients.
    pub(super) fn weight_gradient(&mut self, micro_batch: usize) {
        let Differentiated { mut gradients, came_finite } = self.halves.take(micro_batch);
        if came_finite {
            gradients.complete(self.parameters.trained.computing());
            if !SquaredNorms::of(self.parameters.trained.computing(), &gradients.gradients).are_finite() {
                self.add_culprit(micro_batch, Origin::Backward);
            }
        }
        self.sum(micro_batch, gradients);
    }

    /// Runs one micro-batch's backward pass. Retains the gradient of the stage's input for the previous stage, and
    /// exchanges the gradients of tied parameters with the stages that share them. `weights` selects whether all other
    /// weight gradients are computed in this call or deferred, in layers that can defer them.
    pub(super) fn differentiate(
        &mut self,
        micro_batch: usize,
        waits: &Waits,
        weights: WeightGradients,
    ) -> Result<Differentiated, Stopped> {
        let Taped { context, input, residual, mut used_once, weight } = self.tape.take(micro_batch);
        let inspects = self.inspects();
        let came_finite = inspects && self.sink.gradient_is_finite(micro_batch);
        // Gradients of tied parameters are never deferred, because other stages wait for them.
        let tied: HashSet<_> = self.parameters.ties.ids().collect();
        let root = self.sink.root(residual, micro_batch, &context);
        let backward = || root.map(|root| root.backward());
        let ((mut gradients, of_layers, deferred), beside) = gather(|| match weights {
            WeightGradients::Later => {
                let (gradients, deferred) = collect(tied, backward);
                (gradients, GradientsParams::new(), deferred)
            }
            // An inspection checks the gradients of each micro-batch, so layers must not add them to the sum.
            WeightGradients::AtOnce if inspects => (backward(), GradientsParams::new(), Vec::new()),
            WeightGradients::AtOnce => {
                used_once.retain(|id| !tied.contains(id));
                let (gradients, of_layers) = self.sums.adding_at_once(micro_batch, used_once, backward);
                (gradients, of_layers, Vec::new())
            }
        });
        let to_input = self.source.keep(micro_batch, &input, gradients.as_mut(), came_finite);
        let module = self.parameters.trained.computing();
        let gradients = gradients.map(|gradients| GradientsParams::from_grads(gradients, module)).unwrap_or_default();
        let gradients = joined(module, gradients, beside);
        let left_finite = !came_finite || to_input && SquaredNorms::of(module, &gradients).are_finite();
        let gradients = self.parameters.ties.exchange(module, micro_batch, gradients, waits)?;
        if !left_finite {
            self.add_culprit(micro_batch, Origin::Backward);
        }
        Ok(Differentiated { gradients: MicroBatchGradients { gradients, of_layers, deferred, weight }, came_finite })
    }
}
