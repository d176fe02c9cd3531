//! The recorder of one worker ([`Diary`]). It makes an [`Event`] of each of the worker's activities: a computation, a
//! transfer or a wait.

use std::time::{Duration, Instant};

use stageline_schedule::{Activity, Event, Held};

use crate::failure::activity::During;
use crate::failure::watchdog::{Place, ProgressBoard};
use crate::model::replica::Replica;

/// Measurements at the end of a worker's activity (a computation, a transfer or a wait): the allocated memory (`held`),
/// and the overhead of synchronising with the device (`asked`).
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) held: Option<Held>,
    /// Duration of a synchronisation with the idle device. It is overhead of the measurement, not part of the step.
    /// Zero without a synchronisation.
    pub(crate) asked: Duration,
}

/// Returns the total time that the recorded `events` spent on forward passes, backward passes, gradient norms and
/// optimizer steps, without waits.
pub(crate) fn busy<'a>(events: impl IntoIterator<Item = &'a Event>) -> Duration {
    events.into_iter().filter(|event| event.computes()).map(Event::worked).sum()
}

/// Records one worker's events. Stores the worker's current activity (a computation, a transfer or a wait), and one
/// event for each earlier activity of the step.
pub(crate) struct Diary {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    pub(crate) activity: Activity,
    pub(crate) during: During,
    /// The bytes of tensors that the worker has sent to another stage in its current activity.
    pub(crate) sent: u64,
    /// Start time of the current step, which the times of recorded events are relative to.
    began: Instant,
    /// Start time of the worker's current activity, which is the end time of its last event.
    since: Instant,
    /// The duration of the worker's longest completed action so far in any step, evaluation or inference, without
    /// waits.
    longest: Duration,
    /// The events of the current step so far. Events beyond the list's capacity are dropped, so that recording
    /// allocates no memory.
    events: Vec<Event>,
    /// The progress board that shows the worker's activities to the watchdog, which detects stalls.
    board: ProgressBoard,
}

impl Diary {
    pub(crate) fn new(replica: Replica, stage: usize, board: ProgressBoard) -> Self {
        let now = Instant::now();
        let (activity, during) = (Activity::Start, During::Step(0));
        let (longest, events) = (Duration::ZERO, Vec::new());
        Self { replica, stage, activity, during, sent: 0, began: now, since: now, longest, events, board }
    }

    /// Starts recording the events of a step or evaluation that began at the time `began`. `room` is an empty vector
    /// for the events; its capacity is the largest number of events.
    pub(crate) fn open(&mut self, during: During, began: Instant, room: Vec<Event>) {
        (self.during, self.began, self.since, self.events) = (during, began, Instant::now(), room);
    }

    /// Starts an activity (a computation, a transfer or a wait) of the worker for a stage, and posts it on the progress
    /// board, where the watchdog looks for stalls.
    pub(crate) fn enter(&mut self, stage: usize, activity: Activity) {
        (self.stage, self.activity) = (stage, activity);
        self.board.tell(Place { replica: self.replica, stage, activity, since: self.since }, self.longest);
    }

    /// Ends the worker's current activity and appends it to the recorded events, with the time that the worker has
    /// `waited` for other workers, and the measurements at the activity's end: the allocated memory (`held`) and the
    /// synchronisation overhead (`asked`).
    pub(crate) fn leave(&mut self, waited: Duration, Reading { held, asked }: Reading) {
        let (now, sent) = (Instant::now(), std::mem::take(&mut self.sent));
        let worked = (now - self.since).saturating_sub(waited);
        // The synchronisation overhead (`asked`) was measured on an idle device, so it may be longer than this event.
        let asked = asked.min(worked);
        self.longest = self.longest.max(worked - asked);
        if self.events.len() < self.events.capacity() {
            let (start, end) = (self.since - self.began, now - self.began);
            let (stage, activity) = (self.stage, self.activity);
            self.events.push(Event { stage, activity, start, end, waited, asked, held, sent });
        }
        self.since = now;
    }

    /// Ends the recording of a step or evaluation, and returns its events.
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
            std::thread::sleep(Duration::from_millis(1));
            diary.leave(Duration::ZERO, Reading::default());
        }
        diary.enter(4, Activity::Idle);
        let longest = board.longest();
        assert!(longest >= Duration::from_millis(1) && longest <= Instant::now() - diary.began, "{longest:?}");
        assert_eq!(board.places().last().map(|place| (place.stage, place.activity)).unwrap(), (4, Activity::Idle));
        let events = diary.close();
        assert_eq!((events.len(), events.capacity()), (room, room));
        assert!(events.windows(2).all(|pair| pair[0].end == pair[1].start && pair[1].start <= pair[1].end));
        assert!(events.iter().all(|event| event.stage == 4 && event.computes()));
    }
}
