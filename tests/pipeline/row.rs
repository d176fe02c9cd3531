//! Tests of `Row`, a model as a first layer, blocks and a last layer: its parameters and training do not depend on the
//! partition into stages, and its checkpoints fit every partition.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Quantizer};
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::quantization::{Calibration, QuantValue};
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::nn::Linear;
use stageline::schedule::{Interleaved, LoopedBreadthFirst, OneFOneB, Plan, Schedule, ZbV};
use stageline::{
    Batch, Costs, Cut, CutError, LayeredModel, LossStage, ModelRow, ParameterCount, Pipeline, Row, Stage, StageConfig,
    Weight,
};
use stageline_train::fingerprint;

use crate::model::{Bytes, Logits, Shape, costs, gpt};

const SHAPE: Shape = Shape { layers: 4, width: 32, context: 8 };
const MICRO_BATCHES: usize = 6;
const SEED: u64 = 5;

fn config() -> StageConfig {
    StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-3)
}

fn batch(step: usize) -> Batch<Bytes, Bytes> {
    let text = |shift: usize| {
        let bytes: Vec<i32> = (0..6 * SHAPE.context).map(|at| ((at + shift) * 37 % 256) as i32).collect();
        Tensor::<2, Int>::from_data(TensorData::new(bytes, [6, SHAPE.context]), &Device::flex())
    };
    Batch::new(text(step), text(step + 1))
}

fn pipeline(cut: &Cut, schedule: impl Schedule + 'static) -> Pipeline<Bytes, Logits, Bytes> {
    let builder = gpt(SHAPE, SEED).pipeline(cut, vec![config(); cut.stages()]).unwrap();
    builder.micro_batches(MICRO_BATCHES).schedule(schedule).cores_per_stage(1).build().unwrap()
}

fn trained(cut: &Cut, schedule: impl Schedule + 'static) -> String {
    let mut pipeline = pipeline(cut, schedule);
    (0..2).for_each(|step| drop(pipeline.step(batch(step)).unwrap()));
    fingerprint(&gpt(SHAPE, SEED).join(pipeline.into_modules()).unwrap()).0
}

/// Tests the partitions of a model into stages: P = 1 to 6 stages, uneven partitions, stages with only the first or the
/// last layer, 1 to 3 chunks (stages) per worker, and a plan from text. With all of them, the trained parameters have
/// the same bits.
#[test]
fn every_cut_trains_to_the_same_bits() {
    let expected = trained(&costs(SHAPE).cut(1).unwrap(), OneFOneB);
    for stages in 2..=6 {
        assert_eq!(trained(&costs(SHAPE).cut(stages).unwrap(), OneFOneB), expected, "P = {stages}");
    }
    for cut in ["0,1", "0,5", "0,1,2", "0,1,5", "0,2,3,5"] {
        assert_eq!(trained(&cut.parse().unwrap(), OneFOneB), expected, "{cut}");
    }
    for (stages, chunks) in [(4, 2), (6, 3), (3, 3)] {
        let cut = costs(SHAPE).cut(stages).unwrap();
        assert_eq!(trained(&cut, Interleaved { chunks }), expected, "{stages} stages in {chunks} chunks");
        assert_eq!(trained(&cut, LoopedBreadthFirst { chunks }), expected, "{stages} stages in {chunks} chunks");
    }
    assert_eq!(trained(&costs(SHAPE).cut(4).unwrap(), ZbV), expected);
    let written = OneFOneB.plan(3, MICRO_BATCHES).unwrap().to_csv();
    assert_eq!(trained(&costs(SHAPE).cut(3).unwrap(), Plan::from_csv(&written).unwrap()), expected);
}

#[test]
fn outputs_do_not_depend_on_the_cut() {
    let (input, _) = batch(0).into_micro_batches(1).unwrap().pop().unwrap();
    let logits = |stages: usize| {
        let mut pipeline = pipeline(&costs(SHAPE).cut(stages).unwrap(), OneFOneB);
        let logits = pipeline.infer(input.clone()).unwrap();
        assert_eq!(logits.dims(), [6, SHAPE.context, 256]);
        logits.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>()
    };
    let expected = logits(1);
    (2..=6).for_each(|stages| assert!(logits(stages) == expected, "P = {stages}"));
}

#[test]
fn checkpoints_resume_on_another_cut_without_names_of_the_user() {
    let mut through = pipeline(&"0,2".parse().unwrap(), OneFOneB);
    through.step(batch(0)).unwrap();
    let kept = through.checkpoint().unwrap();
    assert!(kept.parameters.contains_key("blocks.3.up.weight") && kept.parameters.contains_key("head.norm.gamma"));
    through.step(batch(1)).unwrap();
    for cut in ["0", "0,1,5", "0,3,4"] {
        let cut: Cut = cut.parse().unwrap();
        let builder = gpt(SHAPE, 99).pipeline(&cut, vec![config(); cut.stages()]).unwrap();
        let mut again = builder.micro_batches(MICRO_BATCHES).restore(kept.clone()).build().unwrap();
        again.step(batch(1)).unwrap();
        assert!(again.checkpoint().unwrap() == through.checkpoint().unwrap(), "{cut}");
    }
}

#[test]
fn cuts_that_do_not_fit_the_row_are_refused() {
    let refused = |cut: &str, configs: usize| {
        let cut: Cut = cut.parse().unwrap();
        gpt(SHAPE, SEED).pipeline(&cut, vec![config(); configs]).map(drop).unwrap_err()
    };
    assert_eq!(refused("0,6", 2), CutError::Layers { start: 6, layers: 6 });
    assert_eq!(refused("0,3", 3), CutError::Configs { configs: 3, stages: 2 });
    assert!(matches!(costs(SHAPE).cut(7), Err(CutError::Balance(_))));
}

/// A visitor that collects the paths of parameters, and a mapper that freezes those of the blocks.
#[derive(Default)]
struct Walk {
    path: Vec<String>,
    found: Vec<String>,
}

impl ModuleVisitor for Walk {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
        self.found.push(self.path.join("."));
    }
}

impl ModuleMapper for Walk {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.path.first().is_some_and(|layer| layer == "blocks") { param.no_grad() } else { param }
    }
}

/// Tests that the paths of visited parameters are those of checkpoints, and that a mapper sees the same paths.
#[test]
fn visits_and_mappers_see_the_names_of_checkpoints() {
    let (row, frozen) = (gpt(SHAPE, SEED), gpt(SHAPE, SEED).mapped(Walk::default));
    let [mut new, mut joined] = [(); 2].map(|()| Walk::default());
    row.visit_new(&mut new);
    let pipeline = pipeline(&"0,2".parse().unwrap(), OneFOneB);
    row.visit(&row.join(pipeline.into_modules()).unwrap(), &mut joined);
    assert_eq!(new.found, joined.found);
    let names: Vec<_> = new.found.iter().map(String::as_str).collect();
    assert!(names.contains(&"blocks.3.mlp_norm.gamma"), "{names:?}");
    let (all, blocks) =
        (row.init(&Device::flex()).num_params() as u64, row.init(&Device::flex()).1.num_params() as u64);
    assert_eq!(row.parameters(), ParameterCount { trained: all, frozen: 0, frozen_bytes: 0 });
    assert_eq!(frozen.parameters(), ParameterCount { trained: all - blocks, frozen: blocks, frozen_bytes: 4 * blocks });
}

/// The number of bytes in the data of a module's float parameters.
#[derive(Default)]
struct Stored(usize);

impl ModuleVisitor for Stored {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0 += param.val().into_data().bytes().len();
    }
}

/// Tests that quantized parameters count the bytes in which they are stored, about one for each element.
#[test]
fn quantized_parameters_count_as_they_are_stored() {
    let scheme = Device::flex().settings().quantization.scheme.with_value(QuantValue::Q8S);
    let row = gpt(SHAPE, SEED).mapped(move || Quantizer::new(Calibration::MinMax, scheme));
    let mut stored = Stored::default();
    row.init(&Device::flex()).visit(&mut stored);
    let ParameterCount { trained, frozen, frozen_bytes } = row.parameters();
    assert_eq!((trained, frozen_bytes), (0, stored.0 as u64), "quantized parameters are not trained");
    assert!(frozen_bytes < frozen * 5 / 4, "{frozen_bytes} bytes of {frozen} elements");
}

/// Tests the costs of a model's layers: measured costs have the times of the layers, and the same parameter counts and
/// FLOPs as costs that are counted without a measurement.
#[test]
fn measured_costs_have_times_and_the_same_counts() {
    let row = gpt(SHAPE, SEED);
    let sample = Tensor::zeros([1, SHAPE.context], &Device::flex());
    let (counted, measured) = (row.count(sample.clone()), row.measure(sample, &Device::flex()));
    assert_eq!((counted.parameters(), counted.flops()), (measured.parameters(), measured.flops()));
    assert_eq!(counted.parameters() as usize, row.init(&Device::flex()).num_params());
    let parts = |costs: &Costs| -> Vec<(String, u64)> {
        costs.layers().iter().map(|layer| (layer.name.clone(), layer.parameters)).collect()
    };
    let sizes = row.sizes();
    assert_eq!((parts(&sizes), sizes.flops()), (parts(&counted), 0.0));
    assert!(counted.layers().iter().all(|layer| layer.time.is_none()));
    assert!(measured.layers().iter().all(|layer| layer.time.is_some_and(|time| !time.is_zero())));
    assert_eq!(measured.cut(3).unwrap().stages(), 3);
}

/// A block of a test model, with a parameter of one element. It halves the number of columns of its input if `halves`
/// is set.
#[derive(Module, Debug)]
struct Narrow {
    scale: Param<Tensor<1>>,
    halves: bool,
}

impl Stage for Narrow {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let [_, columns] = input.dims();
        let scaled = input * self.scale.val().unsqueeze();
        if self.halves { scaled.slice_dim(1, 0..columns / 2) } else { scaled }
    }
}

/// The last layer of a test model, which takes inputs of four columns.
#[derive(Module, Debug)]
struct Four {
    linear: Linear,
}

impl Stage for Four {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for Four {
    type Target = ();

    fn loss(&self, output: Tensor<2>, (): ()) -> Tensor<1> {
        output.sum()
    }

    fn weight(&self, (): &()) -> Weight {
        1.0.into()
    }
}

/// Returns a row of four blocks, of which the second and the fourth halve the number of columns. Its last layer takes
/// four columns.
fn halving_row() -> Row<Narrow, Narrow, Four> {
    let narrow = |halves, device: &Device| Narrow { scale: Param::from_tensor(Tensor::ones([1], device)), halves };
    let four = |device: &Device| Four { linear: LinearConfig::new(4, 3).init(device).into() };
    Row::new(move |d| narrow(false, d), 4, move |block, d| narrow(block % 2 == 1, d), four)
}

/// Tests the counted parameters and FLOPs of a model whose blocks have the same parameter shapes, although some blocks
/// halve the number of columns. All layers must be counted.
#[test]
fn blocks_that_change_the_shape_are_counted() {
    let costs = halving_row().count(Tensor::zeros([2, 16], &Device::flex()));
    assert_eq!(costs.layers().len(), 6);
    assert_eq!((costs.parameters(), costs.flops()), (5 + 4 * 3 + 3, 2.0 * 2.0 * 4.0 * 3.0));
}

/// Tests the panic message for a sample of twelve columns, of which the last layer gets three instead of four. It names
/// the last layer.
#[test]
fn a_layer_that_fails_on_the_sample_is_named() {
    let count = || halving_row().count(Tensor::zeros([2, 12], &Device::flex()));
    let panic = catch_unwind(AssertUnwindSafe(count)).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.starts_with("the layer `last` failed on the sample input: it panicked: "), "{text}");
}

/// A model in one struct, whose forward consists of three functions: for the first part, for each block, and for the
/// last part. The forward of a block depends on the block's index.
#[derive(Module, Debug)]
struct Net {
    input: Linear,
    blocks: Vec<Linear>,
    output: Linear,
}

const BLOCKS: usize = 3;

impl LayeredModel for Net {
    type Config = [usize; 3];
    type First = Linear;
    type Block = Linear;
    type Last = Linear;
    type Input = Tensor<2>;
    type Hidden = Tensor<2>;
    type Output = Tensor<2>;
    type Target = Tensor<2>;

    fn blocks(_: &[usize; 3]) -> usize {
        BLOCKS
    }

    fn init_first([inputs, width, _]: &[usize; 3], device: &Device) -> Linear {
        LinearConfig::new(*inputs, *width).init(device).into()
    }

    fn init_block([_, width, _]: &[usize; 3], _: usize, device: &Device) -> Linear {
        LinearConfig::new(*width, *width).init(device).into()
    }

    fn init_last([_, width, outputs]: &[usize; 3], device: &Device) -> Linear {
        LinearConfig::new(*width, *outputs).init(device).into()
    }

    fn join(input: Linear, blocks: Vec<Linear>, output: Linear) -> Self {
        Self { input, blocks, output }
    }

    fn forward_input(input: &Linear, batch: Tensor<2>) -> Tensor<2> {
        input.forward(batch)
    }

    fn forward_block(block: &Linear, index: usize, hidden: Tensor<2>) -> Tensor<2> {
        (block.forward(hidden) * (index + 1) as f64).tanh()
    }

    fn forward_output(output: &Linear, hidden: Tensor<2>) -> Tensor<2> {
        output.forward(hidden)
    }

    fn loss(_: &Linear, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (output - target).square().sum()
    }

    fn weight(_: &Linear, target: &Tensor<2>) -> Weight {
        target.dims()[0].into()
    }
}

/// Tests a model that is one struct and is divided into stages in several ways. The trained parameters have the same
/// bits for every partition, and the outputs are those of the model's forward without a pipeline. The blocks start with
/// different parameters, and checkpoints have the model's parameter names.
#[test]
fn a_model_in_one_struct_has_the_outputs_of_its_plain_forward_on_every_cut() {
    let row = || ModelRow::<Net>::of_model([4, 6, 2]).seed(3).names("input", "blocks", "output");
    let numbers = |columns: usize, factor: usize| {
        let values: Vec<f32> = (0..5 * columns).map(|at| (at * factor % 11) as f32 / 11.0).collect();
        Tensor::<2>::from_data(TensorData::new(values, [5, columns]), &Device::flex())
    };
    let (input, target) = (numbers(4, 3), numbers(2, 7));
    let bits = |tensor: Tensor<2>| tensor.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
    let plain = |net: &Net| {
        let Net { input: first, blocks, output } = net.valid();
        let mut hidden = first.forward(input.clone());
        for (index, block) in blocks.iter().enumerate() {
            hidden = (block.forward(hidden) * (index + 1) as f64).tanh();
        }
        bits(output.forward(hidden))
    };
    let untrained = row().init_model(&Device::flex());
    let first_blocks = [0, 1].map(|block| untrained.blocks[block].weight.val().into_data());
    assert_ne!(first_blocks[0], first_blocks[1], "two blocks have the same parameters");
    let mut expected = None;
    for cut in ["0", "0,2", "0,1,4", "0,1,2,3,4"] {
        let cut: Cut = cut.parse().unwrap();
        let builder = row().pipeline(&cut, vec![config(); cut.stages()]).unwrap();
        let mut pipeline = builder.micro_batches(2).cores_per_stage(1).build().unwrap();
        let outputs = pipeline.infer_micro_batches(vec![input.clone()]).unwrap();
        assert_eq!(bits(outputs[0].clone()), plain(&untrained), "{cut}");
        pipeline.step(Batch::new(input.clone(), target.clone())).unwrap();
        let names = pipeline.checkpoint().unwrap().parameters;
        for name in ["input.weight", "blocks.2.bias", "output.weight"] {
            assert!(names.contains_key(name), "{name} is not among {:?}", names.keys());
        }
        let outputs = pipeline.infer_micro_batches(vec![input.clone()]).unwrap();
        let trained = row().join_model(pipeline.into_modules()).unwrap();
        assert_eq!(bits(outputs[0].clone()), plain(&trained), "{cut}");
        assert_ne!(plain(&trained), plain(&untrained), "{cut}");
        assert_eq!(*expected.get_or_insert_with(|| fingerprint(&trained)), fingerprint(&trained), "{cut}");
    }
}
