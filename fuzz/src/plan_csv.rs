//! Fuzzes the parser of plans in PyTorch's CSV form, and the check that accepts or rejects plans.

use stageline_schedule::{Checked, Plan, check};

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

/// Parses a fuzz input as the CSV text of a plan (the list of actions of each worker in one step). Checks the plan with
/// several channel capacities, which are numbers of micro-batches that a channel between two stages can store.
pub fn plan_csv(bytes: &[u8]) {
    if bytes.len() > LIMIT {
        return;
    }
    let text = String::from_utf8_lossy(bytes);
    let plan = match Plan::from_csv(&text) {
        Ok(plan) => plan,
        Err(error) => {
            let line = text.lines().nth(error.row - 1).expect("the row is one of the text");
            assert!(error.column <= line.split(',').count(), "{error}");
            return assert!(!error.cause.to_string().is_empty());
        }
    };
    assert_eq!(Plan::from_csv(&plan.to_csv()).as_ref(), Ok(&plan));
    let mut completed = false;
    for capacity in [0, 1, 2, plan.micro_batches(), usize::MAX] {
        match check(plan.clone(), capacity) {
            Ok(checked) => {
                completed = true;
                assert_checked(&checked);
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                // The capacities ascend, except that the number of micro-batches may be less than 2.
                assert!(!completed || capacity == plan.micro_batches(), "more room deadlocks at {capacity}: {error}");
            }
        }
    }
}

/// Asserts the properties of a plan that [`check`] has accepted. A plan is the list of actions of each worker in one
/// step.
///
/// - `check` also accepts the plan at the least channel capacity that it reports, but not at a capacity smaller by one.
/// - The plan's CSV text with sends and receives is parsed as the same plan.
/// - The plan has two transfers for each micro-batch and boundary between stages.
/// - The plan has at least two actions for each micro-batch and stage.
fn assert_checked(checked: &Checked) {
    let (plan, least) = (checked.plan(), checked.least_capacity());
    assert!(least <= checked.capacity());
    assert!(check(plan.clone(), least).is_ok());
    assert!(least == 0 || check(plan.clone(), least - 1).is_err());
    assert_eq!(Plan::from_csv(&checked.to_lowered_csv()).as_ref(), Ok(plan));
    // For every micro-batch, each stage but the last sends its output, and each but the first sends a gradient.
    assert_eq!(checked.transfers().len(), 2 * (plan.stages() - 1) * plan.micro_batches());
    let actions: usize = plan.rows().iter().map(Vec::len).sum();
    assert!(2 * plan.stages() * plan.micro_batches() <= actions);
}
