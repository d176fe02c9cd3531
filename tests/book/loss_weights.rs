//! A code listing of `docs/book`: if micro-batches have different numbers of targets, the mean of their mean losses is
//! not the mean loss of the batch.

use stageline::{Batch, BoxError};

use crate::model::{column, pipeline};

// ANCHOR: listing
#[test]
fn a_mean_of_means_is_not_the_mean() -> Result<(), BoxError> {
    // Two micro-batches of four rows. All rows of the first one count, and one row of the second.
    let x = column([1.0; 8]);
    let wanted = column([2.0, 2.0, 2.0, 2.0, 6.0, 0.0, 0.0, 0.0]);
    let mask = column([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    let batch = || Batch::new(x.clone(), (wanted.clone(), mask.clone()));

    // The outputs are 1, so the squared errors are 1, 1, 1, 1 and 25, and their mean is 29 / 5.
    let mut pipeline = pipeline().micro_batches(2).build()?;
    assert_eq!(pipeline.eval(batch())?.loss, 29.0 / 5.0);

    // `loss / M` in each micro-batch, as most training loops have it, averages the means 1 and 25.
    let mut mean_of_means = 0.0;
    for micro_batch in batch().into_micro_batches(2)? {
        mean_of_means += pipeline.eval(Batch::from_micro_batches(vec![micro_batch]))?.loss / 2.0;
    }
    assert_eq!(mean_of_means, 13.0);
    Ok(())
}
// ANCHOR_END: listing
