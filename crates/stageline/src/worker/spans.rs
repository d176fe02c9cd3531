//! The tracing spans of a worker's activities, with the time that each activity waited for other workers or the caller.

use std::time::Duration;

use stageline_schedule::Activity;

use crate::recording::events::Diary;

/// Creates a tracing span named `action` for the worker's current activity, such as the optimizer step. Used for all
/// activities except the plan's instructions (computations, sends and receives). The fields for waits are empty until
/// [`note_wait`] sets them.
pub(super) fn span(diary: &Diary) -> tracing::Span {
    let Diary { replica, stage, activity, during, .. } = *diary;
    let (waited_us, waited_for) = (tracing::field::Empty, tracing::field::Empty);
    tracing::trace_span!("action", replica = replica.index, stage, action = %activity, %during, waited_us, waited_for)
}

/// Records in an activity's tracing span how many microseconds the activity, such as a receive, `waited` for other
/// workers or the caller, and why.
pub(super) fn note_wait(span: &tracing::Span, activity: Activity, waited: Duration) {
    span.record("waited_us", waited.as_micros() as u64);
    if let Some(cause) = activity.wait_cause().filter(|_| !waited.is_zero()) {
        span.record("waited_for", tracing::field::display(cause));
    }
}
