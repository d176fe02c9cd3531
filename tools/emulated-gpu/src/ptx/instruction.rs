//! Parses a PTX instruction into its guard, its name and its operands.

/// A PTX instruction, with its guard, name and operands as strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// The instruction's guard: the name of a predicate register, and true if the predicate is negated. A thread runs
    /// the instruction only if its guard holds.
    pub guard: Option<(&'a str, bool)>,
    /// The instruction's name with its modifiers, such as `add.rn.f32`.
    pub name: &'a str,
    /// The instruction's operands. A vector in braces or an address in brackets is one operand.
    pub operands: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    /// Parses a PTX instruction without labels and comments. Returns `None` for a directive.
    pub fn read(text: &'a str) -> Option<Self> {
        let text = text.trim();
        let (guard, text) = match text.strip_prefix('@') {
            Some(guarded) => {
                let (guard, text) = guarded.split_once(char::is_whitespace)?;
                let predicate = guard.trim_start_matches('!');
                (Some((predicate, guard.starts_with('!'))), text.trim_start())
            }
            None => (None, text),
        };
        let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if name.is_empty() || name.starts_with('.') {
            return None;
        }
        let mut depth = 0;
        let between = |c: char| {
            depth += i32::from(matches!(c, '{' | '[')) - i32::from(matches!(c, '}' | ']'));
            c == ',' && depth == 0
        };
        let operands = operands.split(between).map(str::trim).filter(|operand| !operand.is_empty()).collect();
        Some(Self { guard, name, operands })
    }
}

/// Returns the text within the braces or brackets of a PTX operand, or the operand itself if there are none.
pub fn inside(operand: &str) -> &str {
    operand.trim_matches(['{', '}', '[', ']']).trim()
}
