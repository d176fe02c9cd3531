//! The unit in which a log counts data ([`Unit`]).

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// The unit in which the log of a run counts the data of batches and the throughput. Pages and predictions also use it
/// for loss weights, such as the size of a batch and the noise scale of the gradient. This is right if the loss weight
/// of a sample is its number of trained tokens, or 1 for data without tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Tokens: for data whose samples are sequences of tokens, and for older logs.
    #[default]
    Tokens,
    /// Samples: for other data, such as images.
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
