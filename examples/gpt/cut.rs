//! The layers of the model, cut into stages, and the stages, put together again.

use std::ops::Range;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::{Int, Tensor};
use stageline::schedule::balance;
use stageline::{LossStage, Modules, Names, Pipeline, PipelineBuilder, StageConfig};
use stageline_report::record::Layer;

use crate::model::{Block, Embeddings, Head, Layers, Shape, VOCABULARY};

/// Bytes of text, `[batch, context]`.
pub type Bytes = Tensor<2, Int>;

/// A layer of the model: how many parameters it has, and how many FLOPs a forward takes for a byte.
struct LayerCost {
    parameters: usize,
    flops: usize,
}

/// Embeddings, blocks and head.
fn costs(shape: Shape) -> Vec<LayerCost> {
    let Shape { layers, width, context } = shape;
    let embeddings = LayerCost { parameters: (VOCABULARY + context) * width, flops: 2 * width };
    let block =
        || LayerCost { parameters: 12 * width * width + 13 * width, flops: 24 * width * width + 4 * context * width };
    let head = LayerCost { parameters: VOCABULARY * width + 2 * width, flops: 2 * VOCABULARY * width };
    [embeddings].into_iter().chain((0..layers).map(|_| block())).chain([head]).collect()
}

/// The FLOPs of training on a byte: a forward, and a backward that takes twice as many. (Chowdhery et al., 2022,
/// [arXiv:2204.02311](https://arxiv.org/abs/2204.02311), appendix B; what is computed again or thrown away does not count.)
#[allow(dead_code)] // only the example asks
pub fn training_flops(shape: Shape) -> f64 {
    3.0 * costs(shape).iter().map(|cost| cost.flops as f64).sum::<f64>()
}

/// The blocks of every stage: the first stage also has the embeddings, the last one the head.
///
/// Layers are weighed by their share of the model's FLOPs plus their share of its parameters.
pub fn cut(shape: Shape, stages: usize) -> Result<Vec<Range<usize>>> {
    let costs = costs(shape);
    let parameters: usize = costs.iter().map(|cost| cost.parameters).sum();
    let flops: usize = costs.iter().map(|cost| cost.flops).sum();
    let share = |cost: &LayerCost| cost.parameters as f64 / parameters as f64 + cost.flops as f64 / flops as f64;
    let cuts = balance(&costs.iter().map(share).collect::<Vec<_>>(), stages)?;
    let block_of = |layer: usize| layer.saturating_sub(1).min(shape.layers);
    Ok(cuts.into_iter().map(|cut| block_of(cut.start)..block_of(cut.end)).collect())
}

/// The layers of the model, with the stage of each.
pub fn layers(shape: Shape, cuts: &[Range<usize>]) -> Vec<Layer> {
    let (first, last) = (0, cuts.len() - 1);
    let layer = |(at, cost): (usize, LayerCost)| {
        let (name, stage) = match at {
            0 => ("embeddings".to_owned(), first),
            _ if at > shape.layers => ("head".to_owned(), last),
            _ => (format!("block {}", at - 1), cuts.iter().position(|cut| cut.contains(&(at - 1))).unwrap_or(last)),
        };
        Layer { name, stage, weight: cost.flops as f64, parameters: cost.parameters as u64 }
    };
    costs(shape).into_iter().enumerate().map(layer).collect()
}

/// What parameters are called, wherever the model is cut.
#[allow(dead_code)] // only the example asks
pub fn names<H: Module>(layers: &Layers<H>) -> Names {
    let Layers { embeddings, blocks, head } = layers;
    Names::new().part("embeddings", embeddings).part("blocks", blocks).part("head", head)
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
