//! A pipeline in which nothing begins any more is looked at, and in the end given up.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use stageline_schedule::Instruction;

use crate::failure::activity::{Activity, During, WaitCause};
use crate::model::replica::Replica;

/// How many of the last things that each worker began are told.
const RECENT: usize = 16;

/// How long a step or an evaluation may stand still: as long as no worker begins anything new.
///
/// Whoever waits for a slow stage is no harm, as long as some stage goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watchdog {
    /// A warning says what every stage is doing after this time,
    pub floor: Duration,
    /// or after so many times the longest action until then, if that is longer.
    pub factor: f64,
    /// The step ends with [`StepError::Stalled`](crate::StepError::Stalled) so long after the warning.
    pub grace: Duration,
}

impl Default for Watchdog {
    /// A minute, or 20 times the longest action; and then ten minutes.
    fn default() -> Self {
        Self { floor: Duration::from_secs(60), factor: 20.0, grace: Duration::from_secs(600) }
    }
}

impl Watchdog {
    /// Whether limits are what time can be.
    pub(crate) fn is_sound(&self) -> bool {
        self.factor.is_finite() && self.factor >= 0.0 && !self.floor.is_zero()
    }

    /// How often to look.
    pub(crate) fn interval(&self) -> Duration {
        (self.floor / 8).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    /// How long nothing may begin before the warning.
    pub(crate) fn limit(&self, longest: Duration) -> Duration {
        self.floor.max(self.many(longest))
    }

    /// So many times an action.
    pub(crate) fn many(&self, longest: Duration) -> Duration {
        // What is longer than any time never passes.
        Duration::try_from_secs_f64(longest.as_secs_f64() * self.factor).unwrap_or(Duration::MAX)
    }
}

/// Where one worker is: what it was last seen to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    pub(crate) activity: Activity,
    pub(crate) since: Instant,
}

/// Where a worker tells its places, and the caller looks them up.
#[derive(Clone)]
pub(crate) struct ProgressBoard(Arc<Mutex<VecDeque<Place>>>);

impl ProgressBoard {
    pub(crate) fn new(replica: Replica, stage: usize) -> Self {
        let mut places = VecDeque::with_capacity(RECENT);
        places.push_back(Place { replica, stage, activity: Activity::Start, since: Instant::now() });
        Self(Arc::new(Mutex::new(places)))
    }

    pub(crate) fn tell(&self, place: Place) {
        let mut places = self.0.lock();
        if places.len() == RECENT {
            places.pop_front();
        }
        places.push_back(place);
    }

    /// The last ones, the present one last.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.0.lock().iter().copied().collect()
    }
}

/// A pipeline that stands still.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stall {
    /// In what.
    pub during: During,
    /// For how long nothing has begun.
    pub still: Duration,
    /// Where each worker is.
    pub workers: Vec<Stalled>,
    /// What each of them began last, the oldest first, and how long ago.
    pub recent: Vec<Vec<Stalled>>,
}

/// Where one worker is in a pipeline that stands still.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stalled {
    /// Of which replica it is.
    pub replica: Replica,
    /// For which stage it is at that.
    pub stage: usize,
    /// What it is at.
    pub activity: Activity,
    /// For how long.
    pub since: Duration,
}

impl Stalled {
    /// For whom it waits, if it is at something that waits for others.
    pub fn waits_for(&self) -> Option<WaitCause> {
        let computes = matches!(
            self.activity,
            Activity::Start | Activity::Instruction(Instruction::Compute(_)) | Activity::OptimizerStep
        );
        self.activity.wait_cause().filter(|_| !computes)
    }
}

impl Stall {
    /// What the workers' posts show at a time since which the pass began.
    pub(crate) fn seen(posts: impl Iterator<Item = Vec<Place>>, began: Instant, during: During) -> Self {
        let now = Instant::now();
        let posts: Vec<_> = posts.collect();
        let last = posts.iter().flatten().map(|place| place.since).fold(began, Instant::max);
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
            workers: posts.iter().filter_map(present).collect(),
            recent: posts.iter().map(recent).collect(),
        }
    }

    /// All of it as JSON, in seconds.
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

    /// The stages that are at work, and not waiting: one of them holds up the others.
    pub fn at_work(&self) -> impl Iterator<Item = &Stalled> {
        self.workers.iter().filter(|worker| worker.waits_for().is_none())
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suspects: Vec<_> = self.at_work().map(|worker| worker.replica.stage(worker.stage)).collect();
        let suspects = if suspects.is_empty() { "none, all of them wait".to_owned() } else { suspects.join(", ") };
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
    fn it_stands_still_since_the_last_worker_began_something() {
        let now = Instant::now();
        let before = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let replica = Replica::default();
        let place = |since| vec![Place { replica, stage: 0, activity: Activity::Finish, since }];
        let seen = |began, places: [Instant; 2]| Stall::seen(places.map(place).into_iter(), began, During::Step(0));
        let stall = seen(before(50), [before(40), before(10)]);
        assert!(stall.still >= Duration::from_secs(10) && stall.still < stall.workers[0].since);
        // What was before the pass does not count.
        let stall = seen(before(5), [before(40), before(10)]);
        assert!(
            stall.still < Duration::from_secs(10) && stall.workers.iter().all(|worker| worker.since == stall.still)
        );
    }

    #[test]
    fn the_table_names_who_works_and_whom_the_others_wait_for() {
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
    fn a_post_remembers_the_last_places() {
        let replica = Replica::default();
        let post = ProgressBoard::new(replica, 3);
        for stage in 0..RECENT + 2 {
            post.tell(Place { replica, stage, activity: Activity::Finish, since: Instant::now() });
        }
        let stages: Vec<_> = post.places().iter().map(|place| place.stage).collect();
        assert_eq!(stages, (2..RECENT + 2).collect::<Vec<_>>());
    }
}
