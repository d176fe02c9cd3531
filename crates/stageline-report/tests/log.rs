//! Tests logs that cannot be read, or lack the measurements that a prediction needs.

mod synthetic;

use stageline_report::record::Line;
use stageline_report::{LogError, Measured, PredictError, RunLog};

use synthetic::{log, text};

#[test]
fn unreadable_logs_are_rejected_with_the_line() {
    let error = RunLog::read("{\"a\":1}\n".as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::NoRun), "{error}");
    let error = RunLog::read("{\n{}\n".as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::Line { line: 1, .. }), "{error}");
    // If a crash has truncated the last line, the line is skipped.
    let mut cut_short = log(&[1.0; 2], 2, 2, 0.0);
    let text = serde_json::to_string(&Line::Run(Box::new(cut_short.run.clone()))).unwrap() + "\n{\"step\":1,\"lo";
    let read = RunLog::read(text.as_bytes()).unwrap();
    assert_eq!((read.run == cut_short.run, read.steps.len()), (true, 0));
    assert!(matches!(Measured::of(&read), Err(PredictError::NoSteps)));
    cut_short.run.layers.truncate(1);
    assert!(matches!(Measured::of(&cut_short), Err(PredictError::Layers { stages: 2 })));
}

/// Tests a log whose last line is truncated within a two-byte character. On any other line, such a truncated character
/// is an error.
#[test]
fn a_last_line_that_is_cut_within_a_character_is_skipped() {
    let log = log(&[1.0; 2], 2, 2, 0.0);
    let whole = text(&log.run, log.steps.clone()).into_bytes();
    let cut = [whole.as_slice(), b"{\"step\":5,\"metrics\":{\"pr\xc3"].concat();
    assert_eq!(RunLog::read(cut.as_slice()).unwrap(), log);
    let error = RunLog::read([cut.as_slice(), b"\n", whole.as_slice()].concat().as_slice()).unwrap_err();
    assert!(matches!(error, LogError::Line { line: 7, .. }), "{error}");
    assert!(error.to_string().starts_with("line 7 of the log cannot be read: "), "{error}");
    // Lines may end with a carriage return and a line feed, as on Windows.
    let windows = String::from_utf8(whole).unwrap().replace('\n', "\r\n") + "\r\n";
    assert_eq!(RunLog::read(windows.as_bytes()).unwrap(), log);
}

/// Tests a log that would take minutes to read if the time grew with the square of its number of lines.
#[test]
fn a_log_with_many_validations_is_read() {
    let log = log(&[1.0; 2], 2, 2, 0.0);
    let validation = |after: usize| format!("{{\"after_steps\":{after},\"validation_loss\":1.0}}\n");
    let text = text(&log.run, log.steps) + &(5..300_000).map(validation).collect::<String>();
    assert_eq!(RunLog::read(text.as_bytes()).unwrap().validations.len(), 299_995);
}
