//! What a worker did, and when.

use std::time::{Duration, Instant};

use stageline_schedule::Instruction;

use crate::failure::activity::{Activity, During, WaitCause};
use crate::failure::watchdog::{Place, ProgressBoard};
use crate::model::replica::Replica;

/// One thing that a worker did in a step. Times are since the step began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// For which stage.
    pub stage: usize,
    /// What it did.
    pub activity: Activity,
    /// When it began: when the one before ended.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// How long of that it had to wait for others.
    pub waited: Duration,
    /// How long its device was asked whether it is done, in steps that are [synchronised](crate::Clock::Synchronised): over a network
    /// that takes longer than many an action.
    pub asked: Duration,
    /// What its worker held; none where nothing counts that (see [`Held`]).
    pub held: Option<Held>,
    /// What it handed on to another stage, in bytes.
    pub sent: u64,
}

impl Event {
    /// How long it was at work.
    pub fn worked(&self) -> Duration {
        (self.end - self.start).saturating_sub(self.waited + self.asked)
    }

    /// For whom it waited, if it did.
    pub fn waited_for(&self) -> Option<WaitCause> {
        (self.waited > Duration::ZERO).then(|| self.activity.wait_cause()).flatten()
    }

    /// Whether that is work of the stage: a forward, a backward, or its part of the flush.
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

/// What a worker held during one thing that it did, in bytes.
///
/// Of the host's memory in programs that install the [`CountingAllocator`](crate::CountingAllocator). Of a GPU's, in steps that
/// are [synchronised](crate::Clock::Synchronised), what its pools have in use when it is done (several stages on one GPU share
/// them), so that a peak is one of these readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// When it was done.
    pub end: u64,
    /// The most at any time until then.
    pub peak: u64,
    /// By how much the worker itself made it more: what others freed meanwhile of what it had sent is not taken off.
    pub kept: i64,
}

/// What was read at the end of something that a worker did.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) held: Option<Held>,
    /// How long the device was asked whether it is done, when it was.
    pub(crate) asked: Duration,
}

/// How long was computed in these events.
pub(crate) fn busy<'a>(events: impl IntoIterator<Item = &'a Event>) -> Duration {
    events.into_iter().filter(|event| event.computes()).map(Event::worked).sum()
}

/// Where a worker is, and what it has done so far.
pub(crate) struct Diary {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    pub(crate) activity: Activity,
    pub(crate) during: During,
    /// What is handed on meanwhile, in bytes.
    pub(crate) sent: u64,
    /// The beginning of the step.
    began: Instant,
    /// The end of the last event.
    since: Instant,
    /// As many as there is room for: it never grows, so that nothing is allocated between two actions.
    events: Vec<Event>,
    /// Where others can look up the place.
    post: ProgressBoard,
}

impl Diary {
    pub(crate) fn new(replica: Replica, stage: usize, post: ProgressBoard) -> Self {
        let now = Instant::now();
        let (activity, during) = (Activity::Start, During::Step(0));
        Self { replica, stage, activity, during, sent: 0, began: now, since: now, events: Vec::new(), post }
    }

    /// A new pass, with room for events.
    pub(crate) fn open(&mut self, during: During, began: Instant, room: Vec<Event>) {
        (self.during, self.began, self.since, self.events) = (during, began, Instant::now(), room);
    }

    pub(crate) fn enter(&mut self, stage: usize, activity: Activity) {
        (self.stage, self.activity) = (stage, activity);
        self.post.tell(Place { replica: self.replica, stage, activity, since: self.since });
    }

    /// What was entered is done, after so long a wait.
    pub(crate) fn leave(&mut self, waited: Duration, Reading { held, asked }: Reading) {
        let (now, sent) = (Instant::now(), std::mem::take(&mut self.sent));
        if self.events.len() < self.events.capacity() {
            let (start, end) = (self.since - self.began, now - self.began);
            let (stage, activity) = (self.stage, self.activity);
            // It was found out when there was nothing to wait for, and may take less at times.
            let asked = asked.min((end - start).saturating_sub(waited));
            self.events.push(Event { stage, activity, start, end, waited, asked, held, sent });
        }
        self.since = now;
    }

    pub(crate) fn close(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_follow_each_other_and_never_outgrow_their_room() {
        let post = ProgressBoard::new(Replica::default(), 3);
        let mut diary = Diary::new(Replica::default(), 3, post.clone());
        diary.open(During::Step(1), Instant::now(), Vec::with_capacity(2));
        let room = diary.events.capacity();
        for _ in 0..room + 1 {
            diary.enter(4, Activity::Finish);
            diary.leave(Duration::ZERO, Reading::default());
        }
        assert_eq!(post.places().last().map(|place| (place.stage, place.activity)).unwrap(), (4, Activity::Finish));
        let events = diary.close();
        assert_eq!((events.len(), events.capacity()), (room, room));
        assert!(events.windows(2).all(|pair| pair[0].end == pair[1].start && pair[1].start <= pair[1].end));
        assert!(events.iter().all(|event| event.stage == 4 && event.computes()));
    }
}
