//! The recorder of one worker ([`Diary`]), which makes an [`Event`] of each activity of the worker: a computation, a
//! transfer or a wait.

use std::time::{Duration, Instant};

use stageline_schedule::{Activity, Event, Held};

use crate::failure::activity::During;
use crate::failure::watchdog::{Place, ProgressBoard};
use crate::model::replica::Replica;

/// The measurements at the end of a worker's activity (a computation, a transfer or a wait). They are the memory in
/// use, and the time that it takes to ask the device whether it has finished.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) held: Option<Held>,
    /// The time that it takes to ask the idle device whether it has finished. This time is a cost of the measurement,
    /// not of the step. It is zero if the device is not asked.
    pub(crate) asked: Duration,
}

/// Returns the total duration of the forward passes, backward passes, gradient norms and optimizer steps among the
/// recorded `events`, without waits.
pub(crate) fn busy<'a>(events: impl IntoIterator<Item = &'a Event>) -> Duration {
    events.into_iter().filter(|event| event.computes()).map(Event::worked).sum()
}

/// The recorder of one worker: its current activity (a computation, a transfer or a wait), and the events of the step
/// so far, one for each earlier activity.
pub(crate) struct Diary {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    pub(crate) activity: Activity,
    pub(crate) during: During,
    /// The bytes of tensors that the worker has sent to another stage in its current activity.
    pub(crate) sent: u64,
    /// The time at which the current step began; the times of the worker's recorded events are relative to it.
    began: Instant,
    /// The time at which the worker's last recorded event ended and the next event began.
    since: Instant,
    /// The events of the current step so far. The list drops events beyond its capacity, so that recording allocates no
    /// memory.
    events: Vec<Event>,
    /// The progress board that shows the worker's activities to the watchdog, which detects stalls.
    board: ProgressBoard,
}

impl Diary {
    pub(crate) fn new(replica: Replica, stage: usize, board: ProgressBoard) -> Self {
        let now = Instant::now();
        let (activity, during) = (Activity::Start, During::Step(0));
        Self { replica, stage, activity, during, sent: 0, began: now, since: now, events: Vec::new(), board }
    }

    /// Begins to record the events of a new pass over a batch, such as a step. `room` is an empty vector with capacity
    /// for them.
    pub(crate) fn open(&mut self, during: During, began: Instant, room: Vec<Event>) {
        (self.during, self.began, self.since, self.events) = (during, began, Instant::now(), room);
    }

    /// Records that the worker begins an activity (a computation, a transfer or a wait) for a stage, and shows it on
    /// the progress board that the watchdog reads.
    pub(crate) fn enter(&mut self, stage: usize, activity: Activity) {
        (self.stage, self.activity) = (stage, activity);
        self.board.tell(Place { replica: self.replica, stage, activity, since: self.since });
    }

    /// Ends the worker's current activity and records its event, with the time `waited` for other workers and with the
    /// measurements at its end.
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

    /// Ends the recording of a pass over a batch, such as a step, and returns its events.
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
