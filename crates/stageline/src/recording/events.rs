//! Events: each activity of a worker in a step, with its times, its wait, and the memory in use.

use std::time::{Duration, Instant};

use stageline_schedule::Instruction;

use crate::failure::activity::{Activity, During, WaitCause};
use crate::failure::watchdog::{Place, ProgressBoard};
use crate::model::replica::Replica;

/// One activity of a worker in a step. Times count from the beginning of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// The stage for which the worker did this.
    pub stage: usize,
    /// The activity that the event records.
    pub activity: Activity,
    /// The time at which the activity began, which is the end of the worker's previous event.
    pub start: Duration,
    /// The time at which the activity ended.
    pub end: Duration,
    /// The time that the worker waited for others.
    pub waited: Duration,
    /// The time spent asking the device whether it has finished, in [synchronised](crate::Clock::Synchronised) steps;
    /// over a network this takes longer than many actions.
    pub asked: Duration,
    /// The worker's memory in use; `None` if it is not measured (see [`Held`]).
    pub held: Option<Held>,
    /// The bytes sent to another stage.
    pub sent: u64,
}

impl Event {
    /// Returns the time of the event without the wait for others and the question to the device.
    pub fn worked(&self) -> Duration {
        (self.end - self.start).saturating_sub(self.waited + self.asked)
    }

    /// Returns what the worker waited for; `None` if it did not wait.
    pub fn waited_for(&self) -> Option<WaitCause> {
        (self.waited > Duration::ZERO).then(|| self.activity.wait_cause()).flatten()
    }

    /// Whether the event is work of the stage: a forward, a backward, or its part of the flush.
    pub fn computes(&self) -> bool {
        match self.activity {
            Activity::Instruction(Instruction::Compute(_)) | Activity::Finish | Activity::OptimizerStep => true,
            Activity::Instruction(_)
            | Activity::Start
            | Activity::Reduce
            | Activity::Verdict
            | Activity::Follow
            | Activity::Save
            | Activity::Idle => false,
        }
    }
}

/// The memory in use by a worker during one event, in bytes.
///
/// Host memory is measured in programs that install the [`CountingAllocator`](crate::CountingAllocator). A GPU's memory
/// is measured in [synchronised](crate::Clock::Synchronised) steps, as the bytes that its pools have in use at the end
/// of each event: several stages on one GPU share the pools, and a peak is the largest of these readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The memory in use at the end of the event.
    pub end: u64,
    /// The largest memory in use at any time of the event.
    pub peak: u64,
    /// The bytes that the worker itself allocated less those that it freed; memory that other workers free does not
    /// count.
    pub kept: i64,
}

/// The measurements at the end of an event.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) held: Option<Held>,
    /// The time that the question to the device took, once the device had finished.
    pub(crate) asked: Duration,
}

/// Returns the total time of computation in these events.
pub(crate) fn busy<'a>(events: impl IntoIterator<Item = &'a Event>) -> Duration {
    events.into_iter().filter(|event| event.computes()).map(Event::worked).sum()
}

/// The recorder of one worker: its current activity, and the events of the step so far.
pub(crate) struct Diary {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    pub(crate) activity: Activity,
    pub(crate) during: During,
    /// The bytes sent to another stage in the current activity.
    pub(crate) sent: u64,
    /// The time at which the step began.
    began: Instant,
    /// The time at which the last event ended.
    since: Instant,
    /// The events of the step. It never grows beyond its capacity, so that nothing is allocated between two actions.
    events: Vec<Event>,
    /// The board on which the watchdog sees the current activity.
    board: ProgressBoard,
}

impl Diary {
    pub(crate) fn new(replica: Replica, stage: usize, board: ProgressBoard) -> Self {
        let now = Instant::now();
        let (activity, during) = (Activity::Start, During::Step(0));
        Self { replica, stage, activity, during, sent: 0, began: now, since: now, events: Vec::new(), board }
    }

    /// Begins a new pass; `room` is an empty vector with capacity for its events.
    pub(crate) fn open(&mut self, during: During, began: Instant, room: Vec<Event>) {
        (self.during, self.began, self.since, self.events) = (during, began, Instant::now(), room);
    }

    /// Begins an activity.
    pub(crate) fn enter(&mut self, stage: usize, activity: Activity) {
        (self.stage, self.activity) = (stage, activity);
        self.board.tell(Place { replica: self.replica, stage, activity, since: self.since });
    }

    /// Ends the current activity and records its event, with the time that it waited for others.
    pub(crate) fn leave(&mut self, waited: Duration, Reading { held, asked }: Reading) {
        let (now, sent) = (Instant::now(), std::mem::take(&mut self.sent));
        if self.events.len() < self.events.capacity() {
            let (start, end) = (self.since - self.began, now - self.began);
            let (stage, activity) = (self.stage, self.activity);
            // The time of the question was measured on an idle device, so it may be longer than this event.
            let asked = asked.min((end - start).saturating_sub(waited));
            self.events.push(Event { stage, activity, start, end, waited, asked, held, sent });
        }
        self.since = now;
    }

    /// Ends the pass and returns its events.
    pub(crate) fn close(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_follow_each_other_and_never_outgrow_their_room() {
        let board = ProgressBoard::new(Replica::default(), 3);
        let mut diary = Diary::new(Replica::default(), 3, board.clone());
        diary.open(During::Step(1), Instant::now(), Vec::with_capacity(2));
        let room = diary.events.capacity();
        for _ in 0..room + 1 {
            diary.enter(4, Activity::Finish);
            diary.leave(Duration::ZERO, Reading::default());
        }
        assert_eq!(board.places().last().map(|place| (place.stage, place.activity)).unwrap(), (4, Activity::Finish));
        let events = diary.close();
        assert_eq!((events.len(), events.capacity()), (room, room));
        assert!(events.windows(2).all(|pair| pair[0].end == pair[1].start && pair[1].start <= pair[1].end));
        assert!(events.iter().all(|event| event.stage == 4 && event.computes()));
    }
}
