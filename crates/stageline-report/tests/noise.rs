//! Tests the noise scale of synthetic runs, whose noise is known at every step, and the predicted number of steps to
//! the same loss.

mod synthetic;

use stageline_report::record::{Noise, SignalAndNoise};
use stageline_report::{NoNoise, RunLog};

use synthetic::log;

/// The batch size of the synthetic runs in these tests, as the sum of the loss weights of a batch's targets.
const BATCH: f64 = 100.0;

/// Makes the log of a run with one step for each entry of `estimates`. An entry is the measured squared norm and
/// variance of the step's gradient, or `None` for a step without a measurement.
fn run(estimates: &[Option<(f64, f64)>]) -> RunLog {
    let mut log = log(&[1.0; 2], 2, 4, 0.0);
    let template = log.steps[0].clone();
    let step = |(step, estimate): (usize, &Option<(f64, f64)>)| {
        let noise = estimate.map(|(squared_norm, variance)| {
            let total = SignalAndNoise { squared_norm, variance };
            Noise { scale: None, smoothed_scale: None, total, stages: Vec::new() }
        });
        stageline_report::record::Step { step, weight: BATCH, noise, ..template.clone() }
    };
    log.steps = estimates.iter().enumerate().map(step).collect();
    log
}

/// Returns how many steps with batches of the size `batch` lower the loss as much as one step with a batch of the size
/// [`BATCH`]. The gradient has the noise scale `scale`.
fn worth(scale: f64, batch: f64) -> f64 {
    (1.0 + scale / batch) / (1.0 + scale / BATCH)
}

#[test]
fn a_constant_noise_scale_gives_the_steps_of_the_closed_form() {
    // The squared norm and the noise of the gradient both fall by half in every step.
    let falling: Vec<_> = (0..40).map(|step| Some((0.5_f64.powi(step), 300.0 * 0.5_f64.powi(step)))).collect();
    let scales = run(&falling).noise_scales().unwrap();
    for batch in [10.0, 100.0, 1000.0, 1e6] {
        let steps = 40.0 * worth(300.0, batch);
        assert!((scales.steps(batch) / steps - 1.0).abs() < 1e-9, "{batch}: {} for {steps}", scales.steps(batch));
    }
    assert!((scales.steps(BATCH) - 40.0).abs() < 1e-9);
    assert!((scales.typical() - 300.0).abs() < 1e-9 && (scales.last() - 300.0).abs() < 1e-9);
}

/// Tests a run whose noise scale grows from 10 to 1000 tokens. Larger batches save few of its early steps and many of
/// its late steps. So a single noise scale for the whole run would predict a wrong number of steps.
#[test]
fn each_part_of_the_run_counts_with_its_own_noise_scale() {
    let phases: Vec<_> = (0..400).map(|step| Some(if step < 200 { (1e4, 1e5) } else { (1.0, 1e3) })).collect();
    let scales = run(&phases).noise_scales().unwrap();
    for batch in [25.0, 400.0, 3200.0] {
        let [early, late] = [worth(10.0, batch), worth(1000.0, batch)];
        // Only the windows of the 4 steps before and after the change have estimates of both phases.
        let least = 196.0 * (early + late) + 8.0 * early.min(late);
        let most = 196.0 * (early + late) + 8.0 * early.max(late);
        assert!((least..=most).contains(&scales.steps(batch)), "{batch}: {} of {least}..{most}", scales.steps(batch));
    }
    assert_eq!(scales.last(), 1000.0);
}

/// Tests the noise scale of a short log. The gradients of its first three steps are a thousand times larger than those
/// of all later steps, as at the start of a training run.
#[test]
fn large_early_gradients_do_not_hide_the_noise_of_the_rest() {
    let short: Vec<_> = (0..30).map(|step| Some(if step < 3 { (1e6, 2e3) } else { (1.0, 2e3) })).collect();
    let scales = run(&short).noise_scales().unwrap();
    assert_eq!((scales.typical(), scales.last()), (2000.0, 2000.0));
    // 7 windows contain at least one of the first 3 steps, and 23 have the noise scale of the later steps.
    assert!((scales.steps(1e9) - 23.0 * worth(2000.0, 1e9) - 7.0).abs() < 0.2, "{}", scales.steps(1e9));
}

/// Tests that a step whose gradient norm is 7 times larger than in neighbouring steps does not outweigh them. All
/// micro-batches agree in this spike, so its noise scale is small.
#[test]
fn a_spike_of_the_gradient_does_not_outweigh_its_neighbours() {
    let spiked: Vec<_> = (0..40).map(|step| Some(if step == 30 { (1e3, 1e4) } else { (1.0, 2e3) })).collect();
    let mut log = run(&spiked);
    for step in &mut log.steps {
        let SignalAndNoise { squared_norm, variance } = step.noise.as_ref().unwrap().total;
        step.gradient_norm = Some((squared_norm + variance / BATCH).sqrt());
    }
    let scales = log.noise_scales().unwrap();
    // The squared gradient norm is 1100 in the spike, and 21 in other steps. The spike is scaled down to twice their
    // norm.
    let factor = 4.0 * 21.0 / 1100.0;
    let expected = (8.0 * 2e3 + factor * 1e4) / (8.0 + factor * 1e3);
    let every = scales.steps(1e9);
    let closed = 31.0 * worth(2e3, 1e9) + 9.0 * worth(expected, 1e9);
    assert!((every / closed - 1.0).abs() < 1e-3, "{every} for {closed}");
    assert!([scales.typical(), scales.last()].iter().all(|scale| (scale - 2e3).abs() < 1e-6), "{scales:?}");
}

#[test]
fn a_step_that_was_not_measured_has_the_noise_of_the_nearest_one() {
    let every = |every: usize| -> Vec<_> { (0..120).map(|step| (step % every == 0).then_some((1.0, 50.0))).collect() };
    let [all, tenth] = [1, 10].map(|number| run(&every(number)).noise_scales().unwrap());
    assert_eq!(all, tenth);
    let skipped = |mut log: RunLog| {
        log.steps[7].gradient_norm = None;
        log.noise_scales().unwrap().steps(BATCH)
    };
    assert!((skipped(run(&every(10))) - 119.0).abs() < 1e-9);
}

#[test]
fn steps_fall_with_the_batch_if_the_noise_hides_the_gradient() {
    // In the second half of the run, the estimated squared norms are 1 and -5 in turn, with a mean of -2.
    let hidden = |step: usize| if step.is_multiple_of(2) { 1.0 } else { -5.0 };
    let hidden: Vec<_> = (0..60).map(|step| Some((if step < 30 { 1.0 } else { hidden(step) }, 0.0))).collect();
    let scales = run(&hidden).noise_scales().unwrap();
    // Without noise, a step is worth one step of any batch size. Without signal, four times the batch size needs a
    // quarter of the steps.
    let steps = scales.steps(4.0 * BATCH);
    assert!((30.0 + 30.0 / 4.0 - steps).abs() < 4.0 * 0.75, "{steps}");
    assert!(scales.last().is_infinite() && scales.typical().is_infinite());
}

#[test]
fn a_noise_scale_that_is_not_known_has_a_reason_with_a_remedy() {
    let reason = |estimates: &[Option<(f64, f64)>]| run(estimates).noise_scales().unwrap_err();
    assert_eq!(reason(&[None; 9]), NoNoise::NotMeasured);
    let few: Vec<_> = (0..9).map(|step| (step < 3).then_some((1.0, 1.0))).collect();
    assert_eq!(reason(&few), NoNoise::TooFew { measured: 3, needed: 4 });
    assert_eq!(reason(&[Some((-1.0, 1.0)); 9]), NoNoise::Hidden { measured: 9 });
    // The mean is above 0, but half of the estimates are below 0.
    let rough = [Some((9.0, 1.0)), Some((-3.0, 1.0)), Some((5.0, 1.0)), Some((-1.0, 1.0))];
    assert_eq!(reason(&rough), NoNoise::Hidden { measured: 4 });
    let mut of_one = log(&[1.0; 2], 2, 1, 0.0);
    let one = of_one.noise_scales().unwrap_err();
    assert_eq!(one, NoNoise::OneMicroBatch);
    of_one.run.replicas = 2;
    assert_eq!(of_one.noise_scales().unwrap_err(), NoNoise::NotMeasured, "two replicas have two micro-batches");
    for (reason, ways) in [
        (one, &["--micro-batches 2", "--noise-every 10"][..]),
        (NoNoise::NotMeasured, &["--micro-batches 2", "--noise-every 10"]),
        (NoNoise::TooFew { measured: 3, needed: 4 }, &["3 steps", "4 are needed", "--noise-every"]),
        (NoNoise::Hidden { measured: 9 }, &["9 steps", "longer run", "--micro-batches"]),
    ] {
        let text = reason.to_string();
        assert!(ways.iter().all(|way| text.contains(way)), "{text}");
    }
}

/// Returns the next uniform pseudo-random number from -1 to 1, and advances the generator's `state`. The generator is
/// the linear congruential one of Knuth's MMIX.
fn share(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
}

/// Tests that the noise scale counts as known in at most about 10% of runs without any gradient, however long they are.
/// The squared norms of these runs are random, with a mean of 0. In runs with a gradient, the noise scale is known:
/// their mean is one standard deviation above 0, so that 84% of the estimates are positive.
#[test]
fn noise_alone_seldom_passes_for_a_gradient() {
    let mut state = 1_u64;
    // The sum of 12 shares with a variance of 1/3 each, scaled to a standard deviation of 1, is almost normal.
    let mut normal = move || (0..12).map(|_| share(&mut state)).sum::<f64>() / 2.0;
    let mut known = |mean: f64, steps: usize| {
        const RUNS: usize = 400;
        let mut is_known =
            || run(&(0..steps).map(|_| Some((mean + normal(), 300.0))).collect::<Vec<_>>()).noise_scales().is_ok();
        (0..RUNS).filter(|_| is_known()).count() as f64 / RUNS as f64
    };
    for steps in [20, 50, 100, 200] {
        // The standard deviation of a share of 10% of 400 runs is 1.5%.
        let by_chance = known(0.0, steps);
        assert!((0.01..=0.14).contains(&by_chance), "{by_chance} of the runs of {steps} steps");
        let real = known(1.0, steps);
        assert!(real > 0.95, "{real} of the runs of {steps} steps");
    }
}

/// Tests that rough estimates of the gradient noise predict the number of steps to within 10%. Each estimated squared
/// norm is wrong by up to 100%. During the run, the squared norm falls and the noise scale grows.
#[test]
fn rough_estimates_give_the_steps_of_the_true_noise_scales() {
    let mut state = 1_u64;
    let mut share = || share(&mut state);
    let (steps, every) = (400_u16, 10);
    let squared_norm = |step: usize| 1.0 + 99.0 * (-(step as f64) / 40.0).exp();
    let scale = |step: usize| 50.0 * 40.0_f64.powf(step as f64 / f64::from(steps));
    let estimates: Vec<_> = (0..usize::from(steps))
        .map(|step| {
            let rough =
                (squared_norm(step) * (1.0 + share()), scale(step) * squared_norm(step) * (1.0 + 0.2 * share()));
            (step % every == 0).then_some(rough)
        })
        .collect();
    let scales = run(&estimates).noise_scales().unwrap();
    for batch in [25.0, 50.0, 200.0, 400.0, 1600.0] {
        let exact: f64 = (0..usize::from(steps)).map(|step| worth(scale(step), batch)).sum();
        let error = scales.steps(batch) / exact - 1.0;
        assert!(error.abs() < 0.1, "{batch}: {error}");
    }
    // A single noise scale from the means over all steps would be that of the first steps, whose gradients are the
    // largest.
    let measured: Vec<_> = estimates.iter().flatten().collect();
    let sum = |of: fn(&(f64, f64)) -> f64| measured.iter().map(|estimate| of(estimate)).sum::<f64>();
    let single = f64::from(steps) * worth(sum(|estimate| estimate.1) / sum(|estimate| estimate.0), 25.0);
    let exact: f64 = (0..usize::from(steps)).map(|step| worth(scale(step), 25.0)).sum();
    assert!(single < 0.85 * exact, "{single} of {exact}");
}

/// Tests that the loss of a run counts as rising only if chance does not explain the rise. The mean loss of the second
/// half must exceed that of the first half by more than 3 standard errors of the difference.
///
/// In this run, 3 standard errors are 0.061. Each half has 50 losses, which are alternately 0.1 above and 0.1 below the
/// mean.
#[test]
fn a_loss_rises_if_chance_does_not_explain_it() {
    let rising = |rise: f64| {
        let mut log = run(&[Some((1.0, 50.0)); 100]);
        for (number, step) in log.steps.iter_mut().enumerate() {
            let mean = if number < 50 { 2.0 } else { 2.0 + rise };
            step.loss = Some(if number % 2 == 0 { mean + 0.1 } else { mean - 0.1 });
        }
        log.rising_loss()
    };
    let found = rising(0.063).unwrap();
    assert!((found.first - 2.0).abs() < 1e-9 && (found.second - 2.063).abs() < 1e-9, "{found:?}");
    assert!(found.to_string().contains("from a mean of 2.0000 in the first half of its steps to 2.0630 in the second"));
    for none in [0.058, 0.0, -1.0] {
        assert_eq!(rising(none), None);
    }
    let mut short = run(&[Some((1.0, 50.0)); 7]);
    short.steps.iter_mut().for_each(|step| step.loss = Some(step.step as f64));
    assert_eq!(short.rising_loss(), None, "7 steps are too few");
}
