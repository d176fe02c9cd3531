/// An instruction, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// The predicate that it is for, and whether for where that does not hold.
    pub guard: Option<(&'a str, bool)>,
    /// With all that follows a dot.
    pub name: &'a str,
    /// Commas in brackets and braces do not part them.
    pub operands: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    /// One that stands by itself, without labels and comments. Directives are none.
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

/// What the braces or brackets of an operand hold, or the operand itself.
pub fn inside(operand: &str) -> &str {
    operand.trim_matches(['{', '}', '[', ']']).trim()
}
