//! Tests whether a plan deadlocks at a given channel capacity, and finds the smallest capacity without a deadlock. The
//! channel capacity is the number of micro-batches that a channel between two stages can hold.

use super::deadlock::Deadlock;
use super::replay::{Observer, replay};
use crate::costs::Costs;
use crate::plan::Plan;

/// Tests whether a plan deadlocks if each channel between two stages holds `capacity` micro-batches, by running it on
/// simulated workers. Reports actions and sends to `observer`, and returns a deadlock as an error. The simulated times
/// are arbitrary, because they do not decide whether the plan deadlocks.
pub(crate) fn run(plan: &Plan, capacity: usize, observer: &mut impl Observer) -> Result<(), Deadlock> {
    replay(plan, capacity, &Costs::uniform(plan.stages(), 1.0, 2.0), observer)
}

/// Whether a plan runs to its end without a deadlock if each channel between two stages holds `capacity` micro-batches.
pub(crate) fn completes(plan: &Plan, capacity: usize) -> bool {
    run(plan, capacity, &mut ()).is_ok()
}

/// Returns the smallest channel capacity, in micro-batches per channel between two stages, at which a plan does not
/// deadlock. `safe` returns whether the plan is free of deadlocks at a given capacity.
///
/// The plan must deadlock at the capacity `unsafe_capacity`. Returns `None` if it also deadlocks at `micro_batches`,
/// the number of micro-batches in a step: a channel never holds more, so a larger capacity does not help.
///
/// The method is bisection, which is valid because a larger capacity never causes a deadlock.
pub(crate) fn least_safe(unsafe_capacity: usize, micro_batches: usize, safe: impl Fn(usize) -> bool) -> Option<usize> {
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

    #[test]
    fn the_least_safe_capacity_is_found() {
        for least in 1..=20 {
            assert_eq!(least_safe(0, 20, |capacity| capacity >= least), Some(least));
        }
        assert_eq!(least_safe(0, 20, |_| false), None);
        assert_eq!(least_safe(usize::MAX, 20, |_| true), None);
    }
}
