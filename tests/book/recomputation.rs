//! A code listing of `docs/book`: recomputation changes the memory and the time of a training, but no bit of its
//! parameters.

use burn::tensor::{Device, Int, Tensor};
use stageline::{Batch, BoxError, Recompute, StageConfig};
use stageline_gpt::model::{Shape, costs, gpt};

// ANCHOR: listing
#[test]
fn recomputation_changes_no_bit() -> Result<(), BoxError> {
    let shape = Shape { layers: 4, width: 16, context: 8 };
    let bytes = Tensor::<1, Int>::arange(0..64, &Device::flex()).reshape([8, 8]);
    let losses = |recompute: Recompute| -> Result<Vec<f64>, BoxError> {
        let optimizer = burn::optim::AdamWConfig::new().init();
        let stage = || StageConfig::new(Device::flex(), optimizer.clone(), 1e-2).recompute(recompute);
        let mut pipeline =
            gpt(shape, 0).pipeline(&costs(shape).cut(2)?, [stage(), stage()])?.micro_batches(4).build()?;
        (0..3).map(|_| Ok(pipeline.step(Batch::new(bytes.clone(), bytes.clone()))?.loss)).collect()
    };
    let kept = losses(Recompute::Nothing)?;
    for recompute in [Recompute::Selective, Recompute::EveryNth(2.try_into()?), Recompute::SquareRoot, Recompute::Full]
    {
        assert_eq!(losses(recompute)?, kept);
    }
    Ok(())
}
// ANCHOR_END: listing
