//! Times two closures in turn and compares them pair by pair, so that a drift of the machine affects both.

use std::fmt;
use std::time::{Duration, Instant};

/// The number of runs of each closure before the timed ones.
const WARM_UP: usize = 2;

/// The times of two closures in seconds, pair by pair.
pub struct Pairs(Vec<(f64, f64)>);

/// Runs `a` and `b` in turn, `rounds` times each after a warm-up, and returns their times.
pub fn side_by_side(rounds: usize, mut a: impl FnMut(), mut b: impl FnMut()) -> Pairs {
    for _ in 0..WARM_UP {
        a();
        b();
    }
    let pair = |_| (time(&mut a).as_secs_f64(), time(&mut b).as_secs_f64());
    Pairs((0..rounds).map(pair).collect())
}

/// Returns the time that one call takes.
pub fn time(mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

impl Pairs {
    /// Returns the median time of each closure, in seconds.
    pub fn medians(&self) -> (f64, f64) {
        (median(self.0.iter().map(|pair| pair.0)), median(self.0.iter().map(|pair| pair.1)))
    }

    /// Returns the least time of each closure, in seconds.
    pub fn fastest(&self) -> (f64, f64) {
        let least = |times: &mut dyn Iterator<Item = f64>| times.fold(f64::INFINITY, f64::min);
        (least(&mut self.0.iter().map(|pair| pair.0)), least(&mut self.0.iter().map(|pair| pair.1)))
    }

    /// Returns the least, the median and the greatest ratio a/b of the pairs.
    fn ratios(&self) -> (f64, f64, f64) {
        let ratios = || self.0.iter().map(|(a, b)| a / b);
        (ratios().fold(f64::INFINITY, f64::min), median(ratios()), ratios().fold(0.0, f64::max))
    }
}

/// Prints the median of the ratios a/b with its range, and the ratio of the fastest times, which other load on the
/// machine disturbs least.
impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, middle, greatest) = self.ratios();
        let (fastest_a, fastest_b) = self.fastest();
        write!(f, "{middle:.3} ({least:.3} to {greatest:.3}); of the fastest {:.3}", fastest_a / fastest_b)
    }
}

/// Returns the middle value after sorting, the upper one of two.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
