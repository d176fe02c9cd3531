//! Tests of evaluation: an evaluation gives the loss of a training step, runs forwards only, and changes nothing.

use stageline::{Batch, StepError};

use crate::mlp::{Mlp, config};

#[test]
fn an_evaluation_has_the_loss_of_a_step_and_changes_nothing() {
    for stages in [1, 3] {
        let model = Mlp::new(2, 8, 61);
        let mut pipeline = model.clone().split(stages, &config()).micro_batches(4).build().unwrap();
        let (input, target) = Mlp::batch(10, 8, true, 1);
        let batch = Batch::new(input, target);
        let evaluated = pipeline.eval(batch.clone()).unwrap();
        assert_eq!(pipeline.eval(batch.clone()).unwrap(), evaluated);
        let stepped = pipeline.step(batch.clone()).unwrap();
        assert_eq!(stepped.weight(), evaluated.weight());
        assert!((stepped.loss - evaluated.loss).abs() < 1e-6, "{} against {}", stepped.loss, evaluated.loss);
        assert!(pipeline.eval(batch).unwrap().loss < evaluated.loss, "the step has not lowered the loss");
    }
}

#[test]
fn evaluations_between_steps_change_no_bit() {
    let model = Mlp::new(3, 8, 62);
    let train = |evaluate: bool| {
        let mut pipeline = model.clone().split(2, &config()).micro_batches(4).build().unwrap();
        for step in 0..3 {
            let (input, target) = Mlp::batch(9, 8, true, step);
            let batch = Batch::new(input, target);
            if evaluate {
                pipeline.eval(batch.clone()).unwrap();
            }
            pipeline.step(batch).unwrap();
        }
        Mlp::join(pipeline.into_modules()).bits()
    };
    assert!(train(true) == train(false), "an evaluation changed what was trained");
}

#[test]
fn a_batch_of_fewer_rows_than_micro_batches_is_evaluated_whole() {
    let mut pipeline = Mlp::new(2, 8, 63).split(2, &config()).micro_batches(8).build().unwrap();
    let (input, target) = Mlp::batch(3, 8, false, 1);
    let batch = Batch::new(input, target);
    assert_eq!(pipeline.eval(batch.clone()).unwrap().weight(), 3.0);
    assert!(matches!(pipeline.step(batch), Err(StepError::Batch(_))));
}
