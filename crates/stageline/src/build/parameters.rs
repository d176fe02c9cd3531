//! Visits and counts the parameters of a row's layers, and applies a mapper to new layers.

use std::collections::HashSet;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use crate::build::halves::Piece;
use crate::build::row::{Row, drawing_device};
use crate::model::stage::{LossStage, Stage};
use crate::state::parameter_count::ParameterCount;
use stageline_nn::params::{dtype_of, is_trained, unseeded};

impl<F, B, L> Row<F, B, L>
where
    F: Stage,
    B: Stage<Input = F::Output, Output = F::Output>,
    L: LossStage<Input = F::Output>,
{
    /// Applies a mapper of burn to every layer of the model right after the layer is created, for example to read its
    /// parameters from a file. `mapper` is called for each layer (which may be half of a block), and returns the mapper
    /// for this layer. The paths that the mapper sees begin with the layer's name, such as `blocks.3`, so set
    /// [`names`](Self::names) before.
    #[must_use]
    pub fn mapped<M: ModuleMapper>(self, mapper: impl Fn() -> M + Clone + 'static) -> Self {
        let Self { first, block, last, blocks, division, seed, names, frozen_from, precision, description } = self;
        let [of_first, of_block, of_last] = [mapper.clone(), mapper.clone(), mapper];
        let [first_name, blocks_name, last_name] = names.clone();
        Self {
            first: Box::new(move |device| map_within(&[&first_name], first(device), of_first())),
            block: Box::new(move |index, piece, device| {
                map_within(&[&blocks_name, &index.to_string()], block(index, piece, device), of_block())
            }),
            last: Box::new(move |device| map_within(&[&last_name], last(device), of_last())),
            blocks,
            division,
            seed,
            names,
            frozen_from,
            precision,
            description,
        }
    }

    /// Counts the elements of all float parameters of the model, trained and frozen ones separately, without
    /// initialising the lazy parameters of burn's layers. A parameter that several layers share is counted once.
    pub fn parameters(&self) -> ParameterCount {
        let mut counting = Counting::default();
        self.visit_new(&mut counting);
        counting.count
    }

    /// Visits all parameters of a model that [`init`](Self::init) or [`join`](Self::join) has returned, from the first
    /// layer to the last. The visitor sees each parameter under its name in checkpoints, such as
    /// `blocks.3.linear.weight`.
    pub fn visit(&self, (first, blocks, last): &(F, Vec<B>, L), visitor: &mut impl ModuleVisitor) {
        let [first_name, blocks_name, last_name] = &self.names;
        visit_within(&[first_name], first, visitor);
        for (index, block) in blocks.iter().enumerate() {
            visit_within(&[blocks_name, &index.to_string()], block, visitor);
        }
        visit_within(&[last_name], last, visitor);
    }

    /// Visits all parameters of the model without building it: creates one layer at a time, and visits its parameters
    /// under their names in checkpoints, as [`visit`](Self::visit) does. Layers are created on the CPU if the program
    /// has a CPU backend. The lazy parameters of burn's layers stay uninitialised unless the visitor uses their values.
    pub fn visit_new(&self, visitor: &mut impl ModuleVisitor) {
        let ([first, blocks, last], device) = (&self.names, drawing_device(None).autodiff());
        unseeded(|| {
            visit_within(&[first], &(self.first)(&device), visitor);
            for index in 0..self.blocks {
                visit_within(&[blocks, &index.to_string()], &(self.block)(index, Piece::Whole, &device), visitor);
            }
            visit_within(&[last], &(self.last)(&device), visitor);
        });
    }
}

#[derive(Default)]
struct Counting {
    seen: HashSet<ParamId>,
    count: ParameterCount,
}

impl ModuleVisitor for Counting {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.seen.insert(param.id) {
            self.count.add(is_trained(param), dtype_of(param), &param.lazy_shape());
        }
    }
}

/// The container type passed to burn's visitors and mappers for the path segments above a layer, such as `blocks` and
/// `3`.
const CONTAINER: &str = "Struct:Row";

/// Visits a layer as if it were nested in modules named `within` (outermost first), so that the visitor sees full
/// parameter names such as `blocks.3.linear.weight`.
fn visit_within<M: Module>(within: &[&str], layer: &M, visitor: &mut impl ModuleVisitor) {
    within.iter().for_each(|name| visitor.enter_module(name, CONTAINER));
    layer.visit(visitor);
    within.iter().rev().for_each(|name| visitor.exit_module(name, CONTAINER));
}

/// Maps a layer as if it were nested in modules named `within` (outermost first), so that the mapper sees full
/// parameter names such as `blocks.3.linear.weight`.
fn map_within<M: Module>(within: &[&str], layer: M, mut mapper: impl ModuleMapper) -> M {
    within.iter().for_each(|name| mapper.enter_module(name, CONTAINER));
    let layer = layer.map(&mut mapper);
    within.iter().rev().for_each(|name| mapper.exit_module(name, CONTAINER));
    layer
}
