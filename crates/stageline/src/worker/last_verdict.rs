//! A worker's knowledge of the verdict on its last training step ([`Last`]). A speculative step ends before its verdict
//! is known.

use crate::update::flush::Verdict;

/// A worker's knowledge of the verdict on its last training step.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Last {
    /// The verdict on the last training step is known, and the step has ended with it.
    Known,
    /// The last training step has ended with an assumed verdict, because the true one has not arrived yet. The value is
    /// the assumed verdict.
    Assumed(Verdict),
    /// The true verdict on the last training step differs from the assumed one. The value is the true verdict. The work
    /// on the following step is discarded. If the last step has ended with the assumed verdict, it is rolled back and
    /// ended again with the true one.
    Mispredicted(Verdict),
}
