//! Makes questions about the logs of synthetic runs, and answers them, for the tests of [`Measured::advise`].

use stageline_report::record::{Noise, SignalAndNoise};
use stageline_report::{Advice, Cut, Measured, NoiseScales, Question, RunLog, Target};
use stageline_schedule::OneFOneB;

/// Returns the log of a run with measured gradient noise at every step. The noise scale is `scale`, in tokens.
pub fn noisy(mut log: RunLog, scale: f64) -> RunLog {
    let total = SignalAndNoise { squared_norm: 1.0, variance: scale };
    let micro_batches = log.plan.micro_batches() as f64;
    for step in &mut log.steps {
        step.weight = log.run.tokens_per_micro_batch * micro_batches;
        step.noise = Some(Noise { scale: None, smoothed_scale: None, total, stages: Vec::new() });
    }
    log
}

pub fn noise(log: &RunLog) -> NoiseScales {
    log.noise_scales().unwrap()
}

/// Makes a question about a logged run: which settings reach its final loss in the least time. Training runs are
/// compared with a plan of 1F1B for the run's numbers of workers and micro-batches. The recommended training run may
/// have at most `most_workers` workers.
pub fn question<'a>(log: &'a RunLog, noise: &'a NoiseScales, most_workers: usize) -> Question<'a> {
    let (workers, micro_batches) = (log.plan.workers(), log.plan.micro_batches());
    let target = Target { workers, micro_batches, schedule: &OneFOneB, cut: Cut::Balanced };
    Question { log, noise, target, other_size: None, memory: None, most_workers: Some(most_workers) }
}

pub fn advise(question: &Question) -> Advice {
    Measured::of(question.log).unwrap().advise(question).unwrap()
}
