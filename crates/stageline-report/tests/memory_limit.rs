//! Tests the reasons for recommendations if a training run with the M of the logged run exceeds the memory limit.

mod asked;
mod synthetic;

use stageline_schedule::{GPipe, Schedule};

use asked::{advise, noise, noisy, question};
use synthetic::log;

/// Returns the recommendation for a run with M = 256, if only M may change and a worker has room for `live` live
/// micro-batches. GPipe keeps all micro-batches of a step live. The gradient has the noise scale `scale`, in tokens.
fn recommended(live: f64, scale: f64) -> String {
    let log = noisy(log(&[1.0; 8], 2, 256, 0.0), scale);
    let noise = noise(&log);
    let mut asked = question(&log, &noise, 2);
    asked.target.schedule = &GPipe as &dyn Schedule;
    asked.memory = Some(500.0 + 4.0 * (16.0 + 1000.0 * live));
    advise(&asked).unchanged.unwrap().to_string()
}

/// Returns the time of a step with `m` micro-batches in seconds: 12 (m + 1) + 2.
fn step(m: f64) -> f64 {
    (m + 1.0) * 12.0 + 2.0
}

#[test]
fn the_recommended_m_is_compared_with_one_that_fits() {
    // With so much noise, only the bubble matters, so the M of the logged run would be the fastest.
    let times = step(2.0) / 2.0 / (step(4.0) / 4.0);
    let text = recommended(4.0, 1e9);
    let expected = format!("M = 4: {times:.1} times faster to the same loss than M = 2, because its bubble is ");
    assert!(text.starts_with(&expected) && text.contains("; M = 8 needs "), "{text}");
    let text = recommended(1.0, 1e9);
    assert!(text.starts_with("no accumulation (M = 1): the only M that fits into the memory; M = 2 needs "), "{text}");
}

#[test]
fn an_m_near_that_of_the_run_is_recommended_as_such() {
    let seconds = |m: f64| step(m) * (1.0 + 1e3 / m);
    let slower = seconds(128.0) / seconds(32.0);
    assert!(slower > 1.005 && slower <= 1.1, "{slower}");
    let expected = format!(
        "M = 128: as near to the M = 256 of the run as possible, because no M is more than 10% faster to the same loss, and M = 32 \
         is the fastest by {:.0}%; M = 256 needs ",
        100.0 * (slower - 1.0)
    );
    let text = recommended(128.0, 1e5);
    assert!(text.starts_with(&expected), "{text}");
}
