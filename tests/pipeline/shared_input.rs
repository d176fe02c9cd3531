//! Tests of inputs that several stages read: every stage gets its micro-batch's part directly from the batch.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Bool, Device, FloatDType, Tensor, TensorData};
use stageline::schedule::{OneFOneB, Schedule, ZbV};
use stageline::{Batch, LossStage, Pipeline, Precision, Row, SharedInput, Stage, StageConfig, Weight};
use stageline_train::fingerprint;

const WIDTH: usize = 6;
const ROWS: usize = 8;
const MICRO_BATCHES: usize = 4;
const BLOCKS: usize = 4;

/// The input that all layers of the shared-input tests read: a factor for each column of a sample, and a flag that says
/// whether the sample counts.
type Given = SharedInput<(Tensor<2>, Tensor<2, Bool>)>;

/// A stage for tests of shared inputs: a linear layer whose output is multiplied by the factors of each sample, and is
/// 0 for samples that do not count.
#[derive(Module, Debug)]
struct Scaled {
    linear: Linear,
}

impl Scaled {
    fn new(device: &Device) -> Self {
        Self { linear: LinearConfig::new(WIDTH, WIDTH).init(device) }
    }
}

impl Stage for Scaled {
    type Input = (Tensor<2>, Given);
    type Output = (Tensor<2>, Given);

    fn forward(&self, (states, given): Self::Input) -> Self::Output {
        let (factors, counts) = given.get();
        let states = self.linear.forward(states).tanh() * factors;
        (states.mask_fill(counts.bool_not().expand([-1, WIDTH as i64]), 0.0), given)
    }
}

impl LossStage for Scaled {
    type Target = Tensor<2>;

    fn loss(&self, (states, _): Self::Output, target: Tensor<2>) -> Tensor<1> {
        (states.cast(FloatDType::F32) - target).square().sum()
    }

    fn weight(&self, target: &Tensor<2>) -> Weight {
        target.dims()[0].into()
    }
}

fn row() -> Row<Scaled, Scaled, Scaled> {
    Row::new(Scaled::new, BLOCKS, |_, device| Scaled::new(device), Scaled::new).seed(3)
}

fn numbers(salt: usize) -> Tensor<2> {
    let numbers: Vec<_> = (0..ROWS * WIDTH).map(|at| ((at * salt % 101) as f32).sin()).collect();
    Tensor::from_data(TensorData::new(numbers, [ROWS, WIDTH]), &Device::flex())
}

fn given() -> (Tensor<2>, Tensor<2, Bool>) {
    (numbers(13), numbers(7).sum_dim(1).greater_elem(-0.5))
}

fn batch() -> Batch<(Tensor<2>, Given), Tensor<2>> {
    Batch::new((numbers(29), SharedInput::new(given())), numbers(31))
}

fn pipeline(
    cut: &str,
    schedule: impl Schedule + 'static,
    precision: Precision,
) -> Pipeline<(Tensor<2>, Given), (Tensor<2>, Given), Tensor<2>> {
    let cut: stageline::Cut = cut.parse().unwrap();
    let config = || StageConfig::new(Device::flex(), SgdConfig::new().init(), 0.1);
    let builder = row().pipeline(&cut, (0..cut.stages()).map(|_| config())).unwrap();
    let builder = builder.micro_batches(MICRO_BATCHES).schedule(schedule).precision(precision);
    builder.cores_per_stage(1).build().unwrap()
}

fn trained(cut: &str, schedule: impl Schedule + 'static, precision: Precision) -> String {
    let mut pipeline = pipeline(cut, schedule, precision);
    (0..2).for_each(|_| drop(pipeline.step(batch()).unwrap()));
    fingerprint(&row().join(pipeline.into_modules()).unwrap()).0
}

/// Trains the model of the shared-input tests in a loop without Stageline, and returns the hash of the parameters. The
/// loop itself divides the shared input into micro-batches.
fn plain_loop() -> String {
    let mut model = row().init(&Device::flex());
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for _ in 0..2 {
        let mut sum = GradientsAccumulator::new();
        for micro_batch in 0..MICRO_BATCHES {
            let size = ROWS / MICRO_BATCHES;
            let rows = micro_batch * size..(micro_batch + 1) * size;
            let part = |tensor: Tensor<2>| tensor.slice_dim(0, rows.clone()).autodiff();
            let (factors, counts) = given();
            let given = SharedInput::new((part(factors), counts.slice_dim(0, rows.clone()).autodiff()));
            let loss = model.loss_of((part(numbers(29)), given), part(numbers(31))) / ROWS as f64;
            sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        model = optimizer.step(0.1, model, sum.grads());
    }
    fingerprint(&model).0
}

#[test]
fn every_cut_and_schedule_gives_the_bits_of_a_plain_loop() {
    let expected = plain_loop();
    for cut in ["0", "0,2", "0,1,3", "0,1,2,3,4,5"] {
        assert_eq!(trained(cut, OneFOneB, Precision::Full), expected, "{cut}");
    }
    assert_eq!(trained("0,2,3,5", ZbV, Precision::Full), expected);
}

#[test]
fn half_precision_gives_the_same_bits_for_every_cut() {
    let expected = trained("0", OneFOneB, Precision::Bf16);
    for cut in ["0,2", "0,1,3"] {
        assert_eq!(trained(cut, OneFOneB, Precision::Bf16), expected, "{cut}");
    }
}

/// Tests that shared inputs, which all stages read, are not sent with activations. An activation of 2 rows has 48
/// bytes, and the shared inputs (factors and flags) of these rows would add 50 bytes.
#[test]
fn shared_inputs_do_not_travel_with_activations() {
    let mut pipeline = pipeline("0,2,4", OneFOneB, Precision::Full);
    let report = pipeline.step(batch()).unwrap();
    let bytes: Vec<u64> = report.recording.events().iter().flatten().map(|event| event.sent).collect();
    assert!(bytes.iter().all(|bytes| [0, 48].contains(bytes)) && bytes.contains(&48), "{bytes:?}");
}

#[test]
fn an_inference_returns_the_shared_input_of_the_whole_batch() {
    let mut pipeline = pipeline("0,1,3", OneFOneB, Precision::Full);
    let (states, returned) = pipeline.infer((numbers(29), SharedInput::new(given()))).unwrap();
    let (factors, counts) = returned.get();
    assert_eq!(states.dims(), [ROWS, WIDTH]);
    assert_eq!(factors.into_data(), given().0.into_data());
    assert_eq!(counts.into_data(), given().1.into_data());
    // The outputs can be the inputs of another inference, which cuts them into micro-batches again.
    let (_, again) = pipeline.infer((states, returned)).unwrap();
    assert_eq!(again.get().0.into_data(), given().0.into_data());
}
