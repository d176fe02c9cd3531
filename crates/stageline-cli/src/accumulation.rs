//! The part of `stageline advise` that says how many micro-batches are worth accumulating.

use std::collections::BTreeSet;

use anyhow::Result;
use stageline_report::{Accumulation, Measured, RunLog, Target};

/// The largest number of micro-batches (M) of the table.
const MOST: usize = 256;

/// The share by which the recommended training may take longer than the shortest one. Of trainings that take about as
/// long, the one with the largest batches has the smallest bubble; and under Adam, larger batches pay more than the noise
/// scale says, because it does not know the optimizer's scaling of gradients.
const ABOUT: f64 = 0.1;

/// Returns a table of trainings with 1, 2, 4, ... micro-batches that reach the loss of the logged run, with a sentence
/// that recommends one of them and says why. `target` is the plan whose number of micro-batches varies.
pub(crate) fn accumulation(measured: &Measured, log: &RunLog, target: &Target) -> Result<String> {
    let powers = || (0..).map(|power| 1 << power).take_while(|number| *number <= MOST);
    // Some schedules have plans only for multiples of the number of workers.
    let multiples = powers().map(|number| number * target.workers).filter(|number| *number <= MOST);
    let choices: BTreeSet<usize> = powers().chain(multiples).collect();
    if log.steps.iter().all(|step| step.noise.is_none()) {
        return Ok("the log has no gradient noise, so it does not say how many micro-batches are worth their tokens; log a run with \
                   --noise-every 10 and --micro-batches 2 or more\n"
            .to_owned());
    }
    let Some(noise) = log.noise_scale() else {
        return Ok("the noise of the gradient hides its size at the end of the run, so larger batches are worth their tokens; log a \
                   longer run, or one with a larger M\n"
            .to_owned());
    };
    let trainings = measured.accumulations(log, noise, target, choices)?;
    let Some(shortest) = trainings.iter().min_by(|a, b| a.seconds().total_cmp(&b.seconds())) else {
        return Ok(format!(
            "the schedule has no plan for M up to {MOST}, so no M is recommended by the gradient noise\n"
        ));
    };
    let mut text = format!(
        "to the loss of this run, by its noise scale of {noise:.0} tokens:\n{:>5} {:>10} {:>11} {:>10} {:>7} {:>10} {:>9} {:>11} {:>10}\n",
        "M", "batch", "step", "tokens/s", "bubble", "memory", "steps", "tokens", "time"
    );
    for training in &trainings {
        let prediction = &training.prediction;
        let memory = prediction.peak_bytes.iter().flatten().copied().reduce(f64::max);
        let memory = memory.map_or("-".to_owned(), |bytes| format!("{:.0} MB", bytes / 1e6));
        text += &format!(
            "{:>5} {:>10.0} {:>8.0} ms {:>10.0} {:>6.1}% {:>10} {:>9.0} {:>11.0} {:>10}\n",
            training.micro_batches,
            training.batch,
            1e3 * prediction.step,
            prediction.tokens_per_s,
            100.0 * prediction.bubble,
            memory,
            training.steps,
            training.tokens(),
            duration(training.seconds())
        );
    }
    let is_about = |training: &&Accumulation| training.seconds() <= (1.0 + ABOUT) * shortest.seconds();
    let chosen = trainings.iter().rfind(is_about).unwrap_or(shortest);
    text += &format!(
        "M = {} is the largest whose training takes at most {:.0}% more than the shortest, which has M = {}: {}\n",
        chosen.micro_batches,
        100.0 * ABOUT,
        shortest.micro_batches,
        reason(chosen, noise)
    );
    text += "under Adam, larger batches may pay more than this noise scale says; take this M as a lower bound\n";
    Ok(text)
}

/// Returns a duration in seconds, minutes or hours, whichever gives a number that is easy to read.
fn duration(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.1} s"),
        ..7200.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Returns the reason why the training `chosen` is recommended, and what else to change.
fn reason(chosen: &Accumulation, noise: f64) -> String {
    let (batch, bubble) = (chosen.batch, 100.0 * chosen.prediction.bubble);
    if batch < noise / 2.0 {
        return format!(
            "even its batch of {batch:.0} tokens has more noise than signal, so more replicas or larger micro-batches pay too"
        );
    }
    match chosen.micro_batches {
        1 if batch > noise => {
            "a batch of one micro-batch is larger than the noise scale, so accumulation costs more tokens than it \
                               saves steps"
                .to_owned()
        }
        1 => "a step with more micro-batches takes longer by more than it saves steps".to_owned(),
        _ => format!(
            "with fewer micro-batches workers idle for more than {bubble:.1}% of the time or steps are noisier, and with more each step \
             costs more tokens than it saves steps"
        ),
    }
}
