//! The cut of a model ([`Cut`]): the partition of its layers into pipeline stages.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use stageline_schedule::{BalanceError, SpeedError};

/// A cut: the partition of a model's layers, in order, into pipeline stages. It is stored as the zero-based index of
/// each stage's first layer.
///
/// A cut is written as a string such as `0,3,6`: three stages, of which the second begins with layer 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut(Vec<usize>);

impl Cut {
    /// Creates a cut (a partition of a model's layers into stages) from `starts`, the zero-based index of every stage's
    /// first layer.
    ///
    /// # Errors
    /// Returns [`CutError::Starts`] if the first stage does not begin with layer 0, or a stage does not begin after the
    /// first layer of the stage before.
    pub fn new(starts: impl IntoIterator<Item = usize>) -> Result<Self, CutError> {
        let starts: Vec<_> = starts.into_iter().collect();
        let ascends = starts.windows(2).all(|pair| pair[0] < pair[1]);
        if starts.first() == Some(&0) && ascends { Ok(Self(starts)) } else { Err(CutError::Starts { starts }) }
    }

    /// Creates a cut (a partition of a model's layers into stages) from the layer range of each stage. There must be at
    /// least one range, and each range must begin where the previous one ends. This is not checked.
    pub(super) fn of(ranges: Vec<Range<usize>>) -> Self {
        Self(ranges.into_iter().map(|range| range.start).collect())
    }

    /// Returns the number of stages into which the cut divides the model's layers.
    pub fn stages(&self) -> usize {
        self.0.len()
    }

    /// Returns the layers of every stage, in stage order, for a model of `layers` layers. Each entry is a range of
    /// zero-based layer indices.
    ///
    /// # Errors
    /// Returns [`CutError::Layers`] if a stage begins after the last layer of the model.
    pub fn ranges(&self, layers: usize) -> Result<Vec<Range<usize>>, CutError> {
        let last = *self.0.last().expect("a cut has a stage");
        if last >= layers {
            return Err(CutError::Layers { start: last, layers });
        }
        let ends = self.0.iter().skip(1).copied().chain([layers]);
        Ok(self.0.iter().copied().zip(ends).map(|(start, end)| start..end).collect())
    }
}

impl FromStr for Cut {
    type Err = CutError;

    fn from_str(text: &str) -> Result<Self, CutError> {
        let numbers = text.split(',').map(|number| number.trim().parse());
        Self::new(numbers.collect::<Result<Vec<_>, _>>().map_err(|_| CutError::Text { text: text.to_owned() })?)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starts: Vec<_> = self.0.iter().map(usize::to_string).collect();
        write!(f, "{}", starts.join(","))
    }
}

/// The reason why a model's layers cannot be partitioned into the given stages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// The string for a cut (a partition of a model's layers into stages) is invalid. Give the zero-based index of
    /// every stage's first layer, such as `0,3,6`.
    #[error("`{text}` is not a cut; give the first layer of every stage, such as 0,3,6")]
    Text {
        /// The invalid string that was given as a cut (a partition of the layers). It is not a list of layer indices
        /// such as `0,3,6`.
        text: String,
    },
    /// The list of every stage's first layer is invalid. It must begin with 0, and each index must be larger than the
    /// one before.
    #[error(
        "a cut at layers {starts:?}: the first stage begins with layer 0, and each other stage behind the one before"
    )]
    Starts {
        /// The rejected list: the zero-based index of every stage's first layer. It does not begin with 0, or does not
        /// ascend.
        starts: Vec<usize>,
    },
    /// A stage of the cut would begin after the model's last layer. Begin it with an earlier layer, or use fewer
    /// stages.
    #[error(
        "a stage begins with layer {start}, and the model has {layers} layers, counted from 0; begin it with an earlier one"
    )]
    Layers {
        /// Zero-based index of the last stage's first layer, which is beyond the model's last layer.
        start: usize,
        /// The number of layers of the model, which is too small for the cut (the partition of the layers into stages).
        layers: usize,
    },
    /// The layers cannot be partitioned into zero stages, or into more stages than there are layers.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// The layers cannot be partitioned among devices of different speed. There are zero stages or more stages than
    /// layers, or a speed is not a finite number above 0.
    #[error(transparent)]
    Speeds(#[from] SpeedError),
    /// The number of stage configurations differs from the number of stages in the cut (the partition of the layers).
    /// Give one configuration for each stage.
    #[error("{configs} stage configurations for a cut into {stages} stages; give one for each stage")]
    Configs {
        /// The number of stage configurations that the caller gave.
        configs: usize,
        /// The number of stages in the cut (the partition of the layers). Each stage needs one configuration.
        stages: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_the_first_layer_of_every_stage() {
        let cut: Cut = "0, 3,6".parse().unwrap();
        assert_eq!((cut.stages(), cut.to_string()), (3, "0,3,6".to_owned()));
        assert_eq!(cut.ranges(8).unwrap(), [0..3, 3..6, 6..8]);
        assert_eq!(Cut::of(cut.ranges(8).unwrap()), cut);
        assert!(matches!(cut.ranges(6), Err(CutError::Layers { start: 6, layers: 6 })));
        for text in ["", "1,2", "0,2,2", "0,x", "0;3"] {
            assert!(text.parse::<Cut>().is_err(), "{text}");
        }
    }
}
