//! Checks that every error message about checkpoints is short and safe to print, whatever text the checkpoint contains.

use std::error::Error;

use stageline_checkpoint::CheckpointError;

/// Returns texts that would harm a terminal: they clear the screen, forge lines, reverse text, hide it, or are very
/// long.
pub fn texts() -> Vec<String> {
    let short = [
        "\u{1b}[2J\u{1b}]0;title\u{7}",
        "x\nerror: all is well\r\n",
        "\r\u{8}\u{b}\u{c}\t\0\u{7f}",
        "\u{9b}31m\u{85}\u{9d}0;title\u{9c}",
        "\u{202e}txt.exe\u{202d}\u{202a}",
        "\u{2066}x\u{2067}\u{2068}\u{2069}\u{200e}\u{200f}\u{61c}",
        "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}\u{ad}",
        "\u{2028}\u{2029}",
        "\u{e0041}\u{e007f}\u{fe0f}\u{3164}",
        "\u{fff9}x\u{fffb}\u{ffff}\u{10ffff}",
        "`, which is fine; \"'\\{}",
    ];
    let long = ["x".repeat(2 << 20), "\u{1b}".repeat(1 << 18), "é\n\u{202e}".repeat(1 << 17)];
    short.into_iter().map(str::to_owned).chain(long).collect()
}

/// Asserts that an error about a checkpoint, its damage and all its causes are safe to print on a terminal. Each text,
/// as `Display` and as `Debug`, has at most [`CheckpointError::MOST_BYTES`] bytes.
pub fn check(error: &CheckpointError) {
    check_text(&format!("{error:#?}"));
    if let CheckpointError::Damaged { damage, .. } = error {
        check_text(&damage.to_string());
        check_text(&format!("{damage:?}"));
    }
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        check_text(&error.to_string());
        check_text(&format!("{error:?}"));
        cause = error.source();
    }
}

fn check_text(text: &str) {
    let start = text.chars().take(300).collect::<String>();
    assert!(text.len() <= CheckpointError::MOST_BYTES, "{} bytes: {start:?}", text.len());
    assert_eq!(text.chars().find(|&char| is_hidden(char)), None, "in {start:?}");
}

/// Whether a terminal executes a character instead of showing it, or shows nothing for it.
pub fn is_hidden(char: char) -> bool {
    let ranges = [
        '\u{ad}'..='\u{ad}',
        '\u{34f}'..='\u{34f}',
        '\u{61c}'..='\u{61c}',
        '\u{115f}'..='\u{1160}',
        '\u{17b4}'..='\u{17b5}',
        '\u{180b}'..='\u{180f}',
        '\u{200b}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{3164}'..='\u{3164}',
        '\u{fe00}'..='\u{fe0f}',
        '\u{feff}'..='\u{feff}',
        '\u{ffa0}'..='\u{ffa0}',
        '\u{fff0}'..='\u{fffb}',
        '\u{1bca0}'..='\u{1bca3}',
        '\u{1d173}'..='\u{1d17a}',
        '\u{e0000}'..='\u{e0fff}',
    ];
    char.is_control() || ranges.iter().any(|range| range.contains(&char))
}
