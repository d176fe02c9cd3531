//! Parses a PTX instruction.

/// An instruction, with its parts as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// The predicate of the instruction; true if it is negated.
    pub guard: Option<(&'a str, bool)>,
    /// The name with its modifiers, such as `add.rn.f32`.
    pub name: &'a str,
    /// The operands. A vector in braces or an address in brackets is one operand.
    pub operands: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    /// Reads an instruction without labels and comments; `None` for a directive.
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

/// Returns the text within the braces or brackets of an operand, or the operand itself.
pub fn inside(operand: &str) -> &str {
    operand.trim_matches(['{', '}', '[', ']']).trim()
}
