//! Whether a worker knows or only assumes the verdict on its last training step: step the optimizers, or skip
//! ([`Last`]). A speculative step ends before its verdict is known.

use crate::update::flush::Verdict;

/// Whether a worker knows the verdict on its last training step (step the optimizers, or skip the step) or only assumes
/// it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Last {
    /// The worker knows the verdict on its last training step, and has carried it out.
    Known,
    /// The worker has ended its last training step with an assumed verdict (the value), before the true one has
    /// arrived.
    Assumed(Verdict),
    /// The true verdict on the worker's last training step (the value) differs from the assumed one, so work on the
    /// following step is discarded. If the worker has acted on the assumed verdict, it rolls its last step back and
    /// ends it again with the true verdict.
    Mispredicted(Verdict),
}
