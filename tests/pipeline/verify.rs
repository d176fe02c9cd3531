//! Tests of verification (the comparison of a training with one full batch on one device): every well-known fault of
//! gradient accumulation is planted in a model or a training loop, and the verification must name it.

use burn::module::Module;
use burn::nn::BatchNormConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Tensor, TensorData};
use stageline::nn::Linear;
use stageline::schedule::{GPipe, Interleaved, OneFOneB};
use stageline::verify::{Bars, Cause, ClipScope, Trial, VerifyError, Whose};
use stageline::{
    AccumulatedBatchNorm, Batch, BoxError, Clip, Dropout, DynamicLossScale, LossScale, LossStage, LossTerm,
    ParameterGradient, Pipeline, PipelineBuilder, Precision, Samples, Stage, StageConfig, StepError, Verification,
    Verify, Weight,
};

use crate::mlp::{Error, Layer, Mlp, Target, config, device};
use crate::parity::Dropped;

pub const WIDTH: usize = 6;
pub const ROWS: usize = 12;
pub const MICRO_BATCHES: usize = 4;
const MAX_NORM: f64 = 0.05;
const STEPS: usize = 8;

pub type MlpBatch = Batch<Tensor<2>, Target>;
pub type MlpBuilder = PipelineBuilder<Tensor<2>, Tensor<2>, Target>;
type Make = Box<dyn Fn() -> MlpBuilder>;

pub fn batch(step: usize) -> MlpBatch {
    // The masks leave 1 to 3 counted rows in each micro-batch.
    let (input, target) = Mlp::batch(ROWS, WIDTH, true, 300 + step as u64);
    Batch::new(input, target)
}

pub fn held_out() -> [MlpBatch; 2] {
    [batch(1000), batch(1001)]
}

pub fn model() -> Mlp {
    Mlp::new(2, WIDTH, 8)
}

fn build() -> MlpBuilder {
    model().split(3, &config()).micro_batches(MICRO_BATCHES).clip(Clip::GlobalNorm(MAX_NORM))
}

fn verified(build: impl Fn() -> MlpBuilder) -> Verification {
    Verify::new().steps(STEPS).pipeline(build, batch, &held_out()).unwrap()
}

#[test]
fn sound_trainings_pass_verification() {
    let interleaved = || Mlp::new(3, WIDTH, 8).split(4, &config()).schedule(Interleaved { chunks: 2 });
    let builders: [(&str, Make); 6] = [
        ("1F1B", Box::new(build)),
        ("GPipe", Box::new(|| build().schedule(GPipe).channel_capacity(1))),
        ("interleaved", Box::new(move || interleaved().micro_batches(6).clip(Clip::Value(0.01)))),
        ("M = 1", Box::new(|| model().split(2, &config()))),
        ("M = 12", Box::new(|| model().split(2, &config()).micro_batches(ROWS).schedule(OneFOneB))),
        ("bf16", Box::new(|| build().precision(Precision::Bf16))),
    ];
    for (name, build) in builders {
        let verification = verified(build);
        assert!(verification.passes(), "{name}: {verification}");
        assert_eq!(verification.losses.len(), STEPS);
        let (worst, bars) = (verification.worst().unwrap().relative, verification.bars);
        assert!(worst <= bars.gradient && verification.validation.unwrap().difference() <= bars.loss, "{name}");
        assert!(verification.to_string().ends_with("they train the same\n"), "{verification}");
    }
}

#[test]
fn a_model_with_dropout_passes_verification() {
    let build = || {
        let Mlp { layers, error } = model();
        let dropped = layers.into_iter().zip(0..);
        let dropped =
            dropped.map(|(layer, at)| Dropped { layer, dropout: Dropout::new(0.4, 5, at) }).collect::<Vec<_>>();
        Pipeline::builder().stage(dropped, config()).loss(error, config()).micro_batches(MICRO_BATCHES)
    };
    let verification = verified(build);
    assert!(verification.passes(), "{verification}");
}

/// A deliberate fault in the loss function of a test's model, which a verification must diagnose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A deliberate fault of a test: the loss function returns a mean, and every micro-batch has the loss weight 1.
    MeanThatWeighsOne,
    /// A deliberate fault of a test: the loss function returns a mean, which the pipeline divides by the loss weight
    /// once more.
    MeanThatIsDivided,
    /// A deliberate fault of a test: the loss function returns a sum, and every micro-batch has the loss weight 1
    /// instead of its number of targets.
    SumThatWeighsOne,
    /// A deliberate fault of a test: the loss of a row depends on the other rows of its micro-batch.
    Coupled,
}

/// A last stage for tests of verification. Its loss function has the deliberate fault at the index `FAULT` of the list
/// [`FAULTS`].
#[derive(Module, Debug)]
struct Faulty<const FAULT: usize> {
    error: Error,
}

const FAULTS: [Fault; 4] =
    [Fault::MeanThatWeighsOne, Fault::MeanThatIsDivided, Fault::SumThatWeighsOne, Fault::Coupled];

impl<const FAULT: usize> Stage for Faulty<FAULT> {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.error.forward(match FAULTS[FAULT] {
            Fault::Coupled => input.clone() - input.mean_dim(0),
            _ => input,
        })
    }
}

impl<const FAULT: usize> LossStage for Faulty<FAULT> {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, (wanted, mask): Target) -> Tensor<1> {
        let sum = self.error.loss(output, (wanted, mask.clone()));
        match FAULTS[FAULT] {
            Fault::MeanThatWeighsOne | Fault::MeanThatIsDivided => sum / mask.sum(),
            Fault::SumThatWeighsOne | Fault::Coupled => sum,
        }
    }

    fn weight(&self, target: &Target) -> Weight {
        match FAULTS[FAULT] {
            Fault::MeanThatWeighsOne | Fault::SumThatWeighsOne => 1.0.into(),
            Fault::MeanThatIsDivided | Fault::Coupled => self.error.weight(target),
        }
    }
}

fn with_loss(loss: impl LossStage<Input = Tensor<2>, Output = Tensor<2>, Target = Target>) -> MlpBuilder {
    let chain = Pipeline::builder().stage(model().layers, config());
    chain.loss(loss, config()).micro_batches(MICRO_BATCHES)
}

/// A stage for tests of verification with a deliberate fault. In the last micro-batch it detaches its output from the
/// autodiff graph. This stage and the stages before it then get no gradients of that micro-batch.
#[derive(Module, Debug)]
struct Drops {
    layer: Layer,
}

impl Stage for Drops {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let output = self.layer.forward(input);
        match Samples::current() {
            Some(samples) if samples.first + samples.count == ROWS && samples.count < ROWS => output.detach(),
            _ => output,
        }
    }
}

/// A stage for tests: a layer with a batch norm, either an `AccumulatedBatchNorm` or burn's own.
#[derive(Module, Debug)]
struct Normed<N: Module> {
    layer: Layer,
    norm: N,
}

impl Stage for Normed<AccumulatedBatchNorm> {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.layer.forward(input))
    }
}

impl Stage for Normed<burn::nn::BatchNorm> {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.layer.forward(input))
    }
}

/// Returns the builder of a pipeline with three stages for tests of verification, of which `middle` is the second.
fn with_middle(middle: impl Stage<Input = Tensor<2>, Output = Tensor<2>>) -> MlpBuilder {
    let Mlp { mut layers, error } = model();
    layers.truncate(1);
    let chain = Pipeline::builder().stage(layers, config()).stage(middle, config());
    chain.loss(error, config()).micro_batches(MICRO_BATCHES)
}

#[test]
fn faults_of_a_model_are_diagnosed_by_name() {
    fn faulty<const FAULT: usize>() -> MlpBuilder {
        with_loss(Faulty::<FAULT> { error: model().error })
    }
    let second = || model().layers.remove(1);
    let norm = || BatchNormConfig::new(WIDTH).init(&device().autodiff());
    let batch_norm = |path: &str| Cause::BatchNorm { stage: 1, path: path.to_owned() };
    let table: [(&str, Make, Cause); 7] = [
        ("mean of means", Box::new(faulty::<0>), Cause::MeanOfMeans(Whose::Loss)),
        ("mean of means, divided", Box::new(faulty::<1>), Cause::MeanOfMeans(Whose::Loss)),
        ("missed division", Box::new(faulty::<2>), Cause::MissedDivision { factor: 1.0 / MICRO_BATCHES as f64 }),
        ("coupled samples", Box::new(faulty::<3>), Cause::CoupledSamples),
        ("batch norm", Box::new(move || with_middle(Normed { layer: second(), norm: norm() })), batch_norm("norm")),
        (
            "accumulated batch norm",
            Box::new(move || with_middle(Normed { layer: second(), norm: AccumulatedBatchNorm::from(norm()) })),
            batch_norm("norm.norm"),
        ),
        (
            "last micro-batch dropped",
            Box::new(move || with_middle(Drops { layer: second() })),
            Cause::MissingMicroBatch { stage: 1, micro_batch: MICRO_BATCHES - 1 },
        ),
    ];
    for (name, build, cause) in table {
        for clip in [None, Some(Clip::GlobalNorm(MAX_NORM))] {
            let verification = verified(|| if let Some(clip) = clip { build().clip(clip) } else { build() });
            assert_eq!(verification.cause, Some(cause.clone()), "{name}, {clip:?}: {verification}");
            assert!(verification.to_string().contains(&format!("do NOT train the same: {cause}")), "{verification}");
        }
    }
}

/// A deliberate mistake in the training loop of a test, which a verification must diagnose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slip {
    Nothing,
    MeanOfMeans,
    NoDivision,
    DividedByM,
    /// A deliberate mistake in a test's training loop: it clips the gradient of each micro-batch by itself, after a
    /// division by the loss weight of the whole batch.
    ClipEach,
    /// A deliberate mistake in a test's training loop: it clips the running sum of the gradients after every
    /// micro-batch, instead of the whole sum once at the end.
    ClipRunning,
    /// A deliberate mistake in a test's training loop: it clips the mean gradient of each micro-batch, and averages the
    /// clipped gradients.
    ClipMeans,
    /// A deliberate mistake in a test's training loop: it clips the running mean of the gradients after every
    /// micro-batch.
    ClipRunningMeans,
    /// A deliberate mistake in a test's training loop: it adds up the mean gradients of the micro-batches, and does not
    /// divide the sum by the number of micro-batches.
    SumOfMeans,
    ClipEachLayer,
    ClipEachParameter,
    NoClip,
    /// A deliberate mistake in a test's training loop: it leaves out the gradients of the last micro-batch in the first
    /// and second layer.
    DropsLast,
    /// A deliberate mistake in a test's training loop: it leaves out the gradients of the second micro-batch in the
    /// last layer.
    DropsSecond,
    /// A deliberate mistake in a test's training loop: it advances the learning rate schedule with every micro-batch,
    /// instead of once a step.
    HastySchedule,
    /// A deliberate mistake in a test's training loop: it flips the sign of one parameter's gradient.
    Sign,
}

/// A training loop for tests of verification, as a user may write it without Stageline. Its gradient accumulation has
/// at most one deliberate mistake.
struct Loop {
    model: Mlp,
    optimizer: ModuleOptimizer,
    rate: f64,
    slip: Slip,
}

/// The gradients of all parameters of a model: the weight and the bias of each layer in turn, as numbers.
type All = Vec<Vec<f32>>;

fn linears(model: &Mlp) -> Vec<&Linear> {
    model.layers.iter().map(|layer| &layer.linear).chain([&model.error.linear]).collect()
}

/// Clips the gradients of all parameters to the largest allowed global norm, `MAX_NORM`.
fn clip(gradients: &mut [Vec<f32>]) {
    let squares = gradients.iter().flatten().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let factor = (MAX_NORM / (squares.sqrt() + 1e-6)).min(1.0) as f32;
    gradients.iter_mut().flatten().for_each(|value| *value *= factor);
}

/// Adds `factor` times the gradients `part` of a model to the gradients `sum`.
fn add(sum: &mut All, part: &All, factor: f64) {
    for (sum, part) in sum.iter_mut().flatten().zip(part.iter().flatten()) {
        *sum += (f64::from(*part) * factor) as f32;
    }
}

impl Loop {
    fn new(slip: Slip) -> Self {
        Self { model: model(), optimizer: SgdConfig::new().init(), rate: 0.5, slip }
    }

    /// Returns the loss sum of a micro-batch, the gradients of this sum, and the loss weight of the micro-batch.
    fn part(&self, input: Tensor<2>, (wanted, mask): Target) -> (f64, All, f64) {
        let weight = mask.clone().sum().into_scalar::<f64>();
        let hidden = self.model.layers.iter().fold(input.autodiff(), |hidden, layer| layer.forward(hidden));
        let loss = self.model.error.loss_of(hidden, (wanted.autodiff(), mask.autodiff()));
        let sum = loss.clone().into_scalar::<f64>();
        let mut gradients = loss.backward();
        let mut all = All::new();
        for linear in linears(&self.model) {
            all.push(linear.weight.grad_remove(&mut gradients).unwrap().into_data().iter::<f32>().collect());
            let bias = linear.bias.as_ref().unwrap();
            all.push(bias.grad_remove(&mut gradients).unwrap().into_data().iter::<f32>().collect());
        }
        (sum, all, weight)
    }

    /// Computes the gradients of a batch as the tested training loop does, with its deliberate mistake. Returns the
    /// loss of the batch, the summed gradients, and the gradients that the optimizer gets.
    fn accumulate(&self, batch: MlpBatch) -> Result<(f64, All, All), BoxError> {
        let pieces = batch.into_micro_batches(MICRO_BATCHES)?;
        let parts: Vec<_> = pieces.into_iter().map(|(input, target)| self.part(input, target)).collect();
        let total: f64 = parts.iter().map(|(_, _, weight)| weight).sum();
        let loss = parts.iter().map(|(loss, _, _)| loss).sum::<f64>() / total;
        let mut sum: All = parts[0].1.iter().map(|values| vec![0.0; values.len()]).collect();
        for (micro_batch, (_, part, weight)) in parts.iter().enumerate() {
            let factor = match self.slip {
                Slip::MeanOfMeans | Slip::ClipMeans | Slip::ClipRunningMeans => 1.0 / weight / MICRO_BATCHES as f64,
                Slip::SumOfMeans => 1.0 / weight,
                Slip::NoDivision => 1.0,
                Slip::DividedByM => 1.0 / total / MICRO_BATCHES as f64,
                _ => 1.0 / total,
            };
            let mut part = part.clone();
            match self.slip {
                Slip::DropsLast if micro_batch == MICRO_BATCHES - 1 => {
                    part[..4].iter_mut().flatten().for_each(|value| *value = 0.0)
                }
                Slip::DropsSecond if micro_batch == 1 => part[4..].iter_mut().flatten().for_each(|value| *value = 0.0),
                Slip::Sign => part[2].iter_mut().for_each(|value| *value = -*value),
                _ => {}
            }
            let mut scaled: All = part.iter().map(|values| vec![0.0; values.len()]).collect();
            match self.slip {
                Slip::ClipEach => {
                    add(&mut scaled, &part, factor);
                    clip(&mut scaled);
                }
                Slip::ClipMeans => {
                    add(&mut scaled, &part, 1.0 / weight);
                    clip(&mut scaled);
                    scaled.iter_mut().flatten().for_each(|value| *value /= MICRO_BATCHES as f32);
                }
                _ => add(&mut scaled, &part, factor),
            }
            add(&mut sum, &scaled, 1.0);
            if matches!(self.slip, Slip::ClipRunning | Slip::ClipRunningMeans) {
                clip(&mut sum);
            }
        }
        let mut applied = sum.clone();
        match self.slip {
            Slip::NoClip => {}
            Slip::ClipEachParameter => applied.chunks_mut(1).for_each(clip),
            Slip::ClipEachLayer => applied.chunks_mut(2).for_each(clip),
            _ => clip(&mut applied),
        }
        Ok((loss, sum, applied))
    }
}

impl Trial<Tensor<2>, Target> for Loop {
    fn gradients(&mut self, batch: MlpBatch) -> Result<Vec<ParameterGradient>, BoxError> {
        let (_, summed, applied) = self.accumulate(batch)?;
        let both = summed.into_iter().zip(applied).enumerate();
        Ok(both
            .map(|(at, (summed, applied))| ParameterGradient::new(at / 2, format!("{at}"), summed, applied))
            .collect())
    }

    fn step(&mut self, batch: MlpBatch) -> Result<f64, BoxError> {
        let (loss, _, applied) = self.accumulate(batch)?;
        let mut gradients = GradientsParams::new();
        for (linear, values) in linears(&self.model).into_iter().zip(applied.chunks(2)) {
            let bias = linear.bias.as_ref().unwrap();
            let weight = TensorData::new(values[0].clone(), linear.weight.dims());
            gradients.register(linear.weight.id, Tensor::<2>::from_data(weight, &device()));
            gradients.register(bias.id, Tensor::<1>::from_data(values[1].as_slice(), &device()));
        }
        self.model = self.optimizer.step(self.rate, self.model.clone(), gradients);
        if self.slip == Slip::HastySchedule {
            self.rate *= 0.9_f64.powi(MICRO_BATCHES as i32);
        }
        Ok(loss)
    }

    fn evaluate(&mut self, batch: MlpBatch) -> Result<Vec<LossTerm>, BoxError> {
        let [(input, target)] = <[_; 1]>::try_from(batch.into_micro_batches(1)?).map_err(|_| "one piece")?;
        let (loss, _, weight) = self.part(input, target);
        Ok(vec![LossTerm { loss: loss / weight, weight }])
    }
}

/// Returns the builder of the pipeline that a verification compares with a user's training loop. The pipeline has the
/// same model, optimizer and clipping as the loop, and one layer on each stage.
fn like_the_loop() -> MlpBuilder {
    let stage = StageConfig::new(device(), SgdConfig::new().init(), 0.5);
    model().split(3, &stage).micro_batches(MICRO_BATCHES).clip(Clip::GlobalNorm(MAX_NORM))
}

#[test]
fn mistakes_of_a_training_loop_are_diagnosed_by_name() {
    let by_micro_batch = || Cause::ClippedApart(ClipScope::MicroBatch);
    let last = MICRO_BATCHES - 1;
    let table = [
        (Slip::MeanOfMeans, Cause::MeanOfMeans(Whose::Training)),
        (Slip::ClipEach, by_micro_batch()),
        (Slip::ClipRunning, by_micro_batch()),
        (Slip::ClipMeans, by_micro_batch()),
        (Slip::ClipRunningMeans, by_micro_batch()),
        (Slip::ClipEachLayer, Cause::ClippedApart(ClipScope::Stage)),
        (Slip::ClipEachParameter, Cause::ClippedApart(ClipScope::Parameter)),
        (Slip::NoClip, Cause::NotClipped),
        (Slip::DropsLast, Cause::MissingMicroBatch { stage: 1, micro_batch: last }),
        (Slip::DropsSecond, Cause::MissingMicroBatch { stage: 2, micro_batch: 1 }),
        // The second update is the first one with a wrong rate, and the third loss is the first that shows it.
        (Slip::HastySchedule, Cause::AfterTheGradients { step: Some(2) }),
        (Slip::Sign, Cause::Unknown { stage: 1, path: "0.linear.weight".to_owned() }),
    ];
    for (slip, cause) in table {
        let verification =
            Verify::new().steps(STEPS).trial(Loop::new(slip), like_the_loop, batch, &held_out()).unwrap();
        assert_eq!(verification.cause, Some(cause), "{slip:?}: {verification}");
    }
    let sound = Verify::new().steps(STEPS).trial(Loop::new(Slip::Nothing), like_the_loop, batch, &held_out()).unwrap();
    assert!(sound.passes(), "{sound}");

    let total: f64 =
        batch(0).into_micro_batches(1).unwrap().iter().map(|(_, target)| model().error.weight(target).terms()[0]).sum();
    let m = MICRO_BATCHES as f64;
    for (slip, expected) in [(Slip::NoDivision, total), (Slip::DividedByM, 1.0 / m), (Slip::SumOfMeans, m)] {
        let verification = Verify::new().steps(2).trial(Loop::new(slip), like_the_loop, batch, &held_out()).unwrap();
        let Some(Cause::MissedDivision { factor }) = verification.cause else { panic!("{slip:?}: {verification}") };
        // A sum of means is not quite M times too large where masks are uneven.
        let close = if slip == Slip::SumOfMeans { 1e-3 } else { 1e-4 };
        assert!((factor / expected - 1.0).abs() < close, "{slip:?}: {factor} against {expected}");
    }
}

#[test]
fn a_model_without_a_fixed_seed_is_diagnosed() {
    let seed = std::sync::atomic::AtomicU64::new(0);
    let build = || {
        let seed = seed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Mlp::new(2, WIDTH, seed).split(2, &config()).micro_batches(MICRO_BATCHES)
    };
    assert_eq!(verified(build).cause, Some(Cause::NotSeeded));
}

#[test]
fn rounding_is_distinguished_from_faults() {
    let strict = Verify::new().steps(2).bars(Bars::of(Precision::Full));
    let build = || build().precision(Precision::Bf16);
    let verification = strict.pipeline(build, batch, &held_out()).unwrap();
    assert_eq!(verification.cause, Some(Cause::Rounding), "{verification}");
}

/// Tests a verification whose reference training divides each batch into micro-batches, because a full batch may not
/// fit into memory. A correct training passes, with and without validation batches.
#[test]
fn the_reference_may_use_several_micro_batches() {
    let verify = Verify::new().steps(2).reference_micro_batches(2);
    assert!(verify.pipeline(build, batch, &held_out()).unwrap().passes());
    let without_validation = verify.pipeline(build, batch, &[]).unwrap();
    assert!(without_validation.passes() && without_validation.validation.is_none());
    let drops = || with_middle(Drops { layer: model().layers.remove(1) });
    let verification = Verify::new().steps(2).pipeline(drops, batch, &held_out()).unwrap();
    assert!(matches!(verification.cause, Some(Cause::MissingMicroBatch { .. })), "{verification}");
}

#[test]
fn a_step_that_fails_is_an_error_of_the_verification() {
    let small = |_| {
        Batch::new(Tensor::ones([2, WIDTH], &device()), {
            let ones = |width| Tensor::<2>::ones([2, width], &device());
            (ones(WIDTH), ones(1))
        })
    };
    let error = Verify::new().pipeline(build, small, &[]).unwrap_err();
    assert!(matches!(error, VerifyError::Trial(_)) && error.to_string().contains("2 rows"), "{error}");
    let bad = |step| {
        let (input, (wanted, mask)) = Mlp::batch(ROWS, WIDTH, true, step as u64);
        Batch::new(input * f32::NAN, (wanted, mask))
    };
    let error = Verify::new().pipeline(build, bad, &[]).unwrap_err();
    assert!(error.to_string().contains("the input of micro-batch 0"), "{error}");
}

/// Tests that `Pipeline::gradients` returns the gradients of the next training step, and changes neither parameters nor
/// the count of steps.
#[test]
fn gradients_are_those_of_a_step_and_reading_them_changes_nothing() {
    let stage = StageConfig::new(device(), SgdConfig::new().init(), 1.0);
    let mut pipeline =
        model().split(2, &stage).micro_batches(MICRO_BATCHES).clip(Clip::GlobalNorm(MAX_NORM)).build().unwrap();
    let gradients = pipeline.gradients(batch(0)).unwrap();
    assert_eq!(pipeline.gradients(batch(0)).unwrap(), gradients);
    assert_eq!(pipeline.step(batch(0)).unwrap().step, 0);
    let stepped = Mlp::join(pipeline.into_modules());
    let (before, after) = (model().bits(), stepped.bits());
    let applied = gradients.iter().flat_map(|gradient| &gradient.applied);
    for ((before, after), applied) in before.into_iter().zip(after).zip(applied) {
        assert_eq!((f32::from_bits(before) - applied).to_bits(), after);
    }
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    let summed = norm(&mut gradients.iter().flat_map(|gradient| gradient.summed.iter().copied()));
    let applied = norm(&mut gradients.iter().flat_map(|gradient| gradient.applied.iter().copied()));
    assert!(summed > 2.0 * MAX_NORM && (applied - MAX_NORM).abs() < 1e-6, "{summed} to {applied}");

    let masked = Mlp::batch(ROWS, WIDTH, true, 1);
    let masked = Batch::new(masked.0, (masked.1.0, masked.1.1 * 0.0));
    let mut pipeline = model().split(2, &stage).micro_batches(2).build().unwrap();
    assert!(matches!(pipeline.gradients(masked), Err(StepError::Batch(_))));
}

/// Tests that `Pipeline::gradients` reports gradients that are divided by the loss scale. Reporting them does not
/// change the loss scale.
#[test]
fn gradients_in_f16_are_reported_without_the_loss_scale() {
    let shown = |precision| {
        let builder = model().split(2, &config()).micro_batches(MICRO_BATCHES).precision(precision);
        let initial = if precision == Precision::F16 { 2.0_f64.powi(24) } else { 1.0 };
        let scale = DynamicLossScale { initial, ..DynamicLossScale::default() };
        let mut pipeline = builder.loss_scale(LossScale::Dynamic(scale)).build().unwrap();
        let gradients = pipeline.gradients(batch(0)).unwrap();
        assert_eq!(pipeline.step(batch(0)).unwrap().loss_scale, initial);
        gradients
    };
    let (full, half) = (shown(Precision::Full), shown(Precision::F16));
    for (full, half) in full.iter().zip(&half) {
        let difference = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| (a - b).abs()).inspect(|apart| assert!(apart.is_finite())).fold(0.0, f32::max)
        };
        assert!(difference(&full.summed, &half.summed) < 1e-2, "{}", full.path);
    }
}
