//! Times two closures in turn and compares their times pair by pair, so that a drift of the machine's speed affects
//! both.

use std::fmt;
use std::time::{Duration, Instant};

/// The number of warm-up runs of each of two compared closures, before their timed runs.
const WARM_UP: usize = 2;

/// The times of two compared closures in seconds, as pairs of runs that followed each other.
pub struct Pairs(Vec<(f64, f64)>);

/// Runs the closures `a` and `b` in turn, `rounds` times each after a warm-up, and returns their times.
pub fn side_by_side(rounds: usize, mut a: impl FnMut(), mut b: impl FnMut()) -> Pairs {
    for _ in 0..WARM_UP {
        a();
        b();
    }
    let pair = |_| (time(&mut a).as_secs_f64(), time(&mut b).as_secs_f64());
    Pairs((0..rounds).map(pair).collect())
}

pub fn time(mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

impl Pairs {
    /// Returns the median time of each of the two compared closures, in seconds.
    pub fn medians(&self) -> (f64, f64) {
        (median(self.0.iter().map(|pair| pair.0)), median(self.0.iter().map(|pair| pair.1)))
    }

    /// Returns the median of the ratios a/b of the two closures' times, and the bounds of a 95% confidence interval of
    /// this median.
    ///
    /// The bounds are two of the ratios. The number of ratios below the true median has a binomial distribution, with
    /// the mean n / 2 and the standard deviation sqrt(n) / 2. The ranks of the bounds follow from it. The pairs must be
    /// independent; the distribution of the times does not matter.
    pub fn median_ratio(&self) -> (f64, [f64; 2]) {
        let mut ratios: Vec<_> = self.0.iter().map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        let pairs = ratios.len() as f64;
        let below = (pairs / 2.0 - 1.96 * pairs.sqrt() / 2.0).max(1.0) as usize;
        (median(ratios.iter().copied()), [ratios[below - 1], ratios[ratios.len() - below]])
    }

    /// Returns the shortest time of each of the two compared closures, in seconds.
    pub fn fastest(&self) -> (f64, f64) {
        let least = |times: &mut dyn Iterator<Item = f64>| times.fold(f64::INFINITY, f64::min);
        (least(&mut self.0.iter().map(|pair| pair.0)), least(&mut self.0.iter().map(|pair| pair.1)))
    }

    /// Returns the least, the median and the greatest of the ratios a/b of the two closures' times, one ratio for each
    /// pair of runs.
    fn ratios(&self) -> (f64, f64, f64) {
        let ratios = || self.0.iter().map(|(a, b)| a / b);
        (ratios().fold(f64::INFINITY, f64::min), median(ratios()), ratios().fold(0.0, f64::max))
    }
}

/// Displays the median and the range of the ratios a/b of two closures' times, and the ratio of their shortest times.
/// Other load on the machine disturbs the shortest times least.
impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, middle, greatest) = self.ratios();
        let (fastest_a, fastest_b) = self.fastest();
        write!(f, "{middle:.3} ({least:.3} to {greatest:.3}); of the fastest {:.3}", fastest_a / fastest_b)
    }
}

/// Returns the median of the given values; of two middle values, the larger one.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
