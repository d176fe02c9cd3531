//! Turns a model that is one struct ([`LayeredModel`]) into a row of layers ([`ModelRow`]): a first layer, blocks and a
//! last layer. A row can be divided into stages.

use std::fmt;
use std::rc::Rc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::{Device, Tensor};

use crate::build::row::Row;
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::model::stage::{LossStage, Stage};
use crate::pipeline::modules::{ModuleError, Modules};

/// A model in one struct, with a first part, a list of blocks and a last part. As a row of layers ([`ModelRow`]), it
/// can be divided into stages.
///
/// The forward pass consists of three functions: `forward_input`, then `forward_block` for each block in order, then
/// `forward_output`. burn's proposal for pipelines ([burn#5702](https://github.com/tracel-ai/burn/pull/5702)) has the
/// same three, as methods of the whole model. burn 0.22 does not have them yet.
///
/// Here each function borrows only the part of the model that it runs, because no device ever has the whole model. To
/// implement this trait for a model with burn's methods, write the three functions, the constructors of the parts, the
/// loss, and [`join`](Self::join).
///
/// ```no_run,standalone_crate
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Tensor, activation::relu};
/// use stageline::{Cut, LayeredModel, ModelRow, StageConfig, Weight};
///
/// #[derive(Module, Debug)]
/// struct Net {
///     input: Linear,
///     blocks: Vec<Linear>,
///     output: Linear,
/// }
///
/// impl LayeredModel for Net {
///     type Config = usize; // the width
///     type First = Linear;
///     type Block = Linear;
///     type Last = Linear;
///     type Input = Tensor<2>;
///     type Hidden = Tensor<2>;
///     type Output = Tensor<2>;
///     type Target = Tensor<2>;
///
///     fn blocks(_: &usize) -> usize {
///         4
///     }
///     fn init_first(width: &usize, device: &Device) -> Linear {
///         LinearConfig::new(2, *width).init(device)
///     }
///     fn init_block(width: &usize, _: usize, device: &Device) -> Linear {
///         LinearConfig::new(*width, *width).init(device)
///     }
///     fn init_last(width: &usize, device: &Device) -> Linear {
///         LinearConfig::new(*width, 1).init(device)
///     }
///     fn join(input: Linear, blocks: Vec<Linear>, output: Linear) -> Self {
///         Self { input, blocks, output }
///     }
///
///     fn forward_input(input: &Linear, batch: Tensor<2>) -> Tensor<2> {
///         input.forward(batch)
///     }
///     fn forward_block(block: &Linear, _: usize, hidden: Tensor<2>) -> Tensor<2> {
///         relu(block.forward(hidden))
///     }
///     fn forward_output(output: &Linear, hidden: Tensor<2>) -> Tensor<2> {
///         output.forward(hidden)
///     }
///
///     fn loss(_: &Linear, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
///         (output - target).square().sum()
///     }
///     fn weight(_: &Linear, target: &Tensor<2>) -> Weight {
///         target.dims()[0].into()
///     }
/// }
///
/// let row = ModelRow::<Net>::of_model(8).names("input", "blocks", "output");
/// let cpu = Device::flex();
/// let config = || StageConfig::new(cpu.clone(), AdamWConfig::new().init(), 1e-3);
/// let pipeline = row.pipeline(&"0,3".parse::<Cut>()?, [config(), config()])?.build()?;
/// let trained: Net = row.join_model(pipeline.into_modules())?;
/// assert_eq!(trained.blocks.len(), 4);
/// # Ok::<(), stageline::BoxError>(())
/// ```
pub trait LayeredModel: Sized + 'static {
    /// The type of a model's configuration (such as layer sizes), which is passed to the functions that create the
    /// model's parts.
    type Config: 'static;
    /// The type of a model's first part, such as embeddings.
    type First: Module + 'static;
    /// The type of a model's blocks, which lie between its first and its last part.
    type Block: Module + 'static;
    /// The type of a model's last part, such as a head.
    type Last: Module + 'static;
    /// The type of a model's input, which comes from a batch.
    type Input: Payload;
    /// The type of the activations that a model's first part returns, and that every block takes and returns.
    type Hidden: Payload;
    /// The type of a model's output, such as logits.
    type Output: Payload;
    /// The type of the targets of the loss, which come from a batch.
    type Target: Payload;

    /// The names of the metrics that a model computes in addition to its loss, such as `accuracy`; empty by default.
    /// The pipeline passes them on as [`LossStage::METRICS`].
    const METRICS: &'static [&'static str] = &[];

    /// Returns the number of blocks of a model with the configuration `config`.
    fn blocks(config: &Self::Config) -> usize;

    /// Creates the first part of a model, such as embeddings, on a device.
    fn init_first(config: &Self::Config, device: &Device) -> Self::First;

    /// Creates one block of a model on a device. `index` is the block's zero-based index in the model.
    fn init_block(config: &Self::Config, index: usize, device: &Device) -> Self::Block;

    /// Creates the last part of a model, such as a head, on a device.
    fn init_last(config: &Self::Config, device: &Device) -> Self::Last;

    /// Assembles the whole model from its first part, its blocks in order, and its last part.
    fn join(first: Self::First, blocks: Vec<Self::Block>, last: Self::Last) -> Self;

    /// Computes the forward pass of a model's first part for one micro-batch. Returns the activations for the first
    /// block.
    fn forward_input(first: &Self::First, input: Self::Input) -> Self::Hidden;

    /// Computes the forward pass of one block, whose zero-based index is `index`, for one micro-batch. Returns the
    /// activations for the next block or the last part.
    fn forward_block(block: &Self::Block, index: usize, hidden: Self::Hidden) -> Self::Hidden;

    /// Computes the forward pass of a model's last part for one micro-batch. Returns the model's output, such as
    /// logits, without a loss.
    fn forward_output(last: &Self::Last, hidden: Self::Hidden) -> Self::Output;

    /// Computes the loss of one micro-batch, summed (not averaged) over its targets, of shape `[1]`. A loss of several
    /// terms gives one sum for each term, of shape `[terms]`, as in [`LossStage::loss`].
    fn loss(last: &Self::Last, output: Self::Output, target: Self::Target) -> Tensor<1>;

    /// Returns the loss weight of one micro-batch's targets, usually the number of unmasked targets. The result has one
    /// value for each term of the loss, as in [`LossStage::weight`].
    fn weight(last: &Self::Last, target: &Self::Target) -> Weight;

    /// Computes the sum of each metric over one micro-batch's targets, of shape `[METRICS.len()]`, as in
    /// [`LossStage::metrics`]. A model without metrics does not implement this method.
    fn metrics(last: &Self::Last, output: Self::Output, target: Self::Target) -> Tensor<1> {
        let _ = (last, output, target);
        panic!("`LayeredModel::METRICS` names {}, so the model must override `metrics`", Self::METRICS.join(", "))
    }
}

/// A model in one struct, represented as a row (first layer, blocks, last layer). Like any other [`Row`], it can be
/// divided into any number of stages.
pub type ModelRow<M> = Row<FirstLayer<M>, BlockLayer<M>, LastLayer<M>>;

/// Defines a layer type that wraps one part of a model: its first part, a block or its last part. The wrapper adds
/// nothing to parameter paths, so names in checkpoints stay the same.
macro_rules! layer {
    ($(#[$doc:meta])* $name:ident, $part:ident $(, $extra:ident: $type:ty)?) => {
        $(#[$doc])*
        pub struct $name<M: LayeredModel> {
            part: M::$part,
            $($extra: $type,)?
        }

        impl<M: LayeredModel> Clone for $name<M> {
            fn clone(&self) -> Self {
                Self { part: self.part.clone(), $($extra: self.$extra)? }
            }
        }

        impl<M: LayeredModel> fmt::Debug for $name<M> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.part, f)
            }
        }

        impl<M: LayeredModel> Module for $name<M> {
            fn collect_devices(&self, devices: Devices) -> Devices {
                self.part.collect_devices(devices)
            }

            fn fork(self, device: &Device) -> Self {
                Self { part: self.part.fork(device), $($extra: self.$extra)? }
            }

            fn to_device(self, device: &Device) -> Self {
                Self { part: self.part.to_device(device), $($extra: self.$extra)? }
            }

            fn train(self) -> Self {
                Self { part: self.part.train(), $($extra: self.$extra)? }
            }

            fn valid(&self) -> Self {
                Self { part: self.part.valid(), $($extra: self.$extra)? }
            }

            fn materialize(self) -> Self {
                Self { part: self.part.materialize(), $($extra: self.$extra)? }
            }

            fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
                self.part.visit(visitor);
            }

            fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
                Self { part: self.part.map(mapper), $($extra: self.$extra)? }
            }
        }
    };
}

layer! {
    /// The first layer of a model that is given as a [`ModelRow`] (first layer, blocks, last layer). It wraps the
    /// model's first part.
    FirstLayer, First
}

layer! {
    /// A block of a model that is given as a [`ModelRow`] (first layer, blocks, last layer). It wraps one of the
    /// model's blocks, and knows the block's index.
    BlockLayer, Block, index: usize
}

layer! {
    /// The last layer of a model that is given as a [`ModelRow`] (first layer, blocks, last layer). It wraps the
    /// model's last part.
    LastLayer, Last
}

impl<M: LayeredModel> Stage for FirstLayer<M> {
    type Input = M::Input;
    type Output = M::Hidden;

    fn forward(&self, input: M::Input) -> M::Hidden {
        M::forward_input(&self.part, input)
    }
}

impl<M: LayeredModel> Stage for BlockLayer<M> {
    type Input = M::Hidden;
    type Output = M::Hidden;

    fn forward(&self, hidden: M::Hidden) -> M::Hidden {
        M::forward_block(&self.part, self.index, hidden)
    }
}

impl<M: LayeredModel> Stage for LastLayer<M> {
    type Input = M::Hidden;
    type Output = M::Output;

    fn forward(&self, hidden: M::Hidden) -> M::Output {
        M::forward_output(&self.part, hidden)
    }
}

impl<M: LayeredModel> LossStage for LastLayer<M> {
    type Target = M::Target;
    const METRICS: &'static [&'static str] = M::METRICS;

    fn loss(&self, output: M::Output, target: M::Target) -> Tensor<1> {
        M::loss(&self.part, output, target)
    }

    fn weight(&self, target: &M::Target) -> Weight {
        M::weight(&self.part, target)
    }

    fn metrics(&self, output: M::Output, target: M::Target) -> Tensor<1> {
        M::metrics(&self.part, output, target)
    }
}

impl<M: LayeredModel> ModelRow<M> {
    /// Creates the row (first layer, blocks, last layer) of a model from the model's configuration. The layers are
    /// created later, for example by `pipeline`.
    pub fn of_model(config: M::Config) -> Self {
        let blocks = M::blocks(&config);
        let of_first = Rc::new(config);
        let (of_block, of_last) = (Rc::clone(&of_first), Rc::clone(&of_first));
        Self::new(
            move |device| FirstLayer::<M> { part: M::init_first(&of_first, device) },
            blocks,
            move |index, device| BlockLayer::<M> { part: M::init_block(&of_block, index, device), index },
            move |device| LastLayer::<M> { part: M::init_last(&of_last, device) },
        )
    }

    /// Reassembles a model from the stage modules of a pipeline that was built from the model's row (first layer,
    /// blocks, last layer). Each layer stays on the device of its stage.
    ///
    /// # Errors
    /// Returns [`ModuleError`], as [`join`](Row::join) does, if a stage's module is missing, or if the modules do not
    /// fit this row's layer types or number of blocks.
    pub fn join_model(&self, modules: Modules) -> Result<M, ModuleError> {
        self.join(modules).map(joined)
    }

    /// Creates the whole model on one device, with the same initial parameters as in the stages of a pipeline, for use
    /// without a pipeline.
    pub fn init_model(&self, device: &Device) -> M {
        joined(self.init(device))
    }
}

fn joined<M: LayeredModel>((first, blocks, last): (FirstLayer<M>, Vec<BlockLayer<M>>, LastLayer<M>)) -> M {
    M::join(first.part, blocks.into_iter().map(|block| block.part).collect(), last.part)
}
