//! Text as a plan in PyTorch's form, and the check of what it is read as.

use stageline_schedule::{Checked, Plan, check};

/// Longer inputs find nothing that shorter ones do not.
const LIMIT: usize = 4_096;

/// Reads the text, and checks the plan at the least and the most room, and at some in between.
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
                holds(&checked);
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                // Of the capacities above, all but the number of micro-batches ascend.
                assert!(!completed || capacity == plan.micro_batches(), "more room deadlocks at {capacity}: {error}");
            }
        }
    }
}

/// What holds for every plan that was checked.
fn holds(checked: &Checked) {
    let (plan, least) = (checked.plan(), checked.least_capacity());
    assert!(least <= checked.capacity());
    assert!(check(plan.clone(), least).is_ok());
    assert!(least == 0 || check(plan.clone(), least - 1).is_err());
    assert_eq!(Plan::from_csv(&checked.to_lowered_csv()).as_ref(), Ok(plan));
    // Every stage but the last sends its output, and every one but the first a gradient, for every micro-batch.
    assert_eq!(checked.transfers().len(), 2 * (plan.stages() - 1) * plan.micro_batches());
    let actions: usize = plan.rows().iter().map(Vec::len).sum();
    assert!(2 * plan.stages() * plan.micro_batches() <= actions);
}
