//! Actions, the entries of a plan, with their string form, such as `2F0`. An action is a forward pass, a whole backward
//! pass, an input gradient or a weight gradient of one stage on one micro-batch.

use std::fmt;
use std::str::FromStr;

/// The kind of computation that a stage (a part of the model) runs on a micro-batch. It is a forward pass, a whole
/// backward pass, or the input or weight gradient of a split backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Compute {
    /// `F`: the forward pass of a stage on a micro-batch.
    Forward,
    /// `B`: the whole backward pass, which computes the gradients of the stage's input and of its weights.
    Backward,
    /// `I`: the part of a split backward pass that computes the gradient of the stage's input.
    InputGradient,
    /// `W`: the part of a split backward pass that computes the gradients of the stage's weights.
    WeightGradient,
}

impl Compute {
    /// All kinds of computation of a stage: forward pass, whole backward pass, input gradient and weight gradient.
    pub const ALL: [Self; 4] = [Self::Forward, Self::Backward, Self::InputGradient, Self::WeightGradient];

    /// Returns the letter of this kind of computation in the string form of an action, such as `F` for a forward pass.
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::InputGradient => 'I',
            Self::WeightGradient => 'W',
        }
    }
}

/// The computation of one stage on one micro-batch, such as its forward pass. The string form `2F0` means stage 2,
/// forward pass, micro-batch 0.
///
/// PyTorch's `torch.distributed.pipelining` uses the same string form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// Zero-based index, over all stages of the model, of the stage that runs this action (such as a forward pass).
    pub stage: usize,
    /// Kind of computation that the stage runs on the micro-batch in this action, such as a forward pass.
    pub compute: Compute,
    /// Zero-based index, within the step, of the micro-batch that this action computes on.
    pub micro_batch: usize,
}

impl Action {
    /// Returns the action that is the forward pass of the stage `stage` on the micro-batch `micro_batch`.
    pub const fn forward(stage: usize, micro_batch: usize) -> Self {
        Self { stage, compute: Compute::Forward, micro_batch }
    }

    /// Returns the action that is the whole backward pass of the stage `stage` on the micro-batch `micro_batch`.
    pub const fn backward(stage: usize, micro_batch: usize) -> Self {
        Self { stage, compute: Compute::Backward, micro_batch }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage, self.compute.letter(), self.micro_batch)
    }
}

/// The error for a string that is neither an action, such as `2F0` (a forward pass), nor a transfer, such as
/// `2SEND_F0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseActionError {
    text: String,
    transfer: bool,
}

impl ParseActionError {
    /// Returns the string that could not be parsed as an action or a transfer of a plan.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn of(text: &str) -> Self {
        Self { text: text.to_owned(), transfer: false }
    }

    pub(crate) fn of_transfer(text: &str) -> Self {
        Self { text: text.to_owned(), transfer: true }
    }
}

impl fmt::Display for ParseActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = shown(&self.text);
        if self.transfer {
            return write!(
                f,
                "`{shown}` is not a transfer, such as `2SEND_F0`: stage 0 has no stage before it, and numbers are plain digits"
            );
        }
        write!(f, "`{shown}` is not an action; write the stage, one of F B I W, and the micro-batch, as in `2F0`")
    }
}

/// Makes a string from a plan file safe to print in an error message. Escapes characters other than visible ASCII and
/// spaces. Keeps only the first 40 characters, followed by `...` if the string is longer.
fn shown(text: &str) -> String {
    const MOST: usize = 40;
    let mut letters = text.chars();
    let escape =
        |letter: char| if matches!(letter, ' '..='~') { letter.into() } else { letter.escape_unicode().to_string() };
    let first: String = letters.by_ref().take(MOST).map(escape).collect();
    if letters.next().is_some() { first + "..." } else { first }
}

impl std::error::Error for ParseActionError {}

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Compute::ALL
            .into_iter()
            .find_map(|compute| {
                let (stage, micro_batch) = text.split_once(compute.letter())?;
                Some(Self { stage: number(stage)?, compute, micro_batch: number(micro_batch)? })
            })
            .ok_or_else(|| ParseActionError::of(text))
    }
}

/// Parses the index of a stage or micro-batch from a string of ASCII digits; returns `None` for any other string. Also
/// rejects `usize::MAX`, so that the index plus one never overflows.
pub(crate) fn number(digits: &str) -> Option<usize> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok().filter(|number| *number < usize::MAX) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_show_hostile_text_escaped_and_short() {
        let hostile = format!("\u{1b}[2J\n\u{202e}1F{}", "x".repeat(1 << 20));
        for error in [ParseActionError::of(&hostile), ParseActionError::of_transfer(&hostile)] {
            let message = error.to_string();
            assert!(message.starts_with(r"`\u{1b}[2J\u{a}\u{202e}1Fx"), "{message}");
            assert!(message.is_ascii() && message.len() < 200, "{message}");
        }
    }

    #[test]
    fn pytorchs_text_form_is_read() {
        assert_eq!("2F0".parse(), Ok(Action::forward(2, 0)));
        assert_eq!("10B31".parse(), Ok(Action::backward(10, 31)));
        let input_gradient = Action { stage: 0, compute: Compute::InputGradient, micro_batch: 7 };
        assert_eq!("0I7".parse(), Ok(input_gradient));
    }

    #[test]
    fn malformed_actions_are_rejected() {
        for text in [
            "",
            "F",
            "2F",
            "F0",
            "2X0",
            "2F0 ",
            "-1F0",
            "+1F0",
            "2FB0",
            "99999999999999999999F0",
            "18446744073709551615F0",
            "é",
        ] {
            assert!(text.parse::<Action>().is_err(), "{text:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn text_form_round_trips(stage in 0..usize::MAX, kind in 0..4_usize, micro_batch in 0..usize::MAX) {
            let action = Action { stage, compute: Compute::ALL[kind], micro_batch };
            prop_assert_eq!(action.to_string().parse(), Ok(action));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Action>();
        }
    }
}
