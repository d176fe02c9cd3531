//! [`Verification`]: the result of a verification, and its printed report.

use crate::verify::Bars;
use crate::verify::Compared;
use crate::verify::difference;
use crate::verify::{Cause, Difference};

use std::fmt;

/// The result of a verification: the differences between two trainings of a model, and their cause.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verification {
    /// The largest differences that pass.
    pub bars: Bars,
    /// The difference of each parameter's gradient at the first step, in layer order: of the sums or of the clipped
    /// gradients, whichever is larger.
    pub gradients: Vec<Difference>,
    /// The training losses of all steps.
    pub losses: Vec<Compared>,
    /// The losses on the validation batches after the last step; `None` if there were none.
    pub validation: Option<Compared>,
    /// The likely cause of the difference; `None` if the verification passes.
    pub cause: Option<Cause>,
}

impl Verification {
    /// Whether both trainings agree within the bars.
    pub fn passes(&self) -> bool {
        self.cause.is_none()
    }

    /// Returns the largest difference of a parameter's gradients; `None` if there are no parameters.
    pub fn worst(&self) -> Option<&Difference> {
        difference::worst(&self.gradients)
    }

    /// Whether all gradients of the first step and the last loss are within the bars. The last loss is that of the
    /// validation, or of the last step if there is no validation.
    pub(super) fn agrees(&self) -> bool {
        let gradients = self.gradients.iter().all(|difference| difference.relative <= self.bars.gradient);
        let last = self.validation.or(self.losses.last().copied());
        gradients && last.is_none_or(|losses| losses.within(self.bars.loss))
    }

    /// Returns the first step whose training losses differ by more than the bar.
    pub(super) fn first_step_apart(&self) -> Option<usize> {
        self.losses.iter().position(|losses| !losses.within(self.bars.loss))
    }
}

/// The largest number of parameters, and of steps, that the printed report shows.
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
        match &self.cause {
            None => writeln!(f, "they train the same"),
            Some(cause) => writeln!(f, "they do NOT train the same: {cause}"),
        }
    }
}
