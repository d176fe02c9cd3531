//! Writes a run in Chrome's trace event format, which Perfetto and `chrome://tracing` open.
//!
//! A trace has a track for each stage, a slice for each event, an arrow from each send to its receive, and a counter of
//! the memory of each worker. The format is specified in *Trace Event Format*, Google,
//! docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use stageline_schedule::{Activity, Compute, Instruction, Transfer};

use crate::log::record::Event;

/// A trace of a run in Chrome's trace event format, for viewers such as Perfetto. Training steps are added to it one by
/// one.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The JSON events of the trace, each with its time in nanoseconds: slices, memory counters, and both ends of each
    /// arrow from a send to its receive.
    events: Vec<(u64, Value)>,
    stages: usize,
    arrows: u64,
    /// End time of the last training step that was added to this trace, in seconds since the trace began.
    end: f64,
    /// End time of each worker's last slice in this trace, in nanoseconds since the trace began. If steps overlap,
    /// events of a step may end after the step.
    ends: Vec<u64>,
    /// Number of training steps that were left out of this trace, because it would have become too large.
    left_out: usize,
}

/// Maximum number of JSON events in a trace, because viewers are slow to open larger traces.
const MOST_EVENTS: usize = 200_000;

fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

impl Trace {
    /// Creates an empty trace (in Chrome's trace event format), for training steps that are added later.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the training step with the number `step` to the trace. The step took `seconds` seconds, and `timeline`
    /// has a list of events for each worker. Returns false, and leaves the step out, if the trace would exceed 200,000
    /// JSON events, because viewers open larger traces slowly.
    pub fn add(&mut self, step: usize, seconds: f64, timeline: &[Vec<Event>]) -> bool {
        let more: usize = timeline.iter().map(Vec::len).sum();
        if self.events.len() + 4 * more > MOST_EVENTS {
            self.left_out += 1;
            return false;
        }
        let mut sends: HashMap<Transfer, (u64, usize)> = HashMap::new();
        let mut receives = Vec::new();
        self.ends.resize(self.ends.len().max(timeline.len()), 0);
        // A worker does one thing at a time. So the step is placed late enough that each worker's first event follows
        // its last event of the previous step.
        let fits = |(row, end): (&Vec<Event>, &u64)| Some(*end as f64 / 1e9 - row.first()?.start.as_secs_f64());
        let begin = timeline.iter().zip(&self.ends).filter_map(fits).fold(self.end, f64::max);
        for (worker, row) in timeline.iter().enumerate() {
            // Arrows attach only to slices that take time, so a slice takes at least 1 ns, and the next one begins
            // after it.
            let mut earliest = self.ends[worker];
            for event in row {
                self.stages = self.stages.max(event.stage + 1);
                let nanoseconds = |time: Duration| ((begin + time.as_secs_f64()) * 1e9).round() as u64;
                let start = nanoseconds(event.start).max(earliest);
                let end = nanoseconds(event.end).max(start + 1);
                earliest = end;
                self.slice(step, event, start, end);
                self.memory(worker, event, end);
                match event.activity {
                    Activity::Instruction(Instruction::Send(transfer)) => {
                        sends.insert(transfer, (start, event.stage));
                    }
                    Activity::Instruction(Instruction::Receive(transfer)) => {
                        receives.push((transfer, end - 1, event.stage));
                    }
                    _ => {}
                }
            }
            self.ends[worker] = earliest;
        }
        for (transfer, at, stage) in receives {
            if let Some((from, sender)) = sends.remove(&transfer) {
                self.arrow(from, sender, at, stage);
            }
        }
        self.end = begin + seconds;
        true
    }

    fn slice(&mut self, step: usize, event: &Event, start: u64, end: u64) {
        let (name, category, colour) = style(event.activity);
        self.events.push((
            start,
            json!({
                "ph": "X", "pid": 0, "tid": event.stage, "ts": micros(start), "dur": micros(end - start),
                "name": name, "cat": category, "cname": colour,
                "args": {
                    "step": step, "activity": event.activity.name(), "waited_ms": event.waited.as_secs_f64() * 1e3,
                    "waited_for": event.waited_for().map(|cause| cause.to_string()),
                },
            }),
        ));
    }

    fn memory(&mut self, worker: usize, event: &Event, end: u64) {
        let Some(bytes) = event.held.map(|held| held.end) else { return };
        let counter = json!({
            "ph": "C", "pid": 0, "ts": micros(end), "name": format!("memory of worker {worker}, bytes"), "args": {"bytes": bytes},
        });
        self.events.push((end, counter));
    }

    fn arrow(&mut self, from: u64, sender: usize, to: u64, receiver: usize) {
        self.arrows += 1;
        let id = self.arrows;
        let end = |phase: &str, at: u64, stage: usize| {
            json!({
                "ph": phase, "bp": "e", "id": id, "pid": 0, "tid": stage, "ts": micros(at), "name": "transfer", "cat": "transfer",
            })
        };
        self.events.push((from, end("s", from, sender)));
        self.events.push((to, end("f", to, receiver)));
    }

    /// Returns the trace as the JSON string of a trace file: the names of the tracks (one for each stage), then the
    /// events in order of time.
    pub fn json(&self) -> String {
        let mut events: Vec<_> = (0..self.stages)
            .flat_map(|stage| {
                let name = json!({
                    "ph": "M", "pid": 0, "tid": stage, "name": "thread_name", "args": {"name": format!("stage {stage}")},
                });
                let order =
                    json!({"ph": "M", "pid": 0, "tid": stage, "name": "thread_sort_index", "args": {"sort_index": stage}});
                [name, order]
            })
            .collect();
        let mut timed = self.events.clone();
        timed.sort_by_key(|(time, _)| *time);
        events.extend(timed.into_iter().map(|(_, event)| event));
        json!({"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"steps_left_out": self.left_out}})
            .to_string()
            + "\n"
    }
}

/// Returns the name, the category and the colour of an activity in a trace viewer. An activity is something that a
/// worker does, such as a forward pass, a send or the optimizer step.
fn style(activity: Activity) -> (String, &'static str, &'static str) {
    let computed = |compute| match compute {
        Compute::Forward => ("forward", "good"),
        Compute::Backward => ("backward", "thread_state_iowait"),
        Compute::InputGradient => ("input gradient", "thread_state_running"),
        Compute::WeightGradient => ("weight gradient", "bad"),
    };
    match activity {
        Activity::Instruction(Instruction::Compute(action)) => {
            let (category, colour) = computed(action.compute);
            (format!("{}{}", action.compute.letter(), action.micro_batch), category, colour)
        }
        Activity::Instruction(Instruction::Send(_)) => ("send".to_owned(), "transfer", "grey"),
        Activity::Instruction(Instruction::Receive(_)) => ("receive".to_owned(), "transfer", "white"),
        other => (other.name(), "flush", "yellow"),
    }
}

#[cfg(test)]
mod tests {
    use stageline_schedule::Held;

    use super::*;

    fn event(stage: usize, activity: &str, start: f64, end: f64) -> Event {
        Event {
            stage,
            activity: activity.parse().unwrap(),
            start: Duration::from_secs_f64(start),
            end: Duration::from_secs_f64(end),
            waited: Duration::ZERO,
            asked: Duration::ZERO,
            held: Some(Held { end: 7, peak: 7, kept: 7 }),
            sent: 0,
        }
    }

    /// Returns the parsed JSON of a trace for the tests: two steps of two stages, with one micro-batch. Transfers take
    /// 0.25 s in the first step, and almost no time in the second.
    fn trace() -> Value {
        let mut trace = Trace::new();
        for length in [0.25, 1e-8] {
            let first = vec![
                event(0, "0F0", 0.0, 1.0),
                event(0, "0SEND_F0", 1.0, 1.0 + length),
                event(0, "0RECV_B0", 1.0 + length, 4.0),
                event(0, "0B0", 4.0, 5.0),
                event(0, "optimizer", 5.0, 5.5),
            ];
            let second = vec![
                event(1, "1RECV_F0", 0.0, 1.0 + length),
                event(1, "1F0", 1.5, 2.0),
                event(1, "1B0", 2.0, 3.5),
                event(1, "1SEND_B0", 3.5, 3.5 + length),
            ];
            assert!(trace.add(7, 6.0, &[first, second]));
        }
        serde_json::from_str(&trace.json()).unwrap()
    }

    #[test]
    fn events_are_sorted_and_slices_do_not_overlap() {
        let trace = trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let times: Vec<_> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
        assert!(times.is_sorted());
        for stage in [0, 1] {
            let slices = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == stage);
            let slices: Vec<_> =
                slices.map(|event| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap())).collect();
            assert!(slices.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 1e-6), "{slices:?}");
            assert!(slices.iter().all(|(_, duration)| *duration > 0.0));
        }
        assert_eq!(events.iter().filter(|event| event["ph"] == "X").count(), 18);
        // There is one counter for each worker, whichever stages it runs.
        let counters = events.iter().filter(|event| event["ph"] == "C").map(|event| event["name"].as_str().unwrap());
        let mut counters: Vec<_> = counters.collect();
        assert_eq!(counters.len(), 18);
        counters.sort_unstable();
        counters.dedup();
        assert_eq!(counters, ["memory of worker 0, bytes", "memory of worker 1, bytes"]);
        let names: Vec<_> =
            events.iter().filter(|event| event["name"] == "thread_name").map(|event| &event["args"]["name"]).collect();
        assert_eq!(names, ["stage 0", "stage 1"]);
    }

    /// Tests two steps of 4 s that overlap: the second worker ends its part of a step 1 s after the step.
    #[test]
    fn slices_of_overlapping_steps_keep_their_length_and_do_not_overlap() {
        let mut trace = Trace::new();
        for number in 0..2 {
            let first = vec![event(0, "0F0", 0.0, 1.0), event(0, "0B0", 2.0, 4.0)];
            let second = vec![event(1, "1F0", 0.5, 2.0), event(1, "optimizer", 3.0, 5.0)];
            assert!(trace.add(number, 4.0, &[first, second]));
        }
        let trace: Value = serde_json::from_str(&trace.json()).unwrap();
        let slices = |stage: u64| {
            let events = trace["traceEvents"].as_array().unwrap().iter();
            let own = events.filter(|event| event["ph"] == "X" && event["tid"] == stage);
            let times = own.map(|event| ["ts", "dur"].map(|time| event[time].as_f64().unwrap() / 1e6));
            times.collect::<Vec<_>>()
        };
        // The second step begins at 4.5 s, so that the second worker's first event follows its last event of the first
        // step.
        assert_eq!(slices(0), [[0.0, 1.0], [2.0, 2.0], [4.5, 1.0], [6.5, 2.0]]);
        assert_eq!(slices(1), [[0.5, 1.5], [3.0, 2.0], [5.0, 1.5], [7.5, 2.0]]);
    }

    #[test]
    fn every_arrow_is_bound_to_a_send_and_a_receive() {
        let trace = trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let slice_at = |tid: &Value, ts: f64| {
            let inside = |event: &&Value| {
                let (start, duration) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                event["tid"] == *tid && start <= ts && ts < start + duration
            };
            let found = events.iter().filter(|event| event["ph"] == "X").filter(inside);
            found.map(|event| event["args"]["activity"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mut arrows: HashMap<u64, Vec<&Value>> = HashMap::new();
        for event in events.iter().filter(|event| event["ph"] == "s" || event["ph"] == "f") {
            arrows.entry(event["id"].as_u64().unwrap()).or_default().push(event);
        }
        assert_eq!(arrows.len(), 4);
        for ends in arrows.values() {
            let [start, end] = ends.as_slice() else { panic!("{ends:?}") };
            assert_eq!((start["ph"].as_str(), end["ph"].as_str()), (Some("s"), Some("f")));
            let [from, to] = [start, end].map(|end| slice_at(&end["tid"], end["ts"].as_f64().unwrap()));
            assert!(from.len() == 1 && from[0].contains("SEND"), "{from:?}");
            assert!(to.len() == 1 && to[0].contains("RECV"), "{to:?}");
        }
    }

    #[test]
    fn steps_beyond_the_most_events_are_left_out() {
        let mut trace = Trace::new();
        let step = vec![vec![event(0, "0F0", 0.0, 1.0); 10_000]];
        let added = (0..20).filter(|&number| trace.add(number, 1.0, &step)).count();
        assert!(added < 20 && trace.events.len() <= MOST_EVENTS);
        assert_eq!(trace.left_out, 20 - added);
    }
}
