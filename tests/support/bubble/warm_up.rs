//! The warm-up of a measured case: steps are repeated until the times of the last ones agree ([`WarmUp`]), because the
//! first steps on a GPU compile and tune kernels.

/// The criterion that ends a warm-up: the times of the last steps agree, or the warm-up has reached its largest number
/// of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUp {
    /// The number of consecutive steps whose times must agree to end a warm-up; at least 2.
    pub agreeing: usize,
    /// The largest spread of step times that agree: the longest time minus the shortest, as a share of the shortest.
    pub within: f64,
    /// The largest number of steps in a warm-up. A warm-up makes at least `agreeing` steps, even if this number is
    /// smaller.
    pub most: usize,
}

/// The result of a warm-up: its number of steps, and whether the times of its last steps agreed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmedUp {
    pub steps: usize,
    /// The spread of the step times at the end of the warm-up: how much longer the longest of the last steps took than
    /// the shortest, as a share of the shortest.
    pub spread: f64,
    /// Whether the times of the last warm-up steps agreed; false if the warm-up ended because of its largest number of
    /// steps.
    pub settled: bool,
}

impl WarmUp {
    /// Makes steps until the warm-up ends. `step` makes one step and returns its time in seconds.
    ///
    /// # Errors
    /// Returns the first error of `step`.
    pub fn run<E>(self, mut step: impl FnMut() -> Result<f64, E>) -> Result<WarmedUp, E> {
        let Self { agreeing, within, most } = self;
        let mut seconds = Vec::new();
        loop {
            seconds.push(step()?);
            let steps = seconds.len();
            let Some(first) = steps.checked_sub(agreeing) else { continue };
            let last = &seconds[first..];
            let longest = last.iter().copied().fold(0.0, f64::max);
            let shortest = last.iter().copied().fold(f64::INFINITY, f64::min);
            let spread = longest / shortest - 1.0;
            let settled = spread <= within;
            if settled || steps >= most {
                return Ok(WarmedUp { steps, spread, settled });
            }
        }
    }
}

impl WarmedUp {
    /// Combines two warm-ups into one result: the larger number of steps, and the larger spread of step times. It is
    /// settled only if both warm-ups settled.
    pub fn and(self, other: Self) -> Self {
        Self {
            steps: self.steps.max(other.steps),
            spread: self.spread.max(other.spread),
            settled: self.settled && other.settled,
        }
    }
}
