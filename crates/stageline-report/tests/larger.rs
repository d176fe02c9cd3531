//! Tests predicted training runs with larger micro-batches whose number is not one of the compared powers of two.

mod asked;
mod synthetic;

use stageline_report::{Change, LeftOut, Measured};
use stageline_schedule::{Interleaved, OneFOneB, Schedule};

use asked::{advise, noise, noisy, question};
use synthetic::log;

/// Tests a run whose M = 20 is the fastest number of micro-batches. It is compared with 10 micro-batches of twice the
/// rows, and with 5 of four times the rows. The interleaved schedule on two workers has no plan for 5 micro-batches, so
/// the reason for this is given.
///
/// The forward and backward pass of a micro-batch takes 18 s on a worker, the flush takes 3 s, and filling and draining
/// the pipeline take 18 / V s. So a step with M micro-batches takes 18 M + a s, with a = 3 + 18 / V. The number of
/// steps is proportional to 1 + N / M, with the noise scale N in micro-batches. The time of the training run is least
/// at M² = N a / 18.
#[test]
fn the_same_batch_in_larger_micro_batches_is_predicted_or_has_a_reason() {
    for (schedule, chunks) in [(&OneFOneB as &dyn Schedule, 1.0), (&Interleaved { chunks: 2 }, 2.0)] {
        let of_size = |tokens: f64| {
            let mut log = log(&[0.5 + 0.01 * tokens; 8], 2, 20, 0.0);
            log.run.tokens_per_micro_batch = tokens;
            noisy(log, 100.0 * 400.0 * 18.0 / (3.0 + 18.0 / chunks))
        };
        let (log, other) = (of_size(100.0), Measured::of(&of_size(300.0)).unwrap());
        let noise = noise(&log);
        let mut asked = question(&log, &noise, 2);
        (asked.target.schedule, asked.other_size) = (schedule, Some(&other));
        let advice = advise(&asked);
        let own = advice.trainings.iter().find(|training| training.micro_batches == 20).unwrap();
        assert!(advice.trainings.iter().all(|training| training.seconds() >= own.seconds()));
        let larger = |rows| advice.alternatives.found.iter().find(|(change, _)| *change == Change::Rows(rows));
        for (rows, number) in [(2, 10), (4, 5)] {
            let Some((_, training)) = larger(rows) else {
                let is_named = |(change, reason): &(Change, LeftOut)| {
                    *change == Change::Rows(rows) && matches!(reason, LeftOut::NoPlan { micro_batches: 5 })
                };
                assert!(chunks == 2.0 && rows == 4 && advice.alternatives.left_out.iter().any(is_named));
                continue;
            };
            assert_eq!((training.micro_batches, training.batch), (number, own.batch));
            // A micro-batch of 200 tokens takes 2.5 / 1.5 times as long as one of 100, and one of 400 takes 4.5 / 1.5.
            let times = (0.5 + rows as f64) / 1.5;
            let step = 18.0 * times * (number as f64 + 1.0 / chunks) + 0.5 * (1.5 + 3.5) / 2.0 * 4.0;
            assert!((training.prediction.step / step - 1.0).abs() < 1e-9, "{} of {step}", training.prediction.step);
        }
    }
}
