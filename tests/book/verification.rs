//! A code listing of `docs/book`: verifies that a pipeline trains as one full batch on one device does.

use stageline::{Batch, BoxError, Verify};

use crate::model::{column, pipeline};

// ANCHOR: listing
#[test]
fn a_pipeline_trains_as_one_full_batch() -> Result<(), BoxError> {
    let x = column([-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0]);
    let batch = || Batch::new(x.clone(), (x.clone().square(), column([1.0; 8])));
    let verification = Verify::new().steps(10).pipeline(|| pipeline().micro_batches(4), |_| batch(), &[batch()])?;
    print!("{verification}");
    assert!(verification.passes());
    Ok(())
}
// ANCHOR_END: listing
