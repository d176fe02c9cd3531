//! A model as a row of layers ([`Row`]): a first layer, blocks of one type, and a last layer with a loss.

use std::ops::Range;

use burn::module::{Module, ParamId};
use burn::tensor::Device;

use crate::build::builder::PipelineBuilder;
use crate::build::chain::StageConfig;
use crate::build::cut::{Cut, CutError};
use crate::build::halves::{Division, Halves, Piece};
use crate::model::stage::{LossStage, Stage};
use crate::pipeline::Pipeline;
use crate::pipeline::modules::{ModuleError, Modules};
use crate::state::frozen::FrozenFrom;
use crate::state::names::Names;
use crate::update::precision::Precision;
use stageline_nn::params::{describe, seeded_on};

/// A model as a row of layers: a first layer, any number of blocks of one type, and a last layer with a loss.
///
/// A row holds functions that create the layers, not the layers themselves. [`pipeline`](Self::pipeline) partitions the
/// row into stages, and initialises each layer from its own seed, on the device of its stage. So the initial parameters
/// do not depend on the cut (the partition of the layers), and the whole model is never on one device.
///
/// ```no_run,standalone_crate
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Tensor, activation::relu};
/// use stageline::{LossStage, Row, Stage, StageConfig, Weight};
///
/// #[derive(Module, Debug)]
/// struct Layer {
///     linear: Linear,
/// }
/// impl Layer {
///     fn new(from: usize, to: usize, device: &Device) -> Self {
///         Self { linear: LinearConfig::new(from, to).init(device) }
///     }
/// }
/// impl Stage for Layer {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///     fn forward(&self, input: Tensor<2>) -> Tensor<2> {
///         relu(self.linear.forward(input))
///     }
/// }
/// impl LossStage for Layer {
///     type Target = Tensor<2>;
///     fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
///         (output - target).square().sum()
///     }
///     fn weight(&self, target: &Tensor<2>) -> Weight {
///         target.dims()[0].into()
///     }
/// }
///
/// let row = Row::new(|d| Layer::new(2, 8, d), 4, |_, d| Layer::new(8, 8, d), |d| Layer::new(8, 1, d));
/// let cpu = Device::flex();
/// let cut = row.count(Tensor::zeros([1, 2], &cpu)).cut(3)?;
/// let config = || StageConfig::new(cpu.clone(), AdamWConfig::new().init(), 1e-3);
/// let mut pipeline = row.pipeline(&cut, (0..3).map(|_| config()))?.build()?;
/// assert_eq!(pipeline.infer(Tensor::ones([5, 2], &cpu))?.dims(), [5, 1]);
/// # Ok::<(), stageline::BoxError>(())
/// ```
pub struct Row<F, B, L> {
    pub(super) first: Create<F>,
    pub(super) block: CreateBlock<B>,
    pub(super) last: Create<L>,
    /// The number of blocks between the first and the last layer of the row.
    pub(super) blocks: usize,
    /// Whether each layer is a whole block or half a block. With halves, a stage may end in the middle of a block.
    pub(super) division: Division<B>,
    pub(super) seed: u64,
    /// The names that checkpoints give to the first layer, to the list of blocks, and to the last layer.
    pub(super) names: [String; 3],
    pub(super) frozen_from: FrozenFrom,
    /// The compute precision of the pipelines that are built from this row.
    pub(super) precision: Precision,
    /// The user's description of what the names and shapes of the model's parameters do not show; empty if unset.
    pub(super) description: String,
}

type Create<M> = Box<dyn Fn(&Device) -> M>;

/// A function that creates a block, or a half of a block, on a device. Its arguments are the index of the block, the
/// part to create, and the device.
type CreateBlock<B> = Box<dyn Fn(usize, Piece, &Device) -> B>;

type BuilderOf<F, L> = PipelineBuilder<<F as Stage>::Input, <L as Stage>::Output, <L as LossStage>::Target>;

/// One stage's layers, by the stage's position in the model: the whole model (if it is the only stage), the beginning,
/// the middle or the end.
enum Part<F, B, L> {
    Whole(F, Vec<B>, L),
    Begin(F, Vec<B>),
    Middle(Vec<B>),
    End(Vec<B>, L),
}

impl<F: Module, B, L: Module> Part<F, B, L> {
    /// Returns the ids of the parameters in the model's first and last layer, if this stage has these layers.
    fn ids_of_ends(&self) -> Vec<ParamId> {
        let (first, last) = match self {
            Self::Whole(first, _, last) => (Some(first), Some(last)),
            Self::Begin(first, _) => (Some(first), None),
            Self::Middle(_) => (None, None),
            Self::End(_, last) => (None, Some(last)),
        };
        let (first, last) = (first.map(describe).unwrap_or_default(), last.map(describe).unwrap_or_default());
        first.into_iter().chain(last).map(|parameter| parameter.id).collect()
    }
}

impl<F, B, L> Row<F, B, L>
where
    F: Stage,
    B: Stage<Input = F::Output, Output = F::Output>,
    L: LossStage<Input = F::Output>,
{
    /// Creates a row (a model as first layer, blocks and last layer) from functions that create the layers on a device.
    /// `blocks` is the number of blocks. `block` also gets the index of the block, counted from 0.
    pub fn new(
        first: impl Fn(&Device) -> F + 'static,
        blocks: usize,
        block: impl Fn(usize, &Device) -> B + 'static,
        last: impl Fn(&Device) -> L + 'static,
    ) -> Self {
        Self {
            first: Box::new(first),
            block: Box::new(move |index, _, device| block(index, device)),
            last: Box::new(last),
            blocks,
            division: Division::Blocks,
            seed: 0,
            names: ["first", "blocks", "last"].map(str::to_owned),
            frozen_from: FrozenFrom::default(),
            precision: Precision::Full,
            description: String::new(),
        }
    }

    /// Describes what the names and shapes of the model's parameters do not show, such as the number of attention heads
    /// or a LoRA adapter's scale; empty if unset. Training programs of the crate `stageline-train` store the
    /// description in checkpoints, and refuse to resume from a checkpoint with another description.
    #[must_use]
    pub fn described(self, description: impl Into<String>) -> Self {
        Self { description: description.into(), ..self }
    }

    /// Returns the description that [`described`](Self::described) has set; empty if it was not called.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Sets the seed for the initial parameters of all layers of the model; 0 if unset.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets the names that checkpoints give to the model's first layer, its blocks and its last layer; `first`,
    /// `blocks` and `last` if unset. Block 3 is `blocks.3`.
    #[must_use]
    pub fn names(self, first: &str, blocks: &str, last: &str) -> Self {
        Self { names: [first, blocks, last].map(str::to_owned), ..self }
    }

    /// Sets where a resumed training run takes the values of frozen parameters from; [`FrozenFrom::Checkpoint`] if
    /// unset. With [`FrozenFrom::Model`], the row's functions must create frozen parameters with the same values in
    /// each run, for example by reading them from a file. If a value differs, building the resumed pipeline fails.
    #[must_use]
    pub fn frozen_from(self, source: FrozenFrom) -> Self {
        Self { frozen_from: source, ..self }
    }

    /// Sets the compute precision of pipelines that are built from this row; full precision if unset.
    /// [`PipelineBuilder::precision`](crate::PipelineBuilder::precision) and, in a training run, the flag `--precision`
    /// override it.
    ///
    /// The row's functions may then create frozen parameters in this dtype, so that stages need no additional rounded
    /// copies. If a pipeline computes in another precision, and in [`count`](Self::count) and
    /// [`measure`](Self::measure), these parameters are converted to f32.
    #[must_use]
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Makes each half of a block a layer of its own, so that a stage may begin or end with half a block. A model of n
    /// blocks then has 2n + 2 layers. If both halves of a block are in one stage, they are joined into one block, and
    /// [`Recompute`](crate::Recompute) counts them as one.
    ///
    /// Each half has its own seed, so initial parameters differ from those without this call; names in checkpoints stay
    /// the same. The function that creates a block is called for each half, and the other half is dropped before its
    /// lazy parameters are initialised. Call [`mapped`](Self::mapped) after this function, so that its mapper sees only
    /// the half that is kept.
    #[must_use]
    pub fn halved(self) -> Self
    where
        B: Halves,
    {
        let block = self.block;
        let block = move |index: usize, piece: Piece, device: &Device| piece.of(block(index, Piece::Whole, device));
        Self { block: Box::new(block), division: Division::halves(), ..self }
    }

    /// Returns the number of layers of the model: its first layer, its blocks or their halves
    /// ([`halved`](Self::halved)), and its last layer.
    pub fn layers(&self) -> usize {
        self.blocks * self.division.layers() + 2
    }

    /// Creates the layers of every stage of the partition `cut`, and returns the builder of the pipeline. `configs`
    /// lists one configuration for each stage, in stage order. Each layer is created on the device of its stage. The
    /// names of parameters in checkpoints do not depend on `cut`.
    ///
    /// # Errors
    /// Returns [`CutError`] if the row has too few layers for the cut, or if there is not one configuration for each
    /// stage.
    pub fn pipeline(
        &self,
        cut: &Cut,
        configs: impl IntoIterator<Item = StageConfig>,
    ) -> Result<BuilderOf<F, L>, CutError> {
        let ranges = cut.ranges(self.layers())?;
        let configs: Vec<_> = configs.into_iter().collect();
        let stages = ranges.len();
        if configs.len() != stages {
            return Err(CutError::Configs { configs: configs.len(), stages });
        }
        let mut names = Names::new();
        let mut stages = ranges.into_iter().zip(configs).map(|(range, config)| {
            let first_block = range.start.saturating_sub(1) / self.division.layers();
            let part = self.part(range, config.device());
            names = self.named(std::mem::take(&mut names), &part, first_block);
            let config = config.with_ends(part.ids_of_ends());
            (part, config)
        });
        let mut chain = None;
        let builder = loop {
            let (part, config) = stages.next().expect("the last stage of a cut has the last layer");
            chain = match (part, chain) {
                (Part::Whole(first, blocks, last), _) => {
                    break Pipeline::builder().loss((first, blocks, last), config);
                }
                (Part::Begin(first, blocks), _) => Some(Pipeline::builder().stage((first, blocks), config)),
                (Part::Middle(blocks), chain) => chain.map(|chain| chain.stage(blocks, config)),
                (Part::End(blocks, last), chain) => {
                    let chain = chain.expect("the first stage of a cut has the first layer");
                    break chain.loss((blocks, last), config);
                }
            };
        };
        drop(stages);
        let mut builder = builder.names(names).frozen_from(self.frozen_from).precision(self.precision);
        builder.frozen_in = self.precision;
        Ok(builder)
    }

    /// Creates all layers of the model on one device, with the same initial parameters as in the stages of a pipeline.
    /// Returns the first layer, all blocks in order, and the last layer, for use without a pipeline.
    pub fn init(&self, device: &Device) -> (F, Vec<B>, L) {
        match self.part(0..self.layers(), device) {
            Part::Whole(first, blocks, last) => (first, blocks, last),
            _ => unreachable!("a range of all layers is the whole row"),
        }
    }

    /// Reassembles the whole model from the stage modules of a pipeline. The pipeline must have been built from a row
    /// (first layer, blocks, last layer) with the same layer types. Returns the first layer, all blocks in order, and
    /// the last layer. Each layer stays on the device of its stage; a block whose halves are in two stages is on two
    /// devices.
    ///
    /// # Errors
    /// Returns [`ModuleError`] in these cases:
    ///
    /// - The module of a stage was taken before or is lost.
    /// - The modules do not have the types of this row's layers.
    /// - The modules have another number of blocks than this row.
    pub fn join(&self, mut modules: Modules) -> Result<(F, Vec<B>, L), ModuleError> {
        let last_stage = modules.stages().saturating_sub(1);
        let (first, blocks, last) = if last_stage == 0 {
            modules.take(0)?
        } else {
            let (first, mut blocks) = modules.take::<(F, Vec<B>)>(0)?;
            for stage in 1..last_stage {
                blocks.extend(modules.take::<Vec<B>>(stage)?);
            }
            let (rest, last) = modules.take::<(Vec<B>, L)>(last_stage)?;
            blocks.extend(rest);
            (first, blocks, last)
        };
        let blocks = self.division.joined(blocks);
        if blocks.len() != self.blocks {
            return Err(ModuleError::Blocks { found: blocks.len(), expected: self.blocks });
        }
        Ok((first, blocks, last))
    }

    /// Creates the layers of one stage, and joins the halves of its blocks. `range` has the layers' zero-based indices
    /// in the whole model. Each layer is moved to the stage's device before the next one is created.
    fn part(&self, range: Range<usize>, device: &Device) -> Part<F, B, L> {
        let (begins, ends) = (range.start == 0, range.end == self.layers());
        let first = || self.layer(0, device, |home| (self.first)(home));
        let blocks = range.start.max(1)..range.end.min(self.layers() - 1);
        let blocks = blocks.map(|layer| self.layer(layer, device, |home| self.of_block(layer, home)));
        let blocks = || self.division.joined(blocks);
        let last = || self.layer(self.layers() - 1, device, |home| (self.last)(home));
        match (begins, ends) {
            (true, true) => Part::Whole(first(), blocks(), last()),
            (true, false) => Part::Begin(first(), blocks()),
            (false, false) => Part::Middle(blocks()),
            (false, true) => Part::End(blocks(), last()),
        }
    }

    /// Creates one block, or half of a block, of the model. `layer` is its zero-based index among all layers of the
    /// model, so the first block's is 1. Lazy parameters stay uninitialised.
    pub(super) fn of_block(&self, layer: usize, device: &Device) -> B {
        let (block, piece) = self.division.place_of(layer - 1);
        (self.block)(block, piece, device)
    }

    /// Returns the name of a layer that is a block or a half of a block, such as `blocks.3` or `blocks.3.mlp`. `layer`
    /// is its zero-based index among all layers of the model.
    pub(super) fn name_of(&self, layer: usize) -> String {
        let (block, piece) = self.division.place_of(layer - 1);
        self.division.name(format!("{}.{block}", self.names[1]), piece)
    }

    /// Creates one layer of the model on `device`. Its parameters are initialised from the layer's own seed, which
    /// depends on the model's seed and the layer's index. Each parameter is moved to `device` before the next one is
    /// drawn, to save memory.
    fn layer<M: Module>(&self, layer: usize, device: &Device, init: impl FnOnce(&Device) -> M) -> M {
        let seed = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(layer as u64);
        let home = drawing_device(Some(device)).autodiff();
        seeded_on(&home, device, seed, || init(&home))
    }

    /// Adds all parameters of one stage's layers to `names`, under their names in the whole model. `first_block` is the
    /// index, in the model, of the stage's first block.
    fn named(&self, names: Names, part: &Part<F, B, L>, first_block: usize) -> Names {
        let [first_name, blocks_name, last_name] = &self.names;
        let (first, blocks, last) = match part {
            Part::Whole(first, blocks, last) => (Some(first), blocks, Some(last)),
            Part::Begin(first, blocks) => (Some(first), blocks, None),
            Part::Middle(blocks) => (None, blocks, None),
            Part::End(blocks, last) => (None, blocks, Some(last)),
        };
        let names = first.into_iter().fold(names, |names, first| names.part(first_name, first));
        let blocks = (first_block..).zip(blocks);
        let names = blocks.fold(names, |names, (index, block)| names.part(&format!("{blocks_name}.{index}"), block));
        last.into_iter().fold(names, |names, last| names.part(last_name, last))
    }
}

/// Returns the device that draws the layers' initial parameters: the CPU, so that their bits do not depend on the
/// stage's device. Without a CPU backend, it is the stage's device.
pub(super) fn drawing_device(stage: Option<&Device>) -> Device {
    #[cfg(feature = "flex")]
    {
        let _ = stage;
        Device::flex()
    }
    #[cfg(not(feature = "flex"))]
    stage.cloned().unwrap_or_default()
}
