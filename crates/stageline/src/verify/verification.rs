//! [`Verification`]: the result of comparing a training run with the same training on one device, and its printed
//! report.

use crate::verify::Bars;
use crate::verify::Compared;
use crate::verify::difference;
use crate::verify::{AfterOneStep, Cause, Difference};

use std::fmt;

/// The result of a verification: the differences between the verified run and its reference (the same training on one
/// device), and their likely cause. It is displayed as a report.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verification {
    /// The tolerances of this verification: the largest permitted differences between the verified run and its
    /// reference on one device.
    pub bars: Bars,
    /// The comparisons, by name, of a pipeline's parameters after one optimizer step with those of a plain training
    /// loop (the same micro-batches on one thread, without a pipeline). The first entry is for the pipeline as
    /// configured. If the pipeline recomputes activations, a second entry is for the pipeline without recomputation.
    /// The list is empty for a training loop of the user's own.
    pub parameters: Vec<AfterOneStep>,
    /// The largest rounding difference in the first step between the gradients of split backward passes (input
    /// gradient, then weight gradient) and of unsplit backward passes. It arises because split backward passes sum a
    /// weight's gradients in another order if a stage uses the weight three times or more.
    ///
    /// `None` if the gradients are equal or were not compared, or if the difference is larger than rounding
    /// ([`Cause::SplitBackward`]).
    pub split_rounding: Option<Difference>,
    /// The relative difference between each parameter's gradients in the verified run and in its reference on one
    /// device, at the first step, in layer order.
    pub gradients: Vec<Difference>,
    /// The training losses of every step, in order. Each entry has the loss of the verified run and the loss of its
    /// reference on one device.
    pub losses: Vec<Compared>,
    /// The mean validation loss after the last step, for the verified run and for its reference on one device. `None`
    /// if there were no validation batches.
    pub validation: Option<Compared>,
    /// The likely cause of the difference between the verified run and its reference on one device. `None` if the
    /// verification passes.
    pub cause: Option<Cause>,
}

impl Verification {
    /// Whether the verification passes. All gradients of the first step and the last loss must agree with the reference
    /// (the same training on one device) within the tolerances ([`Bars`]). The last loss is the validation loss, or
    /// without validation the loss of the last step. After one step, a pipeline on this host's CPU must also have the
    /// same parameters as a plain training loop, bit for bit. On other devices, its gradients must agree with the plain
    /// loop's within the tolerance.
    pub fn passes(&self) -> bool {
        self.cause.is_none()
    }

    /// Returns the entry of `gradients` with the largest relative difference between the verified run and its reference
    /// on one device. `None` if the model has no parameters.
    pub fn worst(&self) -> Option<&Difference> {
        difference::worst(&self.gradients)
    }

    /// Whether the verified run and its reference agree within the tolerances, in all gradients of the first step and
    /// in the last loss. The last loss is the validation loss, or without validation the loss of the last step.
    pub(super) fn agrees(&self) -> bool {
        let gradients = self.gradients.iter().all(|difference| difference.relative <= self.bars.gradient);
        let last = self.validation.or(self.losses.last().copied());
        gradients && last.is_none_or(|losses| losses.within(self.bars.loss))
    }

    /// Returns the index of the first step at which the losses of the verified run and its reference differ by more
    /// than the tolerance. `None` if there is no such step.
    pub(super) fn first_step_apart(&self) -> Option<usize> {
        self.losses.iter().position(|losses| !losses.within(self.bars.loss))
    }
}

impl Verification {
    /// Writes the report's section on the parameters after one step, compared with those of a plain training loop.
    fn write_parameters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parameters.is_empty() {
            return writeln!(
                f,
                "parameters after one step: not compared, because this loop does not give them by name"
            );
        }
        writeln!(
            f,
            "parameters after one step, by name, beside a plain loop over the same micro-batches on one thread:"
        )?;
        self.parameters.iter().try_for_each(|comparison| write!(f, "{comparison}"))?;
        if let Some(Difference { stage, path, relative }) = &self.split_rounding {
            writeln!(
                f,
                "  (the loop splits its backwards as the pipeline does: whole ones have other bits, by at most \
                 {relative:.1e} of a gradient's norm, in `{path}` of stage {stage}; a weight that a stage uses three \
                 times or more is summed in another order)"
            )?;
        }
        let differ = self.parameters.iter().any(|comparison| !comparison.differences.is_empty());
        if differ && self.passes() {
            writeln!(f, "  (such a device may add in any order, so only the gradients must agree)")?;
        }
        Ok(())
    }
}

/// The largest number of parameters, and of training steps, that the printed report of a verification lists.
pub(super) const SHOWN: usize = 5;

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bars, gradients, losses, validation, .. } = self;
        writeln!(f, "as configured, against the full batch on one device, from the same parameters:")?;
        writeln!(
            f,
            "gradients of the first step, largest difference first (at most {:.0e} of their norm):",
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
        self.write_parameters(f)?;
        match &self.cause {
            None => writeln!(f, "they train the same"),
            Some(cause) => writeln!(f, "they do NOT train the same: {cause}"),
        }
    }
}
