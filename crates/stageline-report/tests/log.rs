//! Tests logs that cannot be read, or do not have what a prediction needs.

mod synthetic;

use stageline_report::record::Line;
use stageline_report::{LogError, Measured, PredictError, RunLog};

use synthetic::log;

#[test]
fn unreadable_logs_are_rejected_with_the_line() {
    let error = RunLog::read("{\"a\":1}\n".as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::NoRun), "{error}");
    let error = RunLog::read("{\n{}\n".as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::Line { line: 1, .. }), "{error}");
    // A last line that a crash cut short is skipped.
    let mut cut_short = log(&[1.0; 2], 2, 2, 0.0);
    let text = serde_json::to_string(&Line::Run(Box::new(cut_short.run.clone()))).unwrap() + "\n{\"step\":1,\"lo";
    let read = RunLog::read(text.as_bytes()).unwrap();
    assert_eq!((read.run == cut_short.run, read.steps.len()), (true, 0));
    assert!(matches!(Measured::of(&read), Err(PredictError::NoSteps)));
    cut_short.run.layers.truncate(1);
    assert!(matches!(Measured::of(&cut_short), Err(PredictError::Layers { stages: 2 })));
}
