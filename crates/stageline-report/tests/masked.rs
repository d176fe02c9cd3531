//! Tests predictions from a run whose batches have masked tokens, which do not count in the loss.

mod synthetic;

use stageline_report::{Cut, Measured, Target};
use stageline_schedule::OneFOneB;

use synthetic::log;

/// Tests that the predicted throughput counts only unmasked tokens. In this run, three of four tokens are masked.
#[test]
fn masked_tokens_do_not_count_in_the_throughput() {
    let mut log = log(&[1.0; 8], 2, 4, 0.0);
    log.steps.iter_mut().for_each(|step| step.weight = 100.0);
    // A step of the run takes 5 x 3 x 4 s for its micro-batches, and 2 s (half of 4 s) for the flush.
    let target = |micro_batches| Target { workers: 2, micro_batches, schedule: &OneFOneB, cut: Cut::OfTheRun };
    let measured = Measured::of(&log).unwrap();
    let throughput = |micro_batches| measured.predict(&target(micro_batches)).unwrap().tokens_per_s;
    assert!((throughput(4) - 100.0 / 62.0).abs() < 1e-12 && (throughput(8) - 200.0 / 110.0).abs() < 1e-12);
    for training in measured.trainings(None, &target(4)).unwrap() {
        assert!((training.tokens_per_s() - throughput(training.micro_batches)).abs() < 1e-12);
    }
}
