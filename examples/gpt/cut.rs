//! The layers of the model, cut into stages, and the stages, put together again.

use std::ops::Range;

use anyhow::Result;
use burn::tensor::{Int, Tensor};
use stageline::schedule::balance;
use stageline::{LossStage, Modules, Pipeline, PipelineBuilder, StageConfig};

use crate::model::{Block, Embeddings, Head, Layers, Shape, VOCABULARY};

/// Bytes of text, `[batch, context]`.
pub type Bytes = Tensor<2, Int>;

/// The blocks of every stage: the first stage also has the embeddings, the last one the head.
///
/// Layers are weighed by their share of the model's FLOPs plus their share of its parameters.
pub fn cut(shape: Shape, stages: usize) -> Result<Vec<Range<usize>>> {
    let Shape { layers, width, context } = shape;
    let block = (12 * width * width, 24 * width * width + 4 * context * width);
    let embeddings = ((VOCABULARY + context) * width, 2 * width);
    let head = (VOCABULARY * width, 2 * VOCABULARY * width);
    let mut costs = vec![block; layers];
    costs.insert(0, embeddings);
    costs.push(head);

    let parameters: usize = costs.iter().map(|cost| cost.0).sum();
    let flops: usize = costs.iter().map(|cost| cost.1).sum();
    let share = |cost: &(usize, usize)| cost.0 as f64 / parameters as f64 + cost.1 as f64 / flops as f64;
    let cuts = balance(&costs.iter().map(share).collect::<Vec<_>>(), stages)?;
    let block_of = |layer: usize| layer.saturating_sub(1).min(layers);
    Ok(cuts.into_iter().map(|cut| block_of(cut.start)..block_of(cut.end)).collect())
}

/// One stage for every range of blocks, each with its configuration.
pub fn split<H: LossStage<Input = Tensor<3>>>(
    layers: Layers<H>,
    cuts: &[Range<usize>],
    configs: Vec<StageConfig>,
) -> PipelineBuilder<Bytes, H::Target> {
    let Layers { embeddings, blocks, head } = layers;
    let mut blocks = blocks.into_iter();
    let mut stages = cuts.iter().map(|cut| blocks.by_ref().take(cut.len()).collect::<Vec<_>>()).zip(configs);
    let last = |stages: &mut dyn Iterator<Item = (Vec<Block>, StageConfig)>| stages.next().expect("a stage a cut");

    if cuts.len() == 1 {
        let (blocks, config) = last(&mut stages);
        return Pipeline::builder().loss((embeddings, (blocks, head)), config);
    }
    let (first, config) = last(&mut stages);
    let mut chain = Pipeline::builder().stage((embeddings, first), config);
    for (middle, config) in stages.by_ref().take(cuts.len() - 2) {
        chain = chain.stage(middle, config);
    }
    let (rest, config) = last(&mut stages);
    chain.loss((rest, head), config)
}

/// The layers of a pipeline that [`split`] made.
pub fn join(mut modules: Modules) -> Result<Layers> {
    let last = modules.stages() - 1;
    if last == 0 {
        let (embeddings, (blocks, head)) = modules.take::<(Embeddings, (Vec<Block>, Head))>(0)?;
        return Ok(Layers { embeddings, blocks, head });
    }
    let (embeddings, mut blocks) = modules.take::<(Embeddings, Vec<Block>)>(0)?;
    for stage in 1..last {
        blocks.extend(modules.take::<Vec<Block>>(stage)?);
    }
    let (rest, head) = modules.take::<(Vec<Block>, Head)>(last)?;
    blocks.extend(rest);
    Ok(Layers { embeddings, blocks, head })
}
