//! Validates a plan: it must be complete, in order, and free of deadlocks with channels that hold a given number of
//! micro-batches.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat;

use super::capacity::{completes, least_safe, run};
use super::checked::Checked;
use super::error::CheckError;
use super::excerpt::Excerpt;
use super::sequence::Progress;
use crate::plan::{Action, Plan};

/// Checks that a plan trains on every micro-batch and does not deadlock, and returns it as a [`Checked`] plan. The
/// check has two parts:
///
/// - Every stage runs one forward pass and then one backward pass on every micro-batch, always on the same worker.
/// - The plan does not deadlock if each channel between two stages holds `capacity` micro-batches. With capacity 0, a
///   sender waits until the receiver takes the message.
///
/// # Errors
/// Returns a [`CheckError`] that names the faulty stage, the action and the cause.
pub fn check(plan: Plan, capacity: usize) -> Result<Checked, CheckError> {
    every_stage_has_one_worker(&plan)?;
    every_micro_batch_is_trained_once(&plan)?;
    never_deadlocks(&plan, capacity)?;
    Ok(Checked::new(plan, capacity))
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
    // A plan with huge indices has fewer actions than stage x micro-batch pairs, and is rejected here. So the table of
    // pairs is never larger than the plan.
    let pairs = stages.checked_mul(micro_batches).filter(|pairs| *pairs <= actions().count());
    let Some(pairs) = pairs else { return Err(first_missing(plan)) };
    let mut progress = vec![Progress::Nothing; pairs];
    for action in actions() {
        let at = &mut progress[action.stage * micro_batches + action.micro_batch];
        *at = at.after(action.compute);
    }
    let wrong = progress.iter().position(|progress| *progress != Progress::Trained);
    wrong.map_or(Ok(()), |pair| Err(sequence_error(plan, pair / micro_batches, pair % micro_batches)))
}

/// Returns the error for the first pair of stage and micro-batch without an action in the plan. The caller must know
/// that such a pair exists.
fn first_missing(plan: &Plan) -> CheckError {
    let seen: BTreeSet<_> = plan.rows().iter().flatten().map(|action| (action.stage, action.micro_batch)).collect();
    let pairs = (0..plan.stages()).flat_map(|stage| (0..plan.micro_batches()).map(move |m| (stage, m)));
    let mut compared = pairs.zip(seen.into_iter().map(Some).chain(repeat(None)));
    let first = compared.find(|(pair, seen)| Some(*pair) != *seen);
    let ((stage, micro_batch), _) = first.expect("the plan has fewer actions than pairs");
    sequence_error(plan, stage, micro_batch)
}

fn sequence_error(plan: &Plan, stage: usize, micro_batch: usize) -> CheckError {
    let matches = |action: &Action| (action.stage, action.micro_batch) == (stage, micro_batch);
    let found = plan.rows().iter().flatten().copied().filter(matches).map(|action| action.compute).collect();
    // The excerpt shows the stage's first action on the micro-batch, or the place where this action is missing.
    let near = |action: &Action| action.stage == stage && action.micro_batch >= micro_batch;
    let place = |wanted: &dyn Fn(&Action) -> bool| {
        plan.rows().iter().enumerate().find_map(|(worker, row)| Some((worker, row.iter().position(wanted)?)))
    };
    let places: Vec<_> = place(&matches).or_else(|| place(&near)).into_iter().collect();
    CheckError::Sequence { stage, micro_batch, found, excerpt: Excerpt::around(plan, &places) }
}

fn never_deadlocks(plan: &Plan, capacity: usize) -> Result<(), CheckError> {
    run(plan, capacity, &mut ()).map_err(|deadlock| {
        let safe = |capacity| completes(plan, capacity);
        let places: Vec<_> = deadlock.blocked.iter().map(|blocked| (blocked.worker, blocked.action)).collect();
        CheckError::Deadlock {
            capacity,
            least_capacity: least_safe(capacity, plan.micro_batches(), safe),
            excerpt: Excerpt::around(plan, &places),
            deadlock,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(csv: &str, capacity: usize) -> String {
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
            assert_eq!(rejected(csv, 1), format!("{found} to micro-batch 0; {rule}: {fault}\n  {excerpt}"));
        }
    }

    #[test]
    fn a_plan_with_absurd_numbers_is_rejected_at_once() {
        assert!(rejected("18446744073709551614F18446744073709551614\n", 1).starts_with("stage 0 does nothing"));
        let message = rejected("0F0,0F1,0F2,1F0,1F2,2F0\n", 1);
        assert!(message.starts_with("stage 1 does nothing to micro-batch 1;"), "{message}");
    }

    #[test]
    fn an_empty_plan_is_rejected() {
        assert_eq!(rejected("", 1), "the plan has no actions; write at least `0F0,0B0`");
        assert!(rejected("\n\n", usize::MAX).starts_with("the plan has no actions"));
    }

    #[test]
    fn stages_and_workers_must_match() {
        let message = rejected("0F0\n0B0\n", 1);
        assert!(message.starts_with("stage 0 has actions on worker 0 and on worker 1"), "{message}");
        assert!(message.ends_with("\n  worker 0: [0F0]\n  worker 1: [0B0]"), "{message}");
        assert!(rejected("0F0,0B0\n\n1F0,1B0\n", 1).starts_with("worker 1 has no actions"));
    }

    #[test]
    fn a_deadlock_names_each_blocked_worker_and_the_least_safe_capacity() {
        // Stage 0 sends all activations before it receives a gradient, but stage 1 sends a gradient after each forward
        // pass.
        let message = rejected("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", 0);
        assert!(message.contains("worker 0 at 0SEND_F1 waits for room in the channel to stage 1"), "{message}");
        assert!(message.contains("worker 1 at 1SEND_B0 waits for room in the channel to stage 0"), "{message}");
        let excerpt = "worker 0: 0F0 [0F1] 0F2 0B0 0B1 0B2\n  worker 1: 1F0 [1B0] 1F1 1B1 1F2 1B2";
        assert!(message.ends_with(&format!("raise the channel capacity to 1\n  {excerpt}")), "{message}");
    }

    #[test]
    fn an_order_that_deadlocks_at_every_capacity_is_named_as_one() {
        let message = rejected("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n", 2);
        assert!(message.contains("worker 1 at 1RECV_F1 waits for stage 0 to send it"), "{message}");
        assert!(message.contains("but micro-batch 0 came first"), "{message}");
        assert!(message.contains("put its actions into another order\n"), "{message}");
    }
}
