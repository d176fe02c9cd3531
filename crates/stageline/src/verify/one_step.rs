//! Compares one optimizer step of a pipeline with the same step of a plain training loop, which runs on one thread
//! without a pipeline ([`OneStep`]). The parameters after the step are compared by name, bit for bit. If gradients
//! differ, this module finds the layer where the difference begins.
//!
//! The plain loop has the same micro-batches as the pipeline. If its step with unsplit backward passes differs from the
//! pipeline's, it splits the same backward passes into input gradient and weight gradient. So a deterministic device
//! gives the same bits. The gradients of split and unsplit backward passes must agree only within the tolerance,
//! because a weight that a stage uses three times or more has its gradients summed in a different order.
//!
//! Gradients are computed backwards from the loss. So a wrong backward pass changes the gradients of its own layer and
//! of all layers before it. Therefore, of all parameters whose gradients differ, the one nearest to the loss belongs to
//! the wrong layer.

use std::fmt;

use stageline_nn::Recompute;

use super::cause::Cause;
use super::difference::{self, Difference, relative, wide};
use super::error::VerifyError;
use super::models::Build;
use super::parameters::{ParameterDifference, differences};
use super::trial::MOST_OVERFLOWS;
use crate::build::builder::PipelineBuilder;
use crate::build::variants::Configured;
use crate::model::batch::Batch;
use crate::model::payload::Payload;
use crate::state::layout::NamedTensor;
use crate::update::parameter_gradient::ParameterGradient;

/// The comparison, by name, of a pipeline's parameters after one optimizer step with those of a plain training loop
/// (the same micro-batches on one thread, without a pipeline).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AfterOneStep {
    /// For each stage of the compared pipeline, in stage order, which activations its backward pass recomputes
    /// (activation recomputation).
    pub recompute: Vec<Recompute>,
    /// The number of parameters whose values after the step are compared, including frozen parameters and running
    /// statistics.
    pub parameters: usize,
    /// The parameters whose bits differ after one step of the pipeline and of a plain training loop, ordered from the
    /// loss to the model's input. The list is empty if the bits of all parameters are equal.
    pub differences: Vec<ParameterDifference>,
}

/// The largest number of differing parameters that the printed report lists.
const SHOWN: usize = 5;

impl fmt::Display for AfterOneStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recompute, parameters, differences } = self;
        let (how, count) = (recomputed(recompute), differences.len());
        if count == 0 {
            return writeln!(f, "  {how}: all {parameters} parameters are equal bit for bit");
        }
        writeln!(f, "  {how}: {count} of {parameters} parameters differ, the nearest to the loss first:")?;
        differences.iter().take(SHOWN).try_for_each(|difference| writeln!(f, "    {difference}"))?;
        match count.checked_sub(SHOWN) {
            Some(more @ 1..) => writeln!(f, "    and {more} more"),
            _ => Ok(()),
        }
    }
}

/// Describes, for the printed report, what each stage recomputes in its backward pass.
fn recomputed(policies: &[Recompute]) -> String {
    let recomputing: Vec<_> = policies.iter().enumerate().filter(|(_, one)| **one != Recompute::Nothing).collect();
    match (&recomputing[..], policies) {
        ([], _) => "without recomputation".to_owned(),
        ([(_, first), ..], all) if all.iter().all(|one| one == *first) => format!("recomputing {first}"),
        (some, _) => {
            let each: Vec<_> = some.iter().map(|(stage, policy)| format!("{policy} on stage {stage}")).collect();
            format!("recomputing {}", each.join(", "))
        }
    }
}

/// The results of one optimizer step that is made several times from the same parameters: by the pipeline as
/// configured, by the pipeline without recomputation, and by a plain training loop on one thread.
pub(super) struct OneStep {
    /// The tolerance: the largest relative difference between two gradients that count as equal. `None` if their bits
    /// must be equal, because all stages are on this host's CPU.
    bar: Option<f64>,
    /// The plain training loop's step, which the pipeline's step is compared with. Its backward passes are either
    /// unsplit, or split into input gradient and weight gradient as in the pipeline. They are split if all of the
    /// following holds:
    ///
    /// - The pipeline splits backward passes.
    /// - A step with unsplit backward passes differs from the pipeline's step.
    /// - Unsplit backward passes give the same result in two runs.
    /// - The gradients of split backward passes differ from those of unsplit ones at most by the tolerance.
    plain: Run,
    configured: Run,
    /// The pipeline's step without recomputation. `None` if the pipeline recomputes nothing.
    kept: Option<Run>,
    /// The stage and name of the last parameter whose gradient is wrong in a split backward pass (input gradient, then
    /// weight gradient): it differs from the gradient of an unsplit backward pass by more than the tolerance. `None` if
    /// there is none, or if the plain training loop ran no split backward passes.
    wrong_split: Option<(usize, String)>,
    /// The largest rounding difference in the plain training loop between the gradients of split backward passes (input
    /// gradient, then weight gradient) and of unsplit ones. `None` if the gradients are equal or were not compared, or
    /// if a difference exceeds the tolerance and so is more than rounding.
    split_rounding: Option<Difference>,
    /// Whether the pipeline splits backward passes into input gradient and weight gradient.
    splits: bool,
    /// Whether the plain training loop gives the same result in every run. True if two runs agreed, or if the
    /// pipeline's step agreed with the first run, so that no second run was needed.
    is_repeatable: bool,
    /// The comparisons of the pipeline's parameters after one step with those of a plain training loop. The first is
    /// for the pipeline as configured. If the pipeline recomputes, a second is for the pipeline without recomputation.
    comparisons: Vec<AfterOneStep>,
}

/// The result of one optimizer step, of a pipeline or of a plain training loop: the gradients, and the parameters after
/// the step.
struct Run {
    gradients: Vec<ParameterGradient>,
    parameters: Vec<NamedTensor>,
}

impl Run {
    /// Builds the pipeline of `builder`, computes a batch's gradients, and then makes one optimizer step on the batch.
    /// If a step is skipped, most often because gradients overflow, which lowers the loss scale, the step is repeated.
    /// At most [`MOST_OVERFLOWS`] steps are made in all.
    fn of<In: Payload, Out: Payload, Target: Payload>(
        builder: PipelineBuilder<In, Out, Target>,
        batch: &Batch<In, Target>,
    ) -> Result<Self, VerifyError> {
        let mut pipeline = builder.build()?;
        let gradients = pipeline.gradients(batch.clone())?;
        for _ in 0..MOST_OVERFLOWS {
            if pipeline.step(batch.clone())?.update.stepped() {
                break;
            }
        }
        Ok(Self { gradients, parameters: pipeline.named_tensors()? })
    }

    /// Finds the first parameter, from the loss backwards, whose gradients in this step and in the step `expected`
    /// differ by more than `bar` (relative to their norm) or are NaN. Returns the parameter's stage and name, or `None`
    /// if there is none. If `bar` is `None`, compares bits instead: those of the gradients, and if these are equal,
    /// those of the parameters after the step.
    fn first_apart(&self, expected: &Self, bar: Option<f64>) -> Option<(usize, String)> {
        let norm = expected.gradients.iter().flat_map(|gradient| wide(&gradient.summed));
        let norm = norm.map(|value| value * value).sum::<f64>().sqrt();
        let is_apart = |(found, expected): &(&ParameterGradient, &ParameterGradient)| {
            let (found, expected) = (&found.summed, &expected.summed);
            match bar {
                Some(bar) => {
                    let apart = relative(wide(found), wide(expected), norm);
                    apart.is_nan() || apart > bar
                }
                None => found.iter().map(|value| value.to_bits()).ne(expected.iter().map(|value| value.to_bits())),
            }
        };
        let gradients = self.gradients.iter().zip(&expected.gradients);
        if let Some((_, gradient)) = gradients.rev().find(is_apart) {
            return Some((gradient.stage, expected.name(gradient)));
        }
        if bar.is_some() {
            return None;
        }
        let found = self.parameters.iter().zip(&expected.parameters);
        let (_, tensor) = found.rev().find(|(found, expected)| found.data.as_bytes() != expected.data.as_bytes())?;
        Some((tensor.stage, tensor.name.to_string()))
    }

    /// Returns the name, in checkpoints, of the parameter that `gradient` belongs to.
    fn name(&self, gradient: &ParameterGradient) -> String {
        let ParameterGradient { stage, path, .. } = gradient;
        let named = self.parameters.iter().find(|tensor| tensor.stage == *stage && tensor.path == *path);
        named.map_or_else(|| format!("stage{stage}.{path}"), |tensor| tensor.name.to_string())
    }
}

impl OneStep {
    /// Makes one optimizer step on `batch` with the pipeline that `build` configures, with this pipeline without
    /// recomputation (if it recomputes), and with a plain training loop on one thread. `bar` is the tolerance for
    /// gradients on devices other than this host's CPU, which may sum in any order.
    pub(super) fn of<In: Payload, Out: Payload, Target: Payload>(
        build: &Build<'_, In, Out, Target>,
        batch: &Batch<In, Target>,
        bar: f64,
    ) -> Result<Self, VerifyError> {
        let configuration = Configured(build());
        let recompute = configuration.recompute().to_vec();
        let recomputes = recompute.iter().any(|recompute| *recompute != Recompute::Nothing);
        let (splits, on_host) = (!configuration.split_backwards().is_empty(), configuration.is_on_host());
        drop(configuration);

        let plain_loop = |splits| Run::of(Configured(build()).plain_loop(splits), batch);
        let mut plain = plain_loop(false)?;
        let configured = Run::of(build(), batch)?;
        let kept = recomputes.then(|| Run::of(Configured(build()).without_recomputation(), batch)).transpose()?;
        let (mut is_repeatable, mut wrong_split, mut split_rounding) = (true, None, None);
        let bar_of_bits = (!on_host).then_some(bar);
        let is_apart = |run: &Run| run.first_apart(&plain, bar_of_bits).is_some();
        if is_apart(&configured) || (!splits && kept.as_ref().is_some_and(is_apart)) {
            let again = plain_loop(false)?;
            is_repeatable = again.first_apart(&plain, bar_of_bits).is_none();
            if splits && is_repeatable {
                let halves = plain_loop(true)?;
                wrong_split = halves.first_apart(&plain, Some(bar));
                if wrong_split.is_none() {
                    let apart = difference::differences(&halves.gradients, &plain.gradients)?;
                    split_rounding = difference::worst(&apart).filter(|worst| worst.relative > 0.0).cloned();
                    plain = halves;
                }
            }
        }
        let compared = |recompute: Vec<Recompute>, run: &Run| -> Result<AfterOneStep, VerifyError> {
            let differences = differences(&run.parameters, &plain.parameters)?;
            Ok(AfterOneStep { recompute, parameters: plain.parameters.len(), differences })
        };
        let nothing = vec![Recompute::Nothing; recompute.len()];
        let mut comparisons = vec![compared(recompute, &configured)?];
        comparisons.extend(kept.as_ref().map(|kept| compared(nothing, kept)).transpose()?);
        let bar = bar_of_bits;
        Ok(Self { bar, splits, plain, configured, kept, wrong_split, split_rounding, is_repeatable, comparisons })
    }

    /// Returns the largest rounding difference in the plain training loop between the gradients of split backward
    /// passes (input gradient, then weight gradient) and of unsplit ones. `None` if the gradients are equal or were not
    /// compared, or if a difference exceeds the tolerance and so is more than rounding.
    pub(super) fn split_rounding(&self) -> Option<Difference> {
        self.split_rounding.clone()
    }

    /// Returns the comparisons of the pipeline's parameters after one step with those of a plain training loop: as
    /// configured, and without recomputation if the pipeline recomputes.
    pub(super) fn comparisons(&self) -> Vec<AfterOneStep> {
        self.comparisons.clone()
    }

    /// Returns the likely cause of the difference between the pipeline's step and the same step of a plain training
    /// loop. `None` if they are equal.
    pub(super) fn cause(&self) -> Option<Cause> {
        let apart = |run: &Run| run.first_apart(&self.plain, self.bar);
        let kept = self.kept.as_ref().map(apart);
        // The step without recomputation must agree with the plain loop, too. If backward passes are split, it is not
        // checked, because rounding may set it apart from the loop's unsplit passes.
        let judged = kept.clone().flatten().filter(|_| !self.splits);
        let (stage, name) = apart(&self.configured).or(judged)?;
        if !self.is_repeatable {
            return Some(Cause::DrawsRandomNumbers);
        }
        if kept == Some(None) {
            return Some(Cause::Recomputation { stage, name });
        }
        Some(match self.wrong_split.clone() {
            Some((stage, name)) => Cause::SplitBackward { stage, name },
            None => Cause::OtherBits { stage, name },
        })
    }
}
