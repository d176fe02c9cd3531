//! Tests of fine-tuning with adapters (LoRA: Hu et al., 2021, arXiv:2106.09685): the adapters train to the same bits as
//! in a loop without Stageline, and the base weights do not change.

use std::any::Any;
use std::num::NonZero;
use std::ops::Range;

use burn::module::{
    Lora, Module, ModuleMapper, ModuleVisitor, Param, QLora, Quantizer, Reparameterization, Reparameterizer,
};
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::quantization::{Calibration, QuantValue};
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};
use stageline::checkpoint::{Saved, Store};
use stageline::nn::{Embedding, LayerNorm, Linear, block, feed_forward, selective, sequence};
use stageline::schedule::{OneFOneB, SCHEDULES, Schedule, ZbH1};
use stageline::{
    Batch, BlockSet, LossStage, Modules, Pipeline, Precision, Recompute, Stage, StageConfig, Weight, seeded,
};

use crate::mlp::{LEARNING_RATE, device, pieces};

const WIDTH: usize = 16;
const WORDS: usize = 11;
const LENGTH: usize = 3;
const ROWS: usize = 18;
const MICRO_BATCHES: usize = 4;

/// The first stage of the adapter tests: an embedding from token ids `[rows, length]` to vectors `[rows x length,
/// width]`.
#[derive(Module, Debug)]
struct Front {
    table: Embedding,
}

impl Stage for Front {
    type Input = Tensor<2, Int>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2, Int>) -> Tensor<2> {
        self.table.forward(input).flatten(0, 1)
    }
}

/// A block of the adapter tests, marked for recomputation: a layer norm and two linear layers, with a residual
/// connection.
#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Stage for Block {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        block(self, input, |block, input| {
            let up = |up: &Linear, input: Tensor<2>| up.forward(input).tanh();
            input.clone() + block.down.forward(selective(&block.up, block.norm.forward(input), up))
        })
    }
}

/// The last stage of the adapter tests: a sequence of linear blocks, a linear layer and a loss. The backward recomputes
/// the blocks in segments (groups of consecutive blocks). The loss is half the squared difference to targets `[rows x
/// length, width]`.
#[derive(Module, Debug)]
struct Head {
    blocks: Vec<Linear>,
    linear: Linear,
}

impl Stage for Head {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = sequence(&self.blocks, input, |block, input| block.forward(input).tanh());
        feed_forward(&self.linear, hidden, |linear, hidden| linear.forward(hidden))
    }
}

impl LossStage for Head {
    type Target = Tensor<2>;

    fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        let difference = output.cast(FloatDType::F32) - target;
        (difference.clone() * difference).sum() / 2.0
    }

    fn weight(&self, target: &Tensor<2>) -> Weight {
        (target.dims()[0] as f64).into()
    }
}

/// The whole model of the adapter tests, before it is divided into stages and after its stages are joined.
#[derive(Module, Debug)]
struct Model {
    front: Front,
    blocks: Vec<Block>,
    head: Head,
}

impl Model {
    fn new(quantizable: bool) -> Self {
        let device = device().autodiff();
        seeded(&device, 5, || {
            let linear = || Linear::from(LinearConfig::new(WIDTH, WIDTH).with_bias(!quantizable).init(&device));
            let norm = || LayerNorm::init(&LayerNormConfig::new(WIDTH), &device);
            Self {
                front: Front { table: EmbeddingConfig::new(WORDS, WIDTH).init(&device).into() },
                blocks: (0..2).map(|_| Block { norm: norm(), up: linear(), down: linear() }).collect(),
                head: Head { blocks: (0..3).map(|_| linear()).collect(), linear: linear() },
            }
        })
    }

    fn adapted(self, change: impl FnOnce(Self) -> Self) -> Self {
        seeded(&device().autodiff(), 6, || change(self))
    }

    fn loss(&self, input: Tensor<2, Int>, target: Tensor<2>) -> Tensor<1> {
        let hidden = self.front.forward(input);
        self.head.loss_of(self.blocks.iter().fold(hidden, |hidden, block| block.forward(hidden)), target)
    }

    fn join(mut modules: Modules) -> Self {
        Self {
            front: modules.take(0).unwrap(),
            blocks: vec![modules.take(1).unwrap(), modules.take(2).unwrap()],
            head: modules.take(3).unwrap(),
        }
    }
}

fn batch(step: usize) -> (Tensor<2, Int>, Tensor<2>) {
    let ids = (0..ROWS * LENGTH).map(|at| ((at * 7 + step * 5 + at * at) % WORDS) as i64).collect::<Vec<_>>();
    let values = (0..ROWS * LENGTH * WIDTH).map(|at| ((at * 37 + step * 11) % 101) as f32 / 50.0 - 1.0);
    let values = TensorData::new(values.collect::<Vec<_>>(), [ROWS, LENGTH * WIDTH]);
    let ids = TensorData::new(ids, [ROWS, LENGTH]);
    (Tensor::from_data(ids, &device()), Tensor::from_data(values, &device()))
}

/// A mapper that rounds to a lower precision every parameter of a module that is not quantized.
struct Rounded(FloatDType);

impl ModuleMapper for Rounded {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (value, trained) = (param.val(), param.val().is_require_grad());
        if matches!(value.dtype(), DType::QFloat(_)) {
            return param;
        }
        let value = value.inner().cast(self.0).autodiff();
        Param::initialized(param.id, if trained { value.require_grad() } else { value })
    }
}

/// A visitor that adds the gradients of a module's parameters to running sums in f32.
struct Accumulate<'a> {
    sums: &'a mut GradientsParams,
    gradients: GradientsParams,
}

impl ModuleVisitor for Accumulate<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
        let gradient = gradient.cast(FloatDType::F32);
        let sum = self.sums.remove::<D>(param.id).map_or_else(|| gradient.clone(), |sum| sum + gradient.clone());
        self.sums.register(param.id, sum);
    }
}

/// Trains a model with adapters with gradient accumulation in burn without Stageline, and returns the model. Gradients
/// are summed within groups of micro-batches first, and then over the groups.
fn train_plainly(mut model: Model, precision: Precision, groups: usize) -> Model {
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let micro_batches = groups * MICRO_BATCHES;
    for (input, target) in (0..3).map(batch) {
        let copy = match precision {
            Precision::Full => model.clone(),
            _ => model.clone().map(&mut Rounded(FloatDType::BF16)),
        };
        let mut total = GradientsParams::new();
        let pieces = pieces(ROWS, micro_batches);
        for group in pieces.chunks(MICRO_BATCHES) {
            let mut sums = GradientsParams::new();
            for rows in group {
                let input = input.clone().slice_dim(0, rows.clone()).autodiff();
                let target = target.clone().slice_dim(0, rows.clone()).reshape([-1, WIDTH as i32]);
                let loss = copy.loss(input, target.autodiff()).div_scalar((ROWS * LENGTH) as f64);
                let gradients = GradientsParams::from_grads(loss.backward(), &copy);
                model.visit(&mut Accumulate { sums: &mut sums, gradients });
            }
            model.visit(&mut Accumulate { sums: &mut total, gradients: sums });
        }
        model = optimizer.step(LEARNING_RATE, model, total);
    }
    model
}

/// Trains a model with adapters as a pipeline of four stages with the given schedule, recomputation, precision and
/// number of replicas, and returns the model.
fn train_cut(
    model: Model,
    schedule: &'static (dyn Schedule + Sync),
    recompute: Recompute,
    precision: Precision,
    replicas: usize,
) -> Model {
    let config = || StageConfig::new(device(), AdamWConfig::new().init(), LEARNING_RATE).recompute(recompute);
    let Model { front, blocks, head } = model;
    let [first, second] = <[Block; 2]>::try_from(blocks).unwrap();
    let chain = Pipeline::builder().stage(front, config()).stage(first, config()).stage(second, config());
    let builder = chain.loss(head, config()).micro_batches(MICRO_BATCHES).schedule(schedule).precision(precision);
    let builder = (1..replicas).fold(builder, |builder, _| builder.replica(vec![device(); 4]));
    let mut pipeline = builder.cores_per_stage(1).build().unwrap();
    steps(&mut pipeline, 0..3, replicas);
    Model::join(pipeline.into_modules())
}

fn steps(pipeline: &mut Pipeline<Tensor<2, Int>, Tensor<2>, Tensor<2>>, steps: Range<usize>, replicas: usize) {
    for (input, target) in steps.map(batch) {
        let parts = pieces(ROWS, replicas * MICRO_BATCHES).into_iter().map(|rows| {
            let target = target.clone().slice_dim(0, rows.clone()).reshape([-1, WIDTH as i32]);
            (input.clone().slice_dim(0, rows), target)
        });
        pipeline.step(Batch::from_micro_batches(parts.collect())).unwrap();
    }
}

/// Returns for every parameter of a model its path, whether it is trained, and its values.
fn parameters(model: &Model) -> Vec<(String, bool, TensorData)> {
    #[derive(Default)]
    struct Read(Vec<String>, Vec<(String, bool, TensorData)>);
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            self.1.push((self.0.join("."), value.is_require_grad(), value.inner().into_data()));
        }
    }
    let mut read = Read::default();
    model.visit(&mut read);
    read.1
}

#[track_caller]
fn same_bits(found: &Model, expected: &Model, what: &str) {
    for (found, expected) in parameters(found).into_iter().zip(parameters(expected)) {
        assert_eq!((&found.0, found.1), (&expected.0, expected.1), "{what}");
        assert_eq!(found.2.dtype(), expected.2.dtype(), "{what}: {}", found.0);
        assert!(found.2 == expected.2, "{what}: {} differs", found.0);
    }
}

/// Asserts that a model with adapters trains to the same bits as in a loop without Stageline, under every schedule and
/// recomputation. `combinations` are pairs of a precision and a number of replicas; the first pair must be full
/// precision and 1 replica. Each schedule and recomputation runs with one of these pairs, in turn. Returns the model
/// that the loop trained in full precision.
fn check(model: &Model, what: &str, combinations: &[(Precision, usize)]) -> Model {
    let two = NonZero::new(2).expect("2 is not 0");
    let everything = [
        Recompute::Nothing,
        Recompute::Selective,
        Recompute::FeedForward,
        Recompute::Blocks(1),
        Recompute::EveryNth(two),
        Recompute::Only(BlockSet::new([0]).expect("a small number")),
        Recompute::Segments(two),
        Recompute::SquareRoot,
        Recompute::Full,
    ];
    let train = |&(precision, replicas): &_| train_plainly(model.clone(), precision, replicas);
    let mut expected: Vec<_> = combinations.iter().map(train).collect();
    for (at, schedule) in SCHEDULES.iter().enumerate() {
        for (number, recompute) in everything.into_iter().enumerate() {
            let turn = (at + number) % combinations.len();
            let (precision, replicas) = combinations[turn];
            let found = train_cut(model.clone(), *schedule, recompute, precision, replicas);
            let what = format!("{what}, {}, {recompute:?}, {precision}, {replicas} replicas", schedule.name());
            same_bits(&found, &expected[turn], &what);
        }
    }
    assert_eq!(combinations[0], (Precision::Full, 1));
    expected.swap_remove(0)
}

/// The settings for tests of adapters (LoRA) on weights without quantization: a precision, and a number of
/// data-parallel replicas.
const ALL: [(Precision, usize); 4] =
    [(Precision::Full, 1), (Precision::Bf16, 1), (Precision::Full, 2), (Precision::Bf16, 2)];

/// Asserts that training changed every adapter and no base weight, given the model before and after it.
fn assert_only_adapters_changed(before: &Model, after: &Model) {
    for (before, after) in parameters(before).into_iter().zip(parameters(after)) {
        let (path, trained, before) = before;
        assert_eq!(trained, path.contains(".lora."), "{path}");
        assert_eq!(before == after.2, !trained, "{path}");
    }
}

#[test]
fn adapters_train_to_the_bits_of_a_plain_loop_under_every_schedule() {
    let model = Model::new(false).adapted(|model| model.apply_lora(Lora::new(2, 4.0)));
    let trained = check(&model, "LoRA", &ALL);
    assert_only_adapters_changed(&model, &trained);
    assert_only_adapters_changed(&model, &train_cut(model.clone(), &ZbH1, Recompute::Full, Precision::Bf16, 2));
}

/// Returns a model for fine-tuning tests with adapters (LoRA), some of them on quantized weights.
fn quantized_model() -> Model {
    let device = device().autodiff();
    let quantizer = || {
        let scheme = device.settings().quantization.scheme.with_value(QuantValue::Q8S);
        Quantizer::new(Calibration::MinMax, scheme)
    };
    let adapted = |linear: Linear| linear.apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer()));
    let quantized = |Head { blocks, linear }: Head| Head {
        blocks: blocks.into_iter().map(adapted).collect(),
        linear: adapted(linear),
    };
    let model = Model::new(true).adapted(|model| Model {
        blocks: model
            .blocks
            .into_iter()
            .map(|block| Block {
                norm: block.norm.no_grad(),
                up: block.up.apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer())),
                down: block.down.apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer())),
            })
            .collect(),
        front: model.front.apply_lora(Lora::new(2, 4.0)),
        head: quantized(model.head),
    });
    assert!(matches!(model.head.linear.weight.base().dtype(), DType::QFloat(_)), "the base is quantized");
    model
}

/// Tests that adapters and quantized base weights resume from a checkpoint that was written to files and read back. The
/// resumed pipeline is built with other parameters, which the checkpoint must replace.
#[test]
fn adapters_and_quantized_bases_resume_from_a_checkpoint_to_the_same_bits() {
    let other = |model: Model| model.map(&mut Negated);
    for model in [Model::new(false).adapted(|model| model.apply_lora(Lora::new(2, 4.0))), quantized_model()] {
        let whole = train_cut(model.clone(), &ZbH1, Recompute::Nothing, Precision::Full, 1);
        let builder = |model: Model| {
            let config = || StageConfig::new(device(), AdamWConfig::new().init(), LEARNING_RATE);
            let Model { front, blocks, head } = model;
            let [first, second] = <[Block; 2]>::try_from(blocks).unwrap();
            let chain = Pipeline::builder().stage(front, config()).stage(first, config()).stage(second, config());
            chain.loss(head, config()).micro_batches(MICRO_BATCHES).cores_per_stage(1)
        };
        let mut first = builder(model.clone()).build().unwrap();
        steps(&mut first, 0..2, 1);
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), NonZero::<usize>::MIN).unwrap();
        store.save(&first.checkpoint().unwrap()).unwrap();
        let checkpoint = Saved::open(folder.path()).unwrap().read().unwrap();
        let mut second = builder(other(model.clone())).restore(checkpoint).build().unwrap();
        steps(&mut second, 2..3, 1);
        let resumed = Model::join(second.into_modules());
        same_bits(&resumed, &whole, "resumed");
        assert_only_adapters_changed(&model, &resumed);
    }
}

/// A mapper that changes the sign of every parameter of a module that is not quantized.
struct Negated;

impl ModuleMapper for Negated {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (value, trained) = (param.val(), param.val().is_require_grad());
        if matches!(value.dtype(), DType::QFloat(_)) {
            return param;
        }
        let value = (-value.inner()).autodiff();
        Param::initialized(param.id, if trained { value.require_grad() } else { value })
    }
}

#[test]
fn adapters_on_quantized_weights_train_to_the_bits_of_a_plain_loop() {
    let model = quantized_model();
    let trained = check(&model, "QLoRA", &ALL);
    assert_only_adapters_changed(&model, &trained);
}

/// A reparameterisation for tests of fine-tuning, which multiplies a parameter by a trained factor.
#[derive(Debug, Module)]
struct Scaled {
    factor: Param<Tensor<1>>,
}

impl Reparameterization for Scaled {
    const NAME: &'static str = "scaled";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base * self.factor.val().reshape([1; D])
    }
}

/// A reparameterizer for tests of fine-tuning, which multiplies some parameters of a model by a trained factor. The
/// value is the rank of these parameters: 1 for vectors, 2 for matrices.
struct Scale(usize);

impl Reparameterizer for Scale {
    type Reparam = Scaled;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Scaled>) {
        let factor = Param::from_tensor(Tensor::<1>::ones([1], &param.val().device()) * 1.5);
        (param, (D == self.0).then_some(Scaled { factor }))
    }
}

/// Tests reparameterisations that multiply every vector, or every matrix, of a model by a trained factor. The base
/// parameters train as well. A pipeline trains to the same bits as a loop without Stageline.
#[test]
fn any_reparameterisation_trains_to_the_bits_of_a_plain_loop() {
    for dimensions in [1, 2] {
        let model = Model::new(false).adapted(|model| model.apply_reparameterization(Scale(dimensions)));
        let trained = check(&model, "scaled", &[(Precision::Full, 1)]);
        let changed = parameters(&model).into_iter().zip(parameters(&trained)).all(|(before, after)| before != after);
        assert!(changed, "every base and every factor of the {dimensions}-dimensional ones is trained");
    }
}

/// Tests that a frozen parameter gets no gradient and keeps its bits, while the other parameters of its layer train.
#[test]
fn frozen_weights_keep_their_bits_and_the_rest_trains() {
    let mut model = Model::new(false);
    model.front.table.weight = model.front.table.weight.no_grad();
    model.blocks[0].up.weight = model.blocks[0].up.weight.clone().no_grad();
    model.blocks[1].norm.gamma = model.blocks[1].norm.gamma.clone().no_grad();
    model.head.linear.bias = model.head.linear.bias.map(Param::no_grad);
    let trained = check(&model, "frozen", &[(Precision::Full, 1)]);
    for (before, after) in parameters(&model).into_iter().zip(parameters(&trained)) {
        assert_eq!(before.2 != after.2, before.1, "{}", before.0);
    }
    let cut = train_cut(model, &OneFOneB, Recompute::Nothing, Precision::Full, 1);
    same_bits(&cut, &trained, "1f1b");
}

/// A reparameterisation for tests of fine-tuning, which replaces a parameter by a trained matrix.
#[derive(Debug, Module)]
struct Replaced {
    matrix: Param<Tensor<2>>,
}

impl Reparameterization for Replaced {
    const NAME: &'static str = "replaced";

    fn apply<const D: usize>(&self, _: Tensor<D>) -> Tensor<D> {
        let matrix: Box<dyn Any> = Box::new(self.matrix.val());
        *matrix.downcast().expect("only matrices are replaced")
    }
}

/// A reparameterizer for tests of fine-tuning. It replaces every matrix of a model by a trained matrix.
struct Replace;

impl Reparameterizer for Replace {
    type Reparam = Replaced;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Replaced>) {
        let value: Box<dyn Any> = Box::new(param.val().inner().autodiff());
        let matrix = value.downcast::<Tensor<2>>().ok();
        (param, matrix.map(|matrix| Replaced { matrix: Param::from_tensor(*matrix * 0.5) }))
    }
}

/// Tests a reparameterisation that replaces a parameter by a trained tensor. The tensor trains, and the parameter keeps
/// its bits. Both are leaves of the autodiff graph, but their gradients must not be confused.
#[test]
fn a_tensor_in_the_place_of_a_parameter_trains_instead_of_it() {
    let model = Model::new(false).adapted(|model| model.apply_reparameterization(Replace));
    let trained = check(&model, "replaced", &[(Precision::Full, 1), (Precision::Bf16, 1)]);
    let changes = parameters(&model).into_iter().zip(parameters(&trained));
    let changed: Vec<_> = changes.filter(|(before, after)| before.2 != after.2).map(|(before, _)| before.0).collect();
    let replaced = changed.iter().filter(|path| path.ends_with(".matrix")).count();
    assert_eq!(replaced, 1 + 2 * 2 + 4, "{changed:?}");
    assert!(changed.iter().all(|path| path.ends_with(".matrix") || !path.ends_with(".weight")), "{changed:?}");
}
