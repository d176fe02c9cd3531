//! Partitions the layers of the model into stages, and joins trained stages into one model again.

use std::ops::Range;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::{Int, Tensor};
use stageline::schedule::balance;
use stageline::{LossStage, Modules, Names, Pipeline, PipelineBuilder, StageConfig};
use stageline_report::record::Layer;

use crate::model::{Block, Embeddings, Head, Layers, Shape, VOCABULARY};

/// A batch of text as bytes, `[batch, context]`.
pub type Bytes = Tensor<2, Int>;

/// The costs of a layer: its number of parameters, and the FLOPs of its forward for one byte.
struct LayerCost {
    parameters: usize,
    flops: usize,
}

/// Returns the costs of the model's layers: of the embeddings, of each block, and of the head, in this order.
fn costs(shape: Shape) -> Vec<LayerCost> {
    let Shape { layers, width, context } = shape;
    let embeddings = LayerCost { parameters: (VOCABULARY + context) * width, flops: 2 * width };
    let block =
        || LayerCost { parameters: 12 * width * width + 13 * width, flops: 24 * width * width + 4 * context * width };
    let head = LayerCost { parameters: VOCABULARY * width + 2 * width, flops: 2 * VOCABULARY * width };
    [embeddings].into_iter().chain((0..layers).map(|_| block())).chain([head]).collect()
}

/// Returns the model's FLOPs of training on one byte: a forward, and a backward of twice as many. Recomputed and
/// discarded work does not count (Chowdhery et al., 2022, [arXiv:2204.02311](https://arxiv.org/abs/2204.02311),
/// appendix B).
#[allow(dead_code)] // only the example `gpt` uses it
pub fn training_flops(shape: Shape) -> f64 {
    3.0 * costs(shape).iter().map(|cost| cost.flops as f64).sum::<f64>()
}

/// Returns the range of blocks in each stage. The first stage also has the embeddings, the last one the head.
///
/// The partition balances the weights of layers: the share of the model's FLOPs plus the share of its parameters.
///
/// # Errors
/// Returns an error if the model has fewer layers than stages.
pub fn cut(shape: Shape, stages: usize) -> Result<Vec<Range<usize>>> {
    let costs = costs(shape);
    let parameters: usize = costs.iter().map(|cost| cost.parameters).sum();
    let flops: usize = costs.iter().map(|cost| cost.flops).sum();
    let share = |cost: &LayerCost| cost.parameters as f64 / parameters as f64 + cost.flops as f64 / flops as f64;
    let cuts = balance(&costs.iter().map(share).collect::<Vec<_>>(), stages)?;
    let block_at = |layer: usize| layer.saturating_sub(1).min(shape.layers);
    Ok(cuts.into_iter().map(|cut| block_at(cut.start)..block_at(cut.end)).collect())
}

/// Returns every layer of the model with its name, stage, FLOPs and parameters, for the log.
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

/// Returns the names of all parameters of the model, which are the same for every partition into stages.
#[allow(dead_code)] // only the example `gpt` uses it
pub fn names<H: Module>(layers: &Layers<H>) -> Names {
    let Layers { embeddings, blocks, head } = layers;
    Names::new().part("embeddings", embeddings).part("blocks", blocks).part("head", head)
}

/// Returns the builder of a pipeline that has one stage for each range of blocks, with the configuration of each stage.
pub fn split<H: LossStage<Input = Tensor<3>>>(
    layers: Layers<H>,
    cuts: &[Range<usize>],
    configs: Vec<StageConfig>,
) -> PipelineBuilder<Bytes, H::Target> {
    let Layers { embeddings, blocks, head } = layers;
    let mut blocks = blocks.into_iter();
    let mut stages = cuts.iter().map(|cut| blocks.by_ref().take(cut.len()).collect::<Vec<_>>()).zip(configs);
    let next_stage = |stages: &mut dyn Iterator<Item = (Vec<Block>, StageConfig)>| {
        stages.next().expect("every range of blocks has a stage")
    };

    if cuts.len() == 1 {
        let (blocks, config) = next_stage(&mut stages);
        return Pipeline::builder().loss((embeddings, (blocks, head)), config);
    }
    let (first, config) = next_stage(&mut stages);
    let mut chain = Pipeline::builder().stage((embeddings, first), config);
    for (middle, config) in stages.by_ref().take(cuts.len() - 2) {
        chain = chain.stage(middle, config);
    }
    let (rest, config) = next_stage(&mut stages);
    chain.loss((rest, head), config)
}

/// Returns the trained layers of all stages as one model, from the modules of a pipeline that [`split`] built.
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
