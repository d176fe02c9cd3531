//! Verification: checks, for a user's own model, that a pipeline trains as one full batch on one device would.
//!
//! [`Verify`] is the entry point. Input: a closure that builds the pipeline, or a custom training loop ([`Trial`]), and
//! batches. Output: a [`Verification`] with all differences and their likely cause. This folder owns the second, plain
//! training run (the reference). It compares the gradients and losses of two runs, and the parameters after one step
//! with those of a plain training loop (without a pipeline). To recognise a known bug, it predicts the wrong gradients
//! that the bug would give. Losses, loss weights and gradients of single micro-batches are added up and compared here
//! only to find a bug; `model` defines loss weights and splits batches for every pass. This folder must not run stages
//! itself, which a pipeline or the user's loop does, and must not change the verified run.
//!
//! This file executes both training runs and compares their losses ([`Compared`]) within tolerances ([`Bars`]).
//!
//! - `trial`: the trait of a training run to verify (`Trial`): a pipeline, or a custom loop.
//! - `verification`: the result of a verification, and its printed report (`Verification`).
//! - `one_step`: compares one optimizer step with the step of a plain loop on one thread (`Run`), with the configured
//!   recomputation and without (`OneStep`, `AfterOneStep`, which lists each stage's `Recompute`).
//! - `parameters`: the comparison of parameters by name, bit for bit, with distances in units in the last place
//!   (`ParameterDifference`).
//! - `difference`: the comparison of two sets of gradients, parameter by parameter, relative to their norm
//!   (`Difference`).
//! - `diagnosis`: the search for the likely cause of a difference (`Diagnosis`). It runs each micro-batch alone, and
//!   tests whether the losses, weights and gradients add up to those of the whole batch. It then looks for the known
//!   bug that would give the gradients found. Gradients of single micro-batches come from probes, which are pipelines
//!   that compute gradients without a step.
//! - `evidence`: the values that the search compares: sums over micro-batches (`Parts`), and the gradients that known
//!   bugs would give (`Predictions`).
//! - `models`: the closures that build the verified model and its reference (`Models`).
//! - `cause`: the known bugs, each with its printed advice (`Cause`, `Whose`, `ClipScope`).
//! - `flat`: arithmetic with all gradients of a model as one flat vector (`Flat`).
//! - `error`: why a verification cannot be completed (`VerifyError`), such as a closure that builds different models.

mod cause;
mod diagnosis;
mod difference;
mod error;
mod evidence;
mod flat;
mod models;
mod one_step;
mod parameters;
mod trial;
mod verification;

pub use cause::{Cause, ClipScope, Whose};
pub use difference::Difference;
pub use error::VerifyError;
pub use one_step::AfterOneStep;
pub use parameters::ParameterDifference;
pub use trial::Trial;
pub use verification::Verification;

use crate::build::builder::PipelineBuilder;
use crate::build::variants::Configured;
use crate::failure::step_error::StepError;
use crate::model::batch::Batch;
use crate::model::batch_error::BatchError;
use crate::model::payload::Payload;
use crate::pipeline::report::means_over;
use crate::threads::failure::BoxError;
use crate::update::parameter_gradient::ParameterGradient;
use crate::update::precision::Precision;
use diagnosis::Diagnosis;
use models::Models;
use one_step::OneStep;

/// Verifies that a pipeline or a custom loop trains as one full batch on one device would.
///
/// The model is trained twice from the same initial parameters: as configured, and as the reference on one device. The
/// reference runs the full batch as one micro-batch by default, in full precision and without activation recomputation.
/// The result says whether gradients and losses agree, and if not, why.
///
/// A pipeline also makes one optimizer step as configured, and another one without recomputation if it recomputes.
/// After each of these steps, the pipeline's parameters are compared by name with those of a plain training loop: the
/// same micro-batches on one thread, without a pipeline. On the CPU of this host the parameters must be equal bit for
/// bit. On other devices only their gradients must agree within the tolerance.
///
/// A pipeline may split its backward passes into input gradient and weight gradient, as in zero-bubble schedules. The
/// plain loop first runs unsplit backward passes. If the results differ, it runs again with the same split backward
/// passes as the pipeline, and the pipeline is compared with this second run instead. The first comparison stands in
/// two cases:
///
/// - The plain loop gives different results in two runs with unsplit backward passes.
/// - The gradients of split and unsplit backward passes differ by more than the tolerance.
///
/// ```no_run
/// # use burn::tensor::Tensor;
/// # use stageline::{Batch, PipelineBuilder, Verify};
/// # fn check(
/// #     build: impl Fn() -> PipelineBuilder<Tensor<2>, Tensor<2>, Tensor<2>>,
/// #     batch: impl Fn(usize) -> Batch<Tensor<2>, Tensor<2>>,
/// #     held_out: Vec<Batch<Tensor<2>, Tensor<2>>>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let verification = Verify::new().steps(50).pipeline(build, batch, &held_out)?;
/// print!("{verification}");
/// assert!(verification.passes());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "run it with `pipeline` or `trial`"]
pub struct Verify {
    steps: usize,
    reference_micro_batches: usize,
    bars: Option<Bars>,
}

/// The tolerances of a verification: the largest permitted differences between a training run and its reference (the
/// full batch on one device).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bars {
    /// The tolerance for the gradients of the first step: the largest difference between a parameter's gradients in the
    /// verified run and in its reference on one device. It is relative to the norm of the reference's gradient.
    pub gradient: f64,
    /// The tolerance for losses: the largest difference between the validation losses of the verified run and its
    /// reference on one device, or without validation between their last training losses. The difference is absolute
    /// for losses up to 1, and relative for larger losses.
    pub loss: f64,
}

impl Bars {
    /// Returns the default tolerances for a precision. In full precision they are 1e-3 for gradients and losses. In
    /// BF16 and F16 they are 0.1 for gradients, which have few correct bits there, and 0.02 for losses.
    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::Full => Self { gradient: 1e-3, loss: 1e-3 },
            Precision::Bf16 | Precision::F16 => Self { gradient: 0.1, loss: 0.02 },
        }
    }
}

impl Default for Verify {
    fn default() -> Self {
        Self { steps: 100, reference_micro_batches: 1, bars: None }
    }
}

impl Verify {
    /// Creates a verification of 100 training steps, with the default tolerances. Its reference (the run on one device)
    /// trains on each batch as a single micro-batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of training steps of the verified run and of its reference (the run on one device). The default
    /// is 100. A value of 0 counts as 1.
    pub fn steps(self, steps: usize) -> Self {
        Self { steps: steps.max(1), ..self }
    }

    /// Sets the number of micro-batches per batch in the reference (the run on one device). The default is 1, and a
    /// value of 0 counts as 1. Use more if the full batch does not fit into the device memory, or if batches are split
    /// into micro-batches by hand. The verification then misses bugs that such a split causes, because the reference
    /// has them too.
    pub fn reference_micro_batches(self, micro_batches: usize) -> Self {
        Self { reference_micro_batches: micro_batches.max(1), ..self }
    }

    /// Sets the tolerances: the largest permitted differences in gradients and losses. If unset, they depend on the
    /// precision ([`Bars::of`]).
    pub fn bars(self, bars: Bars) -> Self {
        Self { bars: Some(bars), ..self }
    }

    /// Verifies that a pipeline trains as its own stages would on one device (the reference). Returns the differences
    /// and their likely cause.
    ///
    /// `build` returns the builder of the pipeline, each time with the same initial parameters
    /// ([`seeded`](crate::seeded)). `batch` returns the batch of a step, given the step's index from 0. `validation`
    /// lists held-out batches, and may be empty.
    ///
    /// # Errors
    /// Returns [`VerifyError`] in these cases, but not for a difference between the two runs:
    ///
    /// - A pipeline cannot be built.
    /// - A step of the verified pipeline or of the reference fails.
    /// - `build` returns models with different parameters on different calls.
    /// - Batches are split into micro-batches by hand, and the reference uses another number of micro-batches.
    pub fn pipeline<In: Payload, Out: Payload, Target: Payload>(
        self,
        build: impl Fn() -> PipelineBuilder<In, Out, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Verification, VerifyError> {
        self.verify(build().build()?, Models { build: &build, uncut: None, is_pipeline: true }, batch, validation)
    }

    /// Verifies that a pipeline trains as the undivided model would. `uncut` returns the builder of a pipeline whose
    /// only stage is the whole model, with the same parameters in the same order. The other arguments are those of
    /// [`pipeline`](Self::pipeline).
    ///
    /// Unlike this method, [`pipeline`](Self::pipeline) finds no mistake in the partition into stages, such as a
    /// missing skip connection: it compares with the same stages on one device, so both runs have the mistake.
    ///
    /// # Errors
    /// Returns the errors of [`pipeline`](Self::pipeline). Also returns [`VerifyError`] if a step of the undivided
    /// model fails, or if the undivided model has other parameters than the pipeline.
    pub fn pipeline_and_uncut<In: Payload, Out: Payload, Target: Payload>(
        self,
        build: impl Fn() -> PipelineBuilder<In, Out, Target>,
        uncut: impl Fn() -> PipelineBuilder<In, Out, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Verification, VerifyError> {
        self.verify(
            build().build()?,
            Models { build: &build, uncut: Some(&uncut), is_pipeline: true },
            batch,
            validation,
        )
    }

    /// Verifies a training loop of the user's own (`trial`). Its losses, and its gradients at the first step, are
    /// compared with those of plain training on one device.
    ///
    /// `build` returns the builder of the model for plain training. The loop's model must begin with the same
    /// parameters; other values show as a difference in the result. The loop must return gradients in the order of this
    /// model's parameters. `batch` returns the batch of a step, given the step's index from 0. `validation` lists
    /// held-out batches, and may be empty.
    ///
    /// # Errors
    /// Returns [`VerifyError`] if a step of the loop or of the training on one device fails, if the model cannot be
    /// built, or if the loop's gradients do not match the model's parameters in number or size. Also returns an error
    /// for batches that are split by hand, as [`pipeline`](Self::pipeline) does.
    pub fn trial<In: Payload, Out: Payload, Target: Payload>(
        self,
        trial: impl Trial<In, Target>,
        build: impl Fn() -> PipelineBuilder<In, Out, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Verification, VerifyError> {
        self.verify(trial, Models { build: &build, uncut: None, is_pipeline: false }, batch, validation)
    }

    /// Runs the verified training (`trial`) and its reference on one device, and compares their gradients and losses.
    /// The reference trains the undivided model `models.uncut` if the caller gave one, and otherwise the stages of
    /// `models.build`.
    fn verify<In: Payload, Out: Payload, Target: Payload>(
        self,
        mut trial: impl Trial<In, Target>,
        models: Models<'_, In, Out, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Verification, VerifyError> {
        let Models { build, uncut, is_pipeline } = models;
        let configuration = Configured(build());
        let bars = self.bars.unwrap_or_else(|| Bars::of(configuration.precision()));

        let configured_gradients = trial.gradients(batch(0)).map_err(VerifyError::Trial)?;
        let configured = self.train(&mut trial, &batch, validation).map_err(VerifyError::Trial)?;
        drop(trial);
        let (reference, reference_gradients) = self.reference(uncut.unwrap_or(build), &batch, validation)?;

        let one_step = is_pipeline.then(|| OneStep::of(build, &batch(0), bars.gradient)).transpose()?;
        let parameters = one_step.as_ref().map(OneStep::comparisons).unwrap_or_default();
        let split_rounding = one_step.as_ref().and_then(OneStep::split_rounding);

        let gradients = difference::differences(&configured_gradients, &reference_gradients)?;
        let losses = configured.losses.into_iter().zip(reference.losses);
        let losses = losses.map(|(configured, reference)| Compared { configured, reference }).collect();
        let validation = configured.validation.zip(reference.validation);
        let validation = validation.map(|(configured, reference)| Compared { configured, reference });
        let of_bits = one_step.as_ref().and_then(OneStep::cause);
        let cause = of_bits.clone();
        let mut verification = Verification { bars, parameters, split_rounding, gradients, losses, validation, cause };
        if !verification.agrees() {
            let diagnosis = Diagnosis {
                build,
                is_uncut: uncut.is_some(),
                batch: batch(0),
                configured: &configured_gradients,
                reference: &reference_gradients,
                differences: &verification.gradients,
                one_step: one_step.as_ref(),
                reference_micro_batches: self.reference_micro_batches,
                bar: bars.gradient,
            };
            let cause = diagnosis.cause()?.or(of_bits);
            verification.cause =
                Some(cause.unwrap_or_else(|| Cause::AfterTheGradients { step: verification.first_step_apart() }));
        }
        Ok(verification)
    }

    /// Trains the reference of a verification on one device. Returns its losses, and the gradients of its first step.
    fn reference<In: Payload, Out: Payload, Target: Payload>(
        self,
        build: impl Fn() -> PipelineBuilder<In, Out, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<(Trained, Vec<ParameterGradient>), VerifyError> {
        let mut reference = Configured(build()).reference(self.reference_micro_batches).build()?;
        let gradients = match reference.gradients(batch(0)) {
            Err(StepError::Batch(BatchError::Count { given, .. })) => return Err(VerifyError::CutByHand { given }),
            gradients => gradients?,
        };
        let trained = self.train(&mut reference, batch, validation).map_err(|error| match error.downcast() {
            Ok(error) => VerifyError::Reference(*error),
            Err(other) => VerifyError::Trial(other),
        })?;
        Ok((trained, gradients))
    }

    /// Runs all training steps of `trial`, the verified run or its reference, and then evaluates the validation
    /// batches. Returns the losses.
    fn train<In: Payload, Target: Payload>(
        self,
        trial: &mut impl Trial<In, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Trained, BoxError> {
        let losses = (0..self.steps).map(|step| trial.step(batch(step))).collect::<Result<_, _>>()?;
        let evaluate = |batch: &Batch<In, Target>| trial.evaluate(batch.clone());
        let batches = validation.iter().map(evaluate).collect::<Result<Vec<_>, _>>()?;
        let loss = || means_over(batches.iter().map(|terms| &terms[..])).iter().map(|term| term.loss).sum();
        Ok(Trained { losses, validation: (!batches.is_empty()).then(loss) })
    }
}

/// The training losses and the validation loss of one of the two runs that a verification compares.
pub(super) struct Trained {
    /// The loss of every training step, in step order, as [`Trial::step`] returns it.
    losses: Vec<f64>,
    /// The validation loss over all validation batches after the last training step. Each loss term is averaged over
    /// the batches, weighted by their loss weights, and the terms are added. `None` if there are no validation batches.
    validation: Option<f64>,
}

/// A pair of losses that a verification compares, for one step or for the validation: the loss of the verified run, and
/// the loss of its reference on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The loss of the verified run, with the user's configuration.
    pub configured: f64,
    /// The loss of the reference, which trains with the full batch on one device.
    pub reference: f64,
}

impl Compared {
    /// Returns the absolute difference between the loss of the verified run and the loss of its reference on one
    /// device. Both belong to the same training step, or to the validation.
    pub fn difference(self) -> f64 {
        (self.configured - self.reference).abs()
    }

    /// Whether the losses of the verified run and its reference differ by at most the tolerance `bar`. The difference
    /// is absolute if the magnitude of the reference's loss is at most 1, and otherwise relative to that loss. Two
    /// losses that are NaN agree: both steps had no unmasked target, or were skipped because they were not finite.
    fn within(self, bar: f64) -> bool {
        let both_nan = self.configured.is_nan() && self.reference.is_nan();
        // The difference of two equal infinite losses is NaN, so such losses are compared directly.
        both_nan || self.configured == self.reference || self.difference() <= bar * self.reference.abs().max(1.0)
    }
}
