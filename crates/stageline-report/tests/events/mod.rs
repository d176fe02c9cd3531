//! Makes the events of workers for the tests whose logs have a timeline.

use std::ops::Range;
use std::time::Duration;

use stageline_report::record::Event;

/// Returns an event of a stage, such as the activity `0F0`, without waits. `seconds` is its time since the step began.
pub fn event(stage: usize, activity: &str, seconds: Range<f64>) -> Event {
    Event {
        stage,
        activity: activity.parse().unwrap(),
        start: Duration::from_secs_f64(seconds.start),
        end: Duration::from_secs_f64(seconds.end),
        waited: Duration::ZERO,
        asked: Duration::ZERO,
        held: None,
        sent: 0,
    }
}
