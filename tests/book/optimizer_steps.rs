//! A code listing of `docs/book`: learning rates and warm-up count optimizer steps, whatever the number of
//! micro-batches.

use burn::optim::SgdConfig;
use burn::tensor::Device;
use stageline::{Batch, BoxError, Pipeline, StageConfig, WarmupDecay};

use crate::model::{Line, column};

// ANCHOR: listing
#[test]
fn a_warm_up_counts_optimizer_steps() -> Result<(), BoxError> {
    for micro_batches in [1, 4] {
        // Ten steps of warm-up, then a cosine: the eleventh step has the peak, whatever M is.
        let rate = WarmupDecay::new(1e-3, 10, 100)?;
        let stage = StageConfig::new(Device::flex(), SgdConfig::new().init(), rate);
        let mut pipeline = Pipeline::builder().loss(Line::new(), stage).micro_batches(micro_batches).build()?;
        let mut rates = Vec::new();
        for _ in 0..11 {
            let batch = Batch::new(column([1.0; 4]), (column([2.0; 4]), column([1.0; 4])));
            rates.extend(pipeline.step(batch)?.stages[0].learning_rate);
        }
        assert!((rates[4] - 5e-3 / 11.0).abs() < 1e-9 && (rates[10] - 1e-3).abs() < 1e-9, "{rates:?}");
    }
    Ok(())
}
// ANCHOR_END: listing
