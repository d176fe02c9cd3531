//! Refuses a plan that is incomplete, out of order, or can deadlock.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat;

use crate::action::Action;
use crate::check_error::CheckError;
use crate::costs::Costs;
use crate::deadlock::Deadlock;
use crate::excerpt::Excerpt;
use crate::lower::{Instruction, Transfer, lower};
use crate::memory::live_after;
use crate::placement::Placement;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::replay::{Observer, replay};

/// A plan that is proved to complete at a channel capacity, ready to be interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    plan: Plan,
    capacity: usize,
}

impl Checked {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The worker of every stage.
    pub fn placement(&self) -> Placement {
        self.plan.placement()
    }

    /// What a worker does, in order, its transfers included.
    ///
    /// # Panics
    /// If the plan has no such worker.
    pub fn instructions(&self, worker: usize) -> impl Iterator<Item = Instruction> + '_ {
        lower(&self.plan, worker)
    }

    /// The channel capacity at which it completes, in micro-batches; 0 is a rendezvous.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The least channel capacity at which it completes.
    pub fn least_capacity(&self) -> usize {
        let safe = |capacity| run(&self.plan, capacity, &mut ()).is_ok();
        if safe(0) { 0 } else { least_safe(0, self.capacity, safe).unwrap_or(self.capacity) }
    }

    /// One global order of all transfers: a linear extension of every worker's list, by simulated time.
    ///
    /// Workers that take turns by this order never wait for a transfer that stands later in it.
    pub fn transfers(&self) -> Vec<Transfer> {
        let mut order = Order(Vec::new());
        run(&self.plan, self.capacity, &mut order).expect("a checked plan completes");
        // Stable, and causes are told before their effects, so causes stay first at equal times.
        order.0.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        order.0.into_iter().map(|(_, transfer)| transfer).collect()
    }

    /// This plan, if no worker ever holds more than `limit` live micro-batches, those of all its stages added up.
    ///
    /// # Errors
    /// [`CheckError::TooManyLive`].
    pub fn at_most_live(self, limit: usize) -> Result<Self, CheckError> {
        let peaks = self.plan.peak_live();
        let Some(worker) = peaks.iter().position(|peak| *peak > limit) else { return Ok(self) };
        let row = &self.plan.rows()[worker];
        let mut live = 0;
        let exceeds = |action: &Action| {
            live = live_after(live, action.compute);
            live > limit
        };
        let at = row.iter().position(exceeds).expect("the peak exceeds the limit somewhere");
        let needed = peaks.into_iter().max().unwrap_or(0);
        Err(CheckError::TooManyLive {
            worker,
            action: row[at],
            limit,
            needed,
            excerpt: Excerpt::around(&self.plan, &[(worker, at)]),
        })
    }

    /// The forwards of this plan for its first `micro_batches` micro-batches: a plan for evaluation.
    ///
    /// It completes as this one does: leaving all other actions out of a run of this plan leaves a run of that one.
    pub fn forwards(&self, micro_batches: usize) -> Self {
        Self { plan: self.plan.forward_only(micro_batches), capacity: self.capacity }
    }

    /// Two micro-batches, one after the other, through all stages and back, on the same workers: a plan to see what one holds.
    ///
    /// It completes as this one does: a channel never has to hold more than one of them.
    pub fn rehearsal(&self) -> Self {
        Self { plan: self.plan.one_by_one(2), capacity: self.capacity }
    }

    /// Two steps, of which the second begins on a worker when that is done with the first: micro-batches from M on are its own.
    ///
    /// It completes as this one does: the first step waits for nothing of the second.
    pub fn twice(&self) -> Self {
        Self { plan: self.plan.twice(), capacity: self.capacity }
    }
}

struct Order(Vec<(f64, Transfer)>);

impl Observer for Order {
    fn sent(&mut self, transfer: Transfer, time: f64) {
        self.0.push((time, transfer));
    }
}

/// A replay at any costs: whether a plan completes does not depend on them.
fn run(plan: &Plan, capacity: usize, observer: &mut impl Observer) -> Result<(), Deadlock> {
    replay(plan, capacity, &Costs::uniform(plan.stages(), 1.0, 2.0), observer)
}

/// Checks a plan for training: every stage forwards and then backwards every micro-batch, exactly once, on one worker,
/// and the plan completes with channels that hold `capacity` micro-batches.
///
/// # Errors
/// [`CheckError`], which names the stage, the action and what it waits for.
pub fn check(plan: Plan, capacity: usize) -> Result<Checked, CheckError> {
    every_stage_has_one_worker(&plan)?;
    every_micro_batch_is_trained_once(&plan)?;
    completes(&plan, capacity)?;
    Ok(Checked { plan, capacity })
}

fn every_stage_has_one_worker(plan: &Plan) -> Result<(), CheckError> {
    if plan.stages() == 0 {
        return Err(CheckError::Empty);
    }
    let mut owners = BTreeMap::new();
    for (worker, row) in plan.rows().iter().enumerate() {
        if row.is_empty() {
            return Err(CheckError::IdleWorker { worker });
        }
        for action in row {
            let owner = *owners.entry(action.stage).or_insert(worker);
            if owner != worker {
                let place = |worker: usize| {
                    let row = &plan.rows()[worker];
                    row.iter().position(|other| other.stage == action.stage).map(|at| (worker, at))
                };
                let places: Vec<_> = [owner, worker].into_iter().filter_map(place).collect();
                let excerpt = Excerpt::around(plan, &places);
                return Err(CheckError::TwoWorkers { stage: action.stage, workers: (owner, worker), excerpt });
            }
        }
    }
    Ok(())
}

fn every_micro_batch_is_trained_once(plan: &Plan) -> Result<(), CheckError> {
    let (stages, micro_batches) = (plan.stages(), plan.micro_batches());
    let actions = || plan.rows().iter().flatten();
    let pairs = stages.checked_mul(micro_batches).filter(|pairs| *pairs <= actions().count());
    let Some(pairs) = pairs else { return Err(missing(plan)) };
    let mut progress = vec![Progress::Nothing; pairs];
    for action in actions() {
        let at = &mut progress[action.stage * micro_batches + action.micro_batch];
        *at = at.after(action.compute);
    }
    let wrong = progress.iter().position(|progress| *progress != Progress::Trained);
    wrong.map_or(Ok(()), |pair| Err(sequence(plan, pair / micro_batches, pair % micro_batches)))
}

/// The first micro-batch that a stage never sees, of a plan that has fewer actions than pairs of the two.
fn missing(plan: &Plan) -> CheckError {
    let seen: BTreeSet<_> = plan.rows().iter().flatten().map(|action| (action.stage, action.micro_batch)).collect();
    let pairs = (0..plan.stages()).flat_map(|stage| (0..plan.micro_batches()).map(move |m| (stage, m)));
    let mut compared = pairs.zip(seen.into_iter().map(Some).chain(repeat(None)));
    let first = compared.find(|(pair, seen)| Some(*pair) != *seen);
    let ((stage, micro_batch), _) = first.expect("fewer are seen than there are");
    sequence(plan, stage, micro_batch)
}

fn sequence(plan: &Plan, stage: usize, micro_batch: usize) -> CheckError {
    let of_pair = |action: &Action| (action.stage, action.micro_batch) == (stage, micro_batch);
    let found = plan.rows().iter().flatten().copied().filter(of_pair).map(|action| action.compute).collect();
    // Where it is, or else where it should have been.
    let near = |action: &Action| action.stage == stage && action.micro_batch >= micro_batch;
    let place = |wanted: &dyn Fn(&Action) -> bool| {
        plan.rows().iter().enumerate().find_map(|(worker, row)| Some((worker, row.iter().position(wanted)?)))
    };
    let places: Vec<_> = place(&of_pair).or_else(|| place(&near)).into_iter().collect();
    CheckError::Sequence { stage, micro_batch, found, excerpt: Excerpt::around(plan, &places) }
}

fn completes(plan: &Plan, capacity: usize) -> Result<(), CheckError> {
    run(plan, capacity, &mut ()).map_err(|deadlock| {
        let safe = |capacity| run(plan, capacity, &mut ()).is_ok();
        let places: Vec<_> = deadlock.blocked.iter().map(|blocked| (blocked.worker, blocked.action)).collect();
        CheckError::Deadlock {
            capacity,
            least_capacity: least_safe(capacity, plan.micro_batches(), safe),
            excerpt: Excerpt::around(plan, &places),
            deadlock,
        }
    })
}

/// The least safe capacity above one that is not: more room never hurts, and room for all micro-batches is never used up.
fn least_safe(unsafe_capacity: usize, micro_batches: usize, safe: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut below, mut above) = (unsafe_capacity, micro_batches);
    if below >= above || !safe(above) {
        return None;
    }
    while below + 1 < above {
        let middle = below + (above - below) / 2;
        if safe(middle) { above = middle } else { below = middle }
    }
    Some(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(csv: &str, capacity: usize) -> String {
        check(Plan::from_csv(csv).unwrap(), capacity).unwrap_err().to_string()
    }

    #[test]
    fn incomplete_doubled_and_early_actions_are_named() {
        let rule = "it must do `F B` or `F I W`";
        for (csv, found, fault, excerpt) in [
            ("0F0\n1F0,1B0\n", "stage 0 does `F`", "0B0 is missing", "worker 0: [0F0]"),
            ("0F0,0B0\n1B0,1F0\n", "stage 1 does `B F`", "1B0 comes before 1F0", "worker 1: [1B0] 1F0"),
            ("0F0,0F0,0B0\n", "stage 0 does `F F B`", "0F0 is one too many", "worker 0: [0F0] 0F0 0B0"),
            ("0F1,0B1\n", "stage 0 does nothing", "0F0 is missing", "worker 0: [0F1] 0B1"),
            ("0F0,0I0,0W0,0B0\n", "stage 0 does `F I W B`", "0B0 is one too many", "worker 0: [0F0] 0I0 0W0 0B0"),
            ("0F0,0W0,0I0\n", "stage 0 does `F W I`", "0W0 comes before 0I0", "worker 0: [0F0] 0W0 0I0"),
        ] {
            assert_eq!(refused(csv, 1), format!("{found} to micro-batch 0; {rule}: {fault}\n  {excerpt}"));
        }
    }

    #[test]
    fn a_plan_with_absurd_numbers_is_refused_at_once() {
        assert!(refused("18446744073709551614F18446744073709551614\n", 1).starts_with("stage 0 does nothing"));
        let message = refused("0F0,0F1,0F2,1F0,1F2,2F0\n", 1);
        assert!(message.starts_with("stage 1 does nothing to micro-batch 1;"), "{message}");
    }

    #[test]
    fn an_empty_plan_is_refused() {
        assert_eq!(refused("", 1), "the plan has no actions; write at least `0F0,0B0`");
        assert!(refused("\n\n", usize::MAX).starts_with("the plan has no actions"));
    }

    #[test]
    fn the_least_safe_capacity_is_found() {
        for least in 1..=20 {
            assert_eq!(least_safe(0, 20, |capacity| capacity >= least), Some(least));
        }
        assert_eq!(least_safe(0, 20, |_| false), None);
        assert_eq!(least_safe(usize::MAX, 20, |_| true), None);
    }

    #[test]
    fn stages_and_workers_must_match() {
        let message = refused("0F0\n0B0\n", 1);
        assert!(message.starts_with("stage 0 has actions on worker 0 and on worker 1"), "{message}");
        assert!(message.ends_with("\n  worker 0: [0F0]\n  worker 1: [0B0]"), "{message}");
        assert!(refused("0F0,0B0\n\n1F0,1B0\n", 1).starts_with("worker 1 has no actions"));
    }

    #[test]
    fn a_deadlock_names_who_waits_for_what_and_the_least_safe_capacity() {
        // Stage 0 wants both forwards out before it takes a gradient; stage 1 returns a gradient in between.
        let message = refused("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", 0);
        assert!(message.contains("worker 0 at 0SEND_F1 waits for room in the channel to stage 1"), "{message}");
        assert!(message.contains("worker 1 at 1SEND_B0 waits for room in the channel to stage 0"), "{message}");
        let excerpt = "worker 0: 0F0 [0F1] 0F2 0B0 0B1 0B2\n  worker 1: 1F0 [1B0] 1F1 1B1 1F2 1B2";
        assert!(message.ends_with(&format!("raise the channel capacity to 1\n  {excerpt}")), "{message}");
    }

    #[test]
    fn an_order_that_no_capacity_saves_is_said_to_be_one() {
        let message = refused("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n", 2);
        assert!(message.contains("worker 1 at 1RECV_F1 waits for stage 0 to send it"), "{message}");
        assert!(message.contains("but micro-batch 0 came first"), "{message}");
        assert!(message.contains("put its actions into another order\n"), "{message}");
    }

    #[test]
    fn too_many_live_micro_batches_are_refused_where_they_begin() {
        let csv = "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n";
        let checked = check(Plan::from_csv(csv).unwrap(), 3).unwrap();
        let message = checked.clone().at_most_live(2).unwrap_err().to_string();
        let expected = "worker 0 would hold 3 live micro-batches at 0F2, and may hold 2; raise the limit to 3, or take a \
                        schedule that begins its backwards earlier\n  worker 0: 0F0 0F1 [0F2] 0B0 0F3 0B1 0B2 ...";
        assert_eq!(message, expected);
        assert!(checked.at_most_live(3).is_ok());
    }

    #[test]
    fn chunks_of_one_worker_may_exchange_with_each_other() {
        // Two workers with two chunks each: stage 1's output goes to stage 2 on worker 0 again.
        let plan = Plan::from_csv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n").unwrap();
        assert_eq!(check(plan, 1).unwrap().transfers().len(), 6);
    }
}
