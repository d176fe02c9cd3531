//! Proof on one's own model that a pipeline trains as one full batch on one device would.
//!
//! - `trial`: what is put to the proof: a pipeline, or a loop of one's own.
//! - `difference`: two sets of gradients, compared parameter by parameter.
//! - `diagnosis`: the likely cause of a difference, by what each known fault would give.
//! - `cause`: the known faults.

mod cause;
mod diagnosis;
mod difference;
mod trial;

use std::fmt;

pub use cause::{Cause, ClipScope, Whose};
pub use difference::Difference;
pub use trial::Trial;

use crate::build::builder::PipelineBuilder;
use crate::failure::build_error::BuildError;
use crate::failure::step_error::StepError;
use crate::model::batch::{Batch, BatchError};
use crate::model::payload::Payload;
use crate::pipeline::report::LossTerm;
use crate::threads::failure::BoxError;
use crate::update::parameter_gradient::ParameterGradient;
use crate::update::precision::Precision;
use diagnosis::Diagnosis;

/// Trains a model twice from one seed, once as it is configured, and once on one device with the full batch as one
/// micro-batch, in full precision and without recomputation; and says whether that comes to the same, and if not, why.
///
/// ```no_run
/// # use burn::tensor::Tensor;
/// # use stageline::{Batch, PipelineBuilder, Verify};
/// # fn check(
/// #     build: impl Fn() -> PipelineBuilder<Tensor<2>, Tensor<2>>,
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

/// What a difference must not be above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bars {
    /// Of each parameter's gradient at the first step, relative to its norm.
    pub gradient: f64,
    /// Of the validation losses; where there are none, of the last training losses. Of losses above 1 relative.
    pub loss: f64,
}

impl Bars {
    /// In f32 1e-3 for both; in a lower precision 0.1, for gradients of few samples have few bits, and the usual 0.02.
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
    /// 100 steps, against one full batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many steps both are trained; at least 1.
    pub fn steps(self, steps: usize) -> Self {
        Self { steps: steps.max(1), ..self }
    }

    /// Into how many micro-batches the reference is cut, where the full batch does not fit on its device, or batches are cut
    /// by hand. Then only what this leaves out is proved.
    pub fn reference_micro_batches(self, micro_batches: usize) -> Self {
        Self { reference_micro_batches: micro_batches.max(1), ..self }
    }

    /// What a difference must not be above; if not set, what is usual for the precision ([`Bars::of`]).
    pub fn bars(self, bars: Bars) -> Self {
        Self { bars: Some(bars), ..self }
    }

    /// Puts a pipeline to the proof.
    ///
    /// `build` makes it anew, with the same parameters every time ([`seeded`](crate::seeded)); `batch` gives the batch of a
    /// step; `validation` are batches that are not trained on.
    ///
    /// # Errors
    /// Where one of the runs fails. That they differ is no error.
    pub fn pipeline<In: Payload, Target: Payload>(
        self,
        build: impl Fn() -> PipelineBuilder<In, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Verification, VerifyError> {
        self.trial(build().build()?, build, batch, validation)
    }

    /// Puts a pipeline to the proof against the uncut model: `uncut` builds a pipeline of one stage, whose forward is that of the whole
    /// model, from the same parameters in the same order. [`pipeline`](Self::pipeline) runs the stages of `build` on one device
    /// instead, where a mistake in the cut, such as a skip connection that is left out, is made on both sides.
    ///
    /// # Errors
    /// As for [`pipeline`](Self::pipeline).
    pub fn pipeline_and_uncut<In: Payload, Target: Payload>(
        self,
        build: impl Fn() -> PipelineBuilder<In, Target>,
        uncut: impl Fn() -> PipelineBuilder<In, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Verification, VerifyError> {
        self.prove(build().build()?, (&build, Some(&uncut)), batch, validation)
    }

    /// Puts a loop of one's own to the proof, against the same model built by `build`. Its gradients must be in the order of
    /// that model's parameters.
    ///
    /// # Errors
    /// As for [`pipeline`](Self::pipeline).
    pub fn trial<In: Payload, Target: Payload>(
        self,
        trial: impl Trial<In, Target>,
        build: impl Fn() -> PipelineBuilder<In, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Verification, VerifyError> {
        self.prove(trial, (&build, None), batch, validation)
    }

    fn prove<In: Payload, Target: Payload>(
        self,
        mut trial: impl Trial<In, Target>,
        (build, uncut): (&Build<'_, In, Target>, Option<&Build<'_, In, Target>>),
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Verification, VerifyError> {
        let configuration = build();
        let bars = self.bars.unwrap_or_else(|| Bars::of(configuration.configured_precision()));

        let configured_gradients = trial.gradients(batch(0)).map_err(VerifyError::Trial)?;
        let configured = self.train(&mut trial, &batch, validation)?;
        drop(trial);
        let (reference, reference_gradients) = self.reference(uncut.unwrap_or(build), &batch, validation)?;

        let gradients = difference::differences(&configured_gradients, &reference_gradients)?;
        let losses = configured.losses.into_iter().zip(reference.losses);
        let losses = losses.map(|(configured, reference)| Compared { configured, reference }).collect();
        let validation = configured.validation.zip(reference.validation);
        let validation = validation.map(|(configured, reference)| Compared { configured, reference });
        let mut verification = Verification { bars, gradients, losses, validation, cause: None };
        if !verification.agrees() {
            let diagnosis = Diagnosis {
                build,
                is_uncut: uncut.is_some(),
                batch: batch(0),
                configured: &configured_gradients,
                reference: &reference_gradients,
                differences: &verification.gradients,
                reference_micro_batches: self.reference_micro_batches,
                bar: bars.gradient,
            };
            let cause = diagnosis.cause()?;
            verification.cause =
                Some(cause.unwrap_or_else(|| Cause::AfterTheGradients { step: verification.parting() }));
        }
        Ok(verification)
    }

    fn reference<In: Payload, Target: Payload>(
        self,
        build: impl Fn() -> PipelineBuilder<In, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<(Trained, Vec<ParameterGradient>), VerifyError> {
        let mut reference = build().reference(self.reference_micro_batches).build()?;
        let gradients = match reference.gradients(batch(0)) {
            Err(StepError::Batch(BatchError::Count { given, .. })) => return Err(VerifyError::CutByHand { given }),
            gradients => gradients?,
        };
        Ok((self.train(&mut reference, batch, validation)?, gradients))
    }

    fn train<In: Payload, Target: Payload>(
        self,
        trial: &mut impl Trial<In, Target>,
        batch: impl Fn(usize) -> Batch<In, Target>,
        validation: &[Batch<In, Target>],
    ) -> Result<Trained, VerifyError> {
        let losses = (0..self.steps).map(|step| trial.step(batch(step))).collect::<Result<_, _>>();
        let losses = losses.map_err(VerifyError::Trial)?;
        let evaluate = |batch: &Batch<In, Target>| trial.evaluate(batch.clone());
        let batches = validation.iter().map(evaluate).collect::<Result<Vec<_>, _>>().map_err(VerifyError::Trial)?;
        Ok(Trained { losses, validation: (!batches.is_empty()).then(|| together(&batches)) })
    }
}

/// Builds a pipeline anew, with the same parameters every time.
type Build<'a, In, Target> = dyn Fn() -> PipelineBuilder<In, Target> + 'a;

/// The loss of all batches together, term by term.
fn together(batches: &[Vec<LossTerm>]) -> f64 {
    let terms = batches.iter().map(Vec::len).max().unwrap_or(0);
    let of_term = |term: usize| {
        let of_batches = || batches.iter().filter_map(|terms| terms.get(term)).filter(|term| term.weight > 0.0);
        let weight: f64 = of_batches().map(|term| term.weight).sum();
        let sum: f64 = of_batches().map(|term| term.loss * term.weight).sum();
        if weight > 0.0 { sum / weight } else { 0.0 }
    };
    (0..terms).map(of_term).sum()
}

struct Trained {
    losses: Vec<f64>,
    /// `None` where there is nothing to evaluate.
    validation: Option<f64>,
}

/// Two losses that should be one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// As configured.
    pub configured: f64,
    /// Of the full batch on one device.
    pub reference: f64,
}

impl Compared {
    /// How far they are from each other.
    pub fn difference(self) -> f64 {
        (self.configured - self.reference).abs()
    }

    /// Whether that is no more than this; of losses above 1, as a share.
    fn within(self, bar: f64) -> bool {
        self.difference() <= bar * self.reference.abs().max(1.0)
    }
}

/// What two trainings of a model come to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verification {
    /// What was asked of it.
    pub bars: Bars,
    /// How far apart the gradients of the first step are, as they were summed or as the optimizers got them, whichever is more,
    /// parameter by parameter in layer order.
    pub gradients: Vec<Difference>,
    /// The losses of all steps.
    pub losses: Vec<Compared>,
    /// The loss after them on what was not trained on, if there was something.
    pub validation: Option<Compared>,
    /// Why it does not pass, as far as can be told; `None` where it does.
    pub cause: Option<Cause>,
}

impl Verification {
    /// Whether both trainings come to the same.
    pub fn passes(&self) -> bool {
        self.cause.is_none()
    }

    /// The parameter whose gradients are the furthest apart.
    pub fn worst(&self) -> Option<&Difference> {
        difference::worst(&self.gradients)
    }

    fn agrees(&self) -> bool {
        let gradients = self.gradients.iter().all(|difference| difference.relative <= self.bars.gradient);
        let last = self.validation.or(self.losses.last().copied());
        gradients && last.is_none_or(|losses| losses.within(self.bars.loss))
    }

    /// The first step whose loss is apart.
    fn parting(&self) -> Option<usize> {
        self.losses.iter().position(|losses| !losses.within(self.bars.loss))
    }
}

/// How many parameters and steps a report shows.
const SHOWN: usize = 5;

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bars, gradients, losses, validation, .. } = self;
        writeln!(f, "as configured, against the full batch on one device, from the same parameters:")?;
        writeln!(
            f,
            "gradients of the first step, furthest apart first (at most {:.0e} of their norm):",
            bars.gradient
        )?;
        let mut worst: Vec<_> = gradients.iter().collect();
        worst.sort_by(|a, b| b.relative.total_cmp(&a.relative));
        for difference in worst.iter().take(SHOWN) {
            writeln!(f, "  {difference}")?;
        }
        writeln!(f, "losses: {:>13} {:>12} {:>12}", "as configured", "full batch", "difference")?;
        let mut steps: Vec<_> = (0..SHOWN).map(|row| row * (losses.len() - 1) / (SHOWN - 1)).collect();
        steps.dedup();
        for step in steps {
            let Compared { configured, reference } = losses[step];
            let difference = losses[step].difference();
            writeln!(f, "  step {step:>5} {configured:>9.6} {reference:>12.6} {difference:>12.1e}")?;
        }
        if let Some(compared @ Compared { configured, reference }) = validation {
            let difference = compared.difference();
            let most = bars.loss;
            writeln!(f, "validation {configured:>10.6} {reference:>12.6} {difference:>12.1e} (at most {most:.0e})")?;
        }
        match &self.cause {
            None => writeln!(f, "they train the same"),
            Some(cause) => writeln!(f, "they do NOT train the same: {cause}"),
        }
    }
}

/// Why a verification could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A pipeline could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The reference, or a step to find the cause, failed. Where it is the memory, cut the reference by
    /// [`Verify::reference_micro_batches`].
    #[error("the reference failed: {0}")]
    Reference(#[from] StepError),
    /// Batches are cut by hand, and cannot be put together to a full one.
    #[error(
        "batches are cut by hand into {given} micro-batches, which cannot be put together; give the reference as many, by \
         `.reference_micro_batches({given})`, or whole batches"
    )]
    CutByHand {
        /// Into how many.
        given: usize,
    },
    /// What was put to the proof failed.
    #[error("the training that is verified failed: {0}")]
    Trial(BoxError),
    /// Its gradients are not those of the model.
    #[error(
        "gradient {at} of the training that is verified is {found}, where the model has {expected}; give the gradients of all \
         trained parameters in the order of the model"
    )]
    Gradients {
        /// The first one that is another.
        at: usize,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
}
