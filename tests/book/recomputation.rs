//! A code listing of `docs/book`: recomputation changes the memory and the time of a training, but no bit of its
//! parameters.

use burn::tensor::{Device, Int, Tensor};
use stageline::checkpoint::Checkpoint;
use stageline::{Batch, BlockSet, BoxError, Recompute, StageConfig};
use stageline_gpt::model::{Shape, costs, gpt};

// ANCHOR: listing
#[test]
fn recomputation_changes_no_bit() -> Result<(), BoxError> {
    let shape = Shape { layers: 4, width: 16, context: 8 };
    let bytes = Tensor::<1, Int>::arange(0..64, &Device::flex()).reshape([8, 8]);
    let trained = |recompute: Recompute| -> Result<Checkpoint, BoxError> {
        let optimizer = burn::optim::AdamWConfig::new().init();
        let stage = || StageConfig::new(Device::flex(), optimizer.clone(), 1e-2).recompute(recompute);
        let mut pipeline =
            gpt(shape, 0).pipeline(&costs(shape).cut(2)?, [stage(), stage()])?.micro_batches(4).build()?;
        for _ in 0..3 {
            pipeline.step(Batch::new(bytes.clone(), bytes.clone()))?;
        }
        Ok(pipeline.checkpoint()?)
    };
    let kept = trained(Recompute::Nothing)?;
    for recompute in [
        Recompute::Selective,
        Recompute::FeedForward,
        Recompute::Blocks(1),
        Recompute::EveryNth(2.try_into()?),
        Recompute::Only(BlockSet::new([1])?),
        Recompute::Segments(2.try_into()?),
        Recompute::SquareRoot,
        Recompute::Full,
    ] {
        // The parameters and the states of the optimizer, byte for byte.
        assert!(trained(recompute)? == kept, "{recompute}");
    }
    Ok(())
}
// ANCHOR_END: listing
