//! The watchdog: warns when no worker makes progress, reports what each worker is doing, and finally ends the step.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use stageline_schedule::{Activity, Instruction, WaitCause};

use crate::failure::activity::During;
use crate::model::replica::Replica;

/// The largest number of activities (computations, transfers and waits) of each worker that the report on a stalled
/// pipeline shows.
const RECENT: usize = 16;

/// The time limits after which a stalled pipeline is reported and then stopped. A pipeline stalls if no worker begins a
/// new computation, transfer or wait for some time in a step or an evaluation.
///
/// A worker that waits for a slow stage does not count as stalled while any stage makes progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watchdog {
    /// Minimum time without progress before the watchdog warns of a stall. Progress means that any worker begins a new
    /// computation, transfer or wait. The warning reports what every stage is doing. The default is 60 s.
    pub floor: Duration,
    /// The multiple of the longest action's duration so far that the watchdog waits before it warns of a stall. An
    /// action is, for example, a forward pass. The warning comes after `max(floor, factor * longest)` without progress,
    /// so it comes later if actions are long. The default is 20.
    pub factor: f64,
    /// The time from the stall warning until the step ends with [`StepError::Stalled`](crate::StepError::Stalled), if
    /// the stall lasts. The default is 600 s.
    pub grace: Duration,
}

impl Default for Watchdog {
    /// Returns the default time limits for a stall. The warning comes after one minute or 20 times the longest action
    /// (such as a backward pass), whichever is longer. The stalled step ends ten minutes later.
    fn default() -> Self {
        Self { floor: Duration::from_secs(60), factor: 20.0, grace: Duration::from_secs(600) }
    }
}

impl Watchdog {
    /// Whether the watchdog's settings are valid: `floor` is above 0, and `factor` is finite and not negative.
    pub(crate) fn is_sound(&self) -> bool {
        self.factor.is_finite() && self.factor >= 0.0 && !self.floor.is_zero()
    }

    /// Returns the interval at which the watchdog checks whether workers make progress. It is an eighth of `floor`, the
    /// shortest time before a stall warning, but at least 10 ms and at most 5 s.
    pub(crate) fn interval(&self) -> Duration {
        (self.floor / 8).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    /// Returns the time without progress after which the watchdog warns of a stall: `max(floor, factor * longest)`.
    /// `longest` is the duration of the longest action so far, such as a forward pass.
    pub(crate) fn limit(&self, longest: Duration) -> Duration {
        self.floor.max(self.many(longest))
    }

    /// Returns `factor * longest`, where `longest` is the duration of the longest action so far. Returns the largest
    /// duration on overflow.
    pub(crate) fn many(&self, longest: Duration) -> Duration {
        // If the product overflows, the limit is never reached.
        Duration::try_from_secs_f64(longest.as_secs_f64() * self.factor).unwrap_or(Duration::MAX)
    }
}

/// An activity of a worker (a computation, a transfer or a wait), with its stage, replica and start time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    pub(crate) activity: Activity,
    pub(crate) since: Instant,
}

/// The recent activities (computations, transfers and waits) of one worker, and its longest action. The worker writes
/// them, and the watchdog reads them on the caller's thread.
#[derive(Clone)]
pub(crate) struct ProgressBoard(Arc<Mutex<Progress>>);

/// The activities that one worker has written on its progress board, and its longest action.
struct Progress {
    /// The worker's most recent activities, at most [`RECENT`], from the oldest to the current one.
    places: VecDeque<Place>,
    /// The duration of the worker's longest completed action (such as a forward pass) so far, without waits.
    longest: Duration,
}

impl ProgressBoard {
    pub(crate) fn new(replica: Replica, stage: usize) -> Self {
        let mut places = VecDeque::with_capacity(RECENT);
        places.push_back(Place { replica, stage, activity: Activity::Start, since: Instant::now() });
        Self(Arc::new(Mutex::new(Progress { places, longest: Duration::ZERO })))
    }

    /// Posts the worker's new activity `place`, and the duration of its longest completed action so far.
    pub(crate) fn tell(&self, place: Place, longest: Duration) {
        let mut progress = self.0.lock();
        if progress.places.len() == RECENT {
            progress.places.pop_front();
        }
        progress.places.push_back(place);
        progress.longest = longest;
    }

    /// Returns the duration of the worker's longest completed action (such as a forward pass) so far, without waits.
    pub(crate) fn longest(&self) -> Duration {
        self.0.lock().longest
    }

    /// Returns the worker's most recent activities (computations, transfers and waits), at most [`RECENT`], from the
    /// oldest to the current one.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.0.lock().places.iter().copied().collect()
    }
}

/// A report on a stalled pipeline: what each worker is doing and what it did before.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stall {
    /// The step, evaluation or other pass that stalled.
    pub during: During,
    /// The time without progress: no worker of the stalled pipeline has begun a new computation, transfer or wait.
    pub still: Duration,
    /// The current activity (computation, transfer or wait) of each worker of the stalled pipeline, in the order of the
    /// workers.
    pub workers: Vec<Stalled>,
    /// The recent activities (computations, transfers and waits) of each worker of the stalled pipeline. There is one
    /// list for each worker, with the oldest activity first and the current one last.
    pub recent: Vec<Vec<Stalled>>,
}

/// One entry in the report on a stalled pipeline ([`Stall`]): a worker's current or earlier activity (a computation, a
/// transfer or a wait), with its stage and how long ago it began.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stalled {
    /// The data-parallel replica that the worker belongs to.
    pub replica: Replica,
    /// Zero-based index, within the replica, of the stage that the activity belongs to.
    pub stage: usize,
    /// The activity that the worker began: a computation, a transfer, the optimizer step or a wait.
    pub activity: Activity,
    /// The time between the start of the activity (computation, transfer or wait) and the report. For a current
    /// activity that began before the stalled step or evaluation, the time counts from the start of that step or
    /// evaluation.
    pub since: Duration,
}

impl Stalled {
    /// Returns what the worker waits for in this activity: other stages, or the caller (the thread that uses the
    /// pipeline). Returns `None` if the worker computes instead.
    pub fn waits_for(&self) -> Option<WaitCause> {
        let computes = matches!(
            self.activity,
            Activity::Start | Activity::Instruction(Instruction::Compute(_)) | Activity::OptimizerStep
        );
        self.activity.wait_cause().filter(|_| !computes)
    }
}

impl Stall {
    /// Builds the report of a stall in the pass `during` (such as a step or an evaluation), which began at the time
    /// `began`. `boards` has one list for each worker: the worker's recent activities, the oldest first.
    pub(crate) fn seen(boards: impl Iterator<Item = Vec<Place>>, began: Instant, during: During) -> Self {
        let now = Instant::now();
        let boards: Vec<_> = boards.collect();
        let last = boards.iter().flatten().map(|place| place.since).fold(began, Instant::max);
        let stalled = |place: &Place, since: Instant| Stalled {
            replica: place.replica,
            stage: place.stage,
            activity: place.activity,
            since: now.saturating_duration_since(since),
        };
        let present = |places: &Vec<Place>| places.last().map(|place| stalled(place, place.since.max(began)));
        let recent = |places: &Vec<Place>| places.iter().map(|place| stalled(place, place.since)).collect();
        Self {
            during,
            still: now.saturating_duration_since(last),
            workers: boards.iter().filter_map(present).collect(),
            recent: boards.iter().map(recent).collect(),
        }
    }

    /// Returns the whole report on the stalled pipeline as JSON, with times in seconds.
    pub fn to_json(&self) -> Value {
        let stalled = |stalled: &Stalled| {
            json!({
                "replica": stalled.replica.index,
                "stage": stalled.stage,
                "activity": stalled.activity.to_string(),
                "since_seconds": stalled.since.as_secs_f64(),
                "waits_for": stalled.waits_for().map(|cause| cause.to_string()),
            })
        };
        json!({
            "during": self.during.to_string(),
            "still_seconds": self.still.as_secs_f64(),
            "workers": self.workers.iter().map(stalled).collect::<Vec<_>>(),
            "recent": self.recent.iter().map(|row| row.iter().map(stalled).collect::<Vec<_>>()).collect::<Vec<_>>(),
        })
    }

    /// Returns the current activities of those workers of the stalled pipeline that are not waiting. One of these
    /// workers causes the stall. The result is empty if all workers wait.
    pub fn at_work(&self) -> impl Iterator<Item = &Stalled> {
        self.workers.iter().filter(|worker| worker.waits_for().is_none())
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suspects: Vec<_> = self.at_work().map(|worker| worker.replica.stage(worker.stage)).collect();
        let suspects = if suspects.is_empty() { "none, all workers wait".to_owned() } else { suspects.join(", ") };
        write!(f, "nothing has begun for {:.1} s in {}; at work: {suspects}", self.still.as_secs_f64(), self.during)?;
        for worker in &self.workers {
            let stage = worker.replica.stage(worker.stage);
            write!(f, "\n  {stage}: {} since {:.1} s", worker.activity, worker.since.as_secs_f64())?;
            if let Some(cause) = worker.waits_for() {
                write!(f, ", waiting for {cause}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_after_the_floor_or_many_actions() {
        let watchdog = Watchdog { floor: Duration::from_secs(2), factor: 10.0, grace: Duration::ZERO };
        assert_eq!(watchdog.limit(Duration::ZERO), Duration::from_secs(2));
        assert_eq!(watchdog.limit(Duration::from_secs(1)), Duration::from_secs(10));
        assert_eq!(Watchdog { factor: 1e300, ..watchdog }.limit(Duration::from_secs(1)), Duration::MAX);
        assert!(!Watchdog { factor: f64::NAN, ..watchdog }.is_sound());
    }

    #[test]
    fn a_stall_counts_from_the_last_new_activity() {
        let now = Instant::now();
        let before = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let replica = Replica::default();
        let place = |since| vec![Place { replica, stage: 0, activity: Activity::Finish, since }];
        let seen = |began, places: [Instant; 2]| Stall::seen(places.map(place).into_iter(), began, During::Step(0));
        let stall = seen(before(50), [before(40), before(10)]);
        assert!(stall.still >= Duration::from_secs(10) && stall.still < stall.workers[0].since);
        // An activity that began before the stalled step counts from the start of the step.
        let stall = seen(before(5), [before(40), before(10)]);
        assert!(
            stall.still < Duration::from_secs(10) && stall.workers.iter().all(|worker| worker.since == stall.still)
        );
    }

    #[test]
    fn the_report_names_stages_at_work_and_what_the_others_wait_for() {
        let second = |seconds| Duration::from_secs(seconds);
        let replica = Replica::default();
        let at = |stage, text: &str, since| Stalled {
            replica,
            stage,
            activity: Activity::Instruction(text.parse().unwrap()),
            since: second(since),
        };
        let workers = vec![
            at(0, "0RECV_B0", 31),
            at(1, "1F1", 33),
            Stalled { replica, stage: 2, activity: Activity::Verdict, since: second(32) },
        ];
        let stall = Stall { during: During::Step(7), still: second(31), recent: vec![workers.clone()], workers };
        assert_eq!(
            stall.to_string(),
            "nothing has begun for 31.0 s in step 7; at work: stage 1\n  \
             stage 0: action 0RECV_B0, micro-batch 0, since 31.0 s, waiting for stage 1\n  \
             stage 1: action 1F1, micro-batch 1, since 33.0 s\n  \
             stage 2: the wait at the flush since 32.0 s, waiting for all stages"
        );
        let json = stall.to_json();
        assert_eq!(json["recent"][0][1], json["workers"][1]);
        assert_eq!(json["workers"][0]["waits_for"], "stage 1");
        assert_eq!((&json["still_seconds"], &json["during"]), (&json!(31.0), &json!("step 7")));
    }

    #[test]
    fn a_progress_board_keeps_the_most_recent_activities() {
        let replica = Replica::default();
        let board = ProgressBoard::new(replica, 3);
        for stage in 0..RECENT + 2 {
            let place = Place { replica, stage, activity: Activity::Finish, since: Instant::now() };
            board.tell(place, Duration::from_secs(stage as u64));
        }
        assert_eq!(board.longest(), Duration::from_secs(RECENT as u64 + 1));
        let stages: Vec<_> = board.places().iter().map(|place| place.stage).collect();
        assert_eq!(stages, (2..RECENT + 2).collect::<Vec<_>>());
    }
}
