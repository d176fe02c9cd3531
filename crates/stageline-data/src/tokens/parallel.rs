//! Applies a function to several items in parallel, such as encoding texts: [`map`].

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `call` for all items in parallel, and returns the results in the order of the items. The items are distributed
/// among threads, one per CPU core.
///
/// # Panics
/// Panics if `call` panics.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], call: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    if threads < 2 {
        return items.iter().map(call).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, call(item)));
        }
    };
    let mut done = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        results.collect::<Vec<_>>()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_have_the_order_of_the_items() {
        let slow_at_first = |&item: &u64| {
            thread::sleep(Duration::from_micros(200 - 2 * item));
            item * item
        };
        for count in [0, 1, 2, 100] {
            let items: Vec<u64> = (0..count).collect();
            assert_eq!(map(&items, slow_at_first), items.iter().map(|item| item * item).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_of_a_call_is_passed_on() {
        let items = [1, 2, 3];
        let result = catch_unwind(|| map(&items, |item| assert_ne!(*item, 2, "no twos")));
        assert!(result.unwrap_err().downcast_ref::<String>().unwrap().contains("no twos"));
    }
}
