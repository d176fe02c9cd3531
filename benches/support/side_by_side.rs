//! Two things timed in turn, so that a machine's drift touches both, and compared pair by pair.

use std::fmt;
use std::time::{Duration, Instant};

/// How often everything is run before it is timed.
const WARM_UP: usize = 2;

/// The times of two things, pair by pair.
pub struct Pairs(Vec<(f64, f64)>);

/// Runs `a` and `b` in turn, `rounds` times each, and times them.
pub fn side_by_side(rounds: usize, mut a: impl FnMut(), mut b: impl FnMut()) -> Pairs {
    for _ in 0..WARM_UP {
        a();
        b();
    }
    let pair = |_| (time(&mut a).as_secs_f64(), time(&mut b).as_secs_f64());
    Pairs((0..rounds).map(pair).collect())
}

/// How long one call takes.
pub fn time(mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

impl Pairs {
    /// The median times, in seconds.
    pub fn medians(&self) -> (f64, f64) {
        (median(self.0.iter().map(|pair| pair.0)), median(self.0.iter().map(|pair| pair.1)))
    }

    /// The least times, in seconds.
    pub fn fastest(&self) -> (f64, f64) {
        let least = |times: &mut dyn Iterator<Item = f64>| times.fold(f64::INFINITY, f64::min);
        (least(&mut self.0.iter().map(|pair| pair.0)), least(&mut self.0.iter().map(|pair| pair.1)))
    }

    /// Least, median and greatest of the ratios a/b of the pairs.
    fn ratios(&self) -> (f64, f64, f64) {
        let ratios = || self.0.iter().map(|(a, b)| a / b);
        (ratios().fold(f64::INFINITY, f64::min), median(ratios()), ratios().fold(0.0, f64::max))
    }
}

/// What to print of pairs: the median of the ratios a/b with its range, and the ratio of the fastest times, which a
/// neighbour on the machine disturbs least.
impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, middle, greatest) = self.ratios();
        let (fastest_a, fastest_b) = self.fastest();
        write!(f, "{middle:.3} ({least:.3} to {greatest:.3}); of the fastest {:.3}", fastest_a / fastest_b)
    }
}

/// The middle value.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
