//! A code listing of `docs/book`: the gradient of a batch does not depend on the number of micro-batches into which the
//! batch is split.

use stageline::{Batch, BoxError};

use crate::model::{column, pipeline};

// ANCHOR: listing
#[test]
fn the_gradient_does_not_depend_on_m() -> Result<(), BoxError> {
    let x = column([-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0]);
    let batch = || Batch::new(x.clone(), (x.clone().square(), x.clone().abs().lower_equal_elem(1.5).float()));
    let gradients = |micro_batches| -> Result<Vec<f32>, BoxError> {
        let mut pipeline = pipeline().micro_batches(micro_batches).build()?;
        Ok(pipeline.gradients(batch())?.into_iter().flat_map(|gradient| gradient.summed).collect())
    };
    let whole = gradients(1)?;
    for micro_batches in [2, 4, 8] {
        for (whole, accumulated) in whole.iter().zip(gradients(micro_batches)?) {
            // Only the order of the additions differs.
            assert!((whole - accumulated).abs() <= 1e-6 * whole.abs().max(1.0));
        }
    }
    Ok(())
}
// ANCHOR_END: listing
