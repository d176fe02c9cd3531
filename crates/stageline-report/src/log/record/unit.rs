//! The unit in which a log counts data ([`Unit`]).

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// The unit in which the log of a run counts the data of batches and the throughput. Texts about the run use it as
/// well, for the sizes of batches and for the noise scale of the gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// The unit for data whose samples are sequences of tokens, and of older logs.
    #[default]
    Tokens,
    /// The unit for other data, such as images.
    Samples,
}

impl Unit {
    /// Returns the noun for one of the unit: `token` or `sample`.
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
