//! The unit in which a log counts data ([`Unit`]).

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// The unit in which a run's log counts batch sizes and throughput. Pages and predictions also use it for loss weights,
/// such as the gradient's noise scale. They assume that a sample's loss weight is its number of unmasked tokens, or 1
/// for data without tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Count tokens. Used for datasets of token sequences, and for older logs.
    #[default]
    Tokens,
    /// Count samples. Used for datasets without tokens, such as images.
    Samples,
}

impl Unit {
    /// Returns the name of the unit in the singular: `token` or `sample`.
    pub fn one(self) -> &'static str {
        match self {
            Self::Tokens => "token",
            Self::Samples => "sample",
        }
    }
}

impl Display for Unit {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        write!(to, "{}s", self.one())
    }
}
