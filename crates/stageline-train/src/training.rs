//! One training ([`Run`]): from the settings, a model and its data to the trained pipeline ([`Trained`]).

use std::collections::BTreeMap;
use std::num::NonZero;

use anyhow::{Context, Result, bail, ensure};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use serde_json::{Value, json};
use stageline::checkpoint::{Checkpoint, Saved};
use stageline::remote::{LinkSpeed, link_speeds};
use stageline::{
    Batch, Costs, LossTerm, MemoryEstimate, Payload, Pipeline, PipelineBuilder, StageConfig, StepError, StepReport,
    Verify,
};
use stageline_report::record::{Link, Run as RunLine, Validation};

use crate::checkpoints::{self, Identity, Keeper};
use crate::data::Data;
use crate::memory::{self, Demand};
use crate::model::Model;
use crate::outputs::log::Log;
use crate::outputs::progress::Progress;
use crate::outputs::record;
use crate::plan::{self, Planned};
use crate::settings::flags::CutBy;
use crate::settings::job::Job;
use crate::steps::{Loop, OnStep, Stopped};

/// The run of a program: its settings, and the flags of its model.
pub struct Run<F> {
    /// The flags of the model and its data.
    pub flags: F,
    job: Job,
    saved: Option<Saved>,
    progress: Progress,
    optimizer: Option<ModuleOptimizer>,
    learning_rate: Option<ModuleLrScheduler>,
    on_step: OnStep,
    /// How a user makes the model smaller.
    smaller: &'static str,
}

/// The trained pipeline of a model `M`.
type TrainedOf<M> = Trained<<M as Model>::Input, <M as Model>::Output, <M as Model>::Target>;

/// The pipeline of a model `M`, before or after it is trained.
type PipelineOf<M> = Pipeline<<M as Model>::Input, <M as Model>::Output, <M as Model>::Target>;

/// A pipeline that has been trained to its last step.
pub struct Trained<In: Payload, Out: Payload, Target: Payload> {
    /// The pipeline, which is still alive: it can infer, evaluate, and give its modules.
    pub pipeline: Pipeline<In, Out, Target>,
    /// The loss on all held-out samples after the training; `None` if there are none.
    pub validation_loss: Option<f64>,
    /// The SHA-256 of all parameters, in hexadecimal; `None` for a model that is cut by hand.
    pub parameters_sha256: Option<String>,
}

impl<F> Run<F> {
    pub(crate) fn new(flags: F, job: Job, saved: Option<Saved>, progress: Progress) -> Self {
        let on_step = Box::new(|_: &StepReport, _: &mut BTreeMap<String, f64>| {});
        Self {
            flags,
            job,
            saved,
            progress,
            optimizer: None,
            learning_rate: None,
            on_step,
            smaller: "use a smaller model",
        }
    }

    /// Returns the seed of the initial parameters and of the order of samples.
    pub fn seed(&self) -> u64 {
        self.job.seed
    }

    /// Returns the number of samples in a step, over all replicas.
    pub fn samples_per_step(&self) -> usize {
        self.job.training.batch_size
    }

    /// Sets an optimizer of the program's own, in place of the one that `--optimizer` names.
    #[must_use]
    pub fn optimizer(self, optimizer: impl Into<ModuleOptimizer>) -> Self {
        Self { optimizer: Some(optimizer.into()), ..self }
    }

    /// Sets a learning rate schedule of the program's own, in place of the warm-up and cosine of the flags. It advances
    /// once for each optimizer step.
    #[must_use]
    pub fn learning_rate(self, schedule: impl Into<ModuleLrScheduler>) -> Self {
        Self { learning_rate: Some(schedule.into()), ..self }
    }

    /// Sets how a user makes the model smaller, such as `lower --layers`, for the message of a training that does not fit
    /// into the memory.
    #[must_use]
    pub fn smaller(self, way_out: &'static str) -> Self {
        Self { smaller: way_out, ..self }
    }

    /// Sets a function that is called after every step. It may add figures of its own to the step's metrics in the log,
    /// in TensorBoard and on the page.
    #[must_use]
    pub fn on_step(self, call: impl FnMut(&StepReport, &mut BTreeMap<String, f64>) + 'static) -> Self {
        Self { on_step: Box::new(call), ..self }
    }

    /// Trains the model on the data as the settings say.
    ///
    /// Returns the trained pipeline, or `None` if the run was to verify the pipeline only, or was ended early by
    /// `--stop-after` or a signal.
    ///
    /// # Errors
    /// Returns an error if the settings do not fit the model or the data, the training does not fit into the memory, a
    /// batch cannot be read, an output cannot be written, or a step fails. If steps have been made and checkpoints are
    /// on, there is then a checkpoint of them.
    pub fn train<M, D>(self, model: &M, data: &D) -> Result<Option<TrainedOf<M>>>
    where
        M: Model,
        D: Data<Input = M::Input, Target = M::Target> + ?Sized,
    {
        let Self { mut job, saved, progress, on_step, smaller, .. } = self;
        let place = checkpoints::place(&job.keeping, saved.as_ref())?;
        let outputs = std::mem::take(&mut job.outputs);
        // The state of a program's own optimizer is not known here.
        if let Some(parameters) = model.parameters().filter(|_| self.optimizer.is_none()) {
            memory::refuse_too_many_parameters(&job, parameters, saved.is_some(), smaller)?;
        }
        let costs = costs(model, data, &job)?;
        let planned = plan::choose(&job.running, &job.training, costs.as_ref())?;
        let (optimizer, learning_rate) = (self.optimizer, self.learning_rate);
        let optimizer = optimizer.unwrap_or_else(|| job.training.optimizer());
        let learning_rate = learning_rate.unwrap_or_else(|| job.training.learning_rate.clone().into());
        let recipe = Recipe { job: &job, model, planned: &planned, optimizer, learning_rate };
        recipe.print_cut(costs.as_ref())?;
        if let Some(steps) = job.verify {
            recipe.verify(data, steps)?;
            return Ok(None);
        }

        let training = &job.training;
        let checkpoint = saved.as_ref().map(Saved::read).transpose().context("--resume")?;
        let identity = Identity::of(&job, data.fingerprint());
        checkpoint.iter().try_for_each(|checkpoint| identity.check(checkpoint, training.steps))?;
        let start = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.progress.steps as usize);
        let (mut pipeline, devices) = recipe.build(checkpoint)?;
        let most_stages = costs.as_ref().map_or(planned.stages, |costs| costs.layers().len());
        let demand = Demand { job: &job, planned: &planned, most_stages, step: start, resumed: saved.is_some() };
        let estimate = memory::estimate(&mut pipeline, data, &demand)?;
        let keeper = Keeper::new(&job.keeping, place, identity, saved.as_ref())?;
        let tokens = (training.micro_batch_size * data.tokens_per_sample()) as f64;
        let run = recipe.run_line(pipeline.plan(), costs.as_ref(), estimate.as_ref(), links(&devices)?, tokens)?;
        let mut log = Log::create(outputs, run, start..training.steps, pipeline.synchronise_every())?;
        warn_of_mean(&mut pipeline, data)?;
        let validation = data.validation(training.batch_size)?;
        let validate = |pipeline: &mut Pipeline<_, _, _>, log: &mut Log, steps: usize| {
            evaluate(pipeline, data, &validation, log, steps)
        };
        validate(&mut pipeline, &mut log, start)?;
        let utilisation = utilisation(&job, costs.as_ref());
        let mut steps = Loop { job: &job, start, keeper, progress, utilisation, on_step, last_bubble: None };
        let trained = steps.run(&mut pipeline, data, &mut log, validate);
        let waited = trained.as_ref().map_or(Default::default(), |stopped| stopped.waited);
        let kept = steps.keeper.finish();
        if !trained.as_ref().is_ok_and(|Stopped { steps, .. }| *steps == training.steps) {
            let closed = log.close();
            // The first error is the cause of the later ones, so it is the one that is returned.
            return trained.map(|_| None).and_then(|ended| kept.and(closed).map(|()| ended));
        }
        let validation_loss = validate(&mut pipeline, &mut log, training.steps)?;
        let (parameters_sha256, parameters) = model.fingerprint(pipeline.snapshot()?)?.unzip();
        if let (Some(hash), Some(parameters)) = (&parameters_sha256, parameters) {
            println!("{parameters} parameters, sha256 {hash}");
        }
        log.finish(json!({
            "final": true,
            "validation_loss": validation_loss,
            "waited_for_batches_seconds": waited.as_secs_f64(),
            "parameters": parameters,
            "parameters_sha256": parameters_sha256,
        }))?;
        kept?;
        Ok(Some(Trained { pipeline, validation_loss, parameters_sha256 }))
    }
}

/// Returns the costs of the model's layers for one sample, counted or measured; `None` for a model that is cut by hand.
fn costs<M, D>(model: &M, data: &D, job: &Job) -> Result<Option<Costs>>
where
    M: Model,
    D: Data<Input = M::Input, Target = M::Target> + ?Sized,
{
    let mut pieces = data.batch(0, 1)?.into_micro_batches(1)?;
    let Some((sample, _)) = pieces.pop() else { bail!("a batch of one sample is empty") };
    let device = (job.running.cut == CutBy::Measured).then(|| &job.running.devices[0]);
    Ok(model.costs(sample, device))
}

/// Returns the model FLOP utilisation at one sample a second: the share of the peak of all devices that the training of
/// one sample takes in a second. It is `None` if the peak or the model's FLOPs are not known.
fn utilisation(job: &Job, costs: Option<&Costs>) -> Option<f64> {
    // A backward takes twice the FLOPs of a forward. Recomputed work does not count (Chowdhery et al., 2022,
    // arXiv:2204.02311, appendix B).
    let flops = 3.0 * costs?.flops();
    Some(flops / job.running.peak_flops?).filter(|share| *share > 0.0)
}

/// Warns if the loss seems to be a mean over the samples of a micro-batch, where a sum is asked for: two samples then
/// have half the loss together that they have one by one.
fn warn_of_mean<In, Out, Target, D>(pipeline: &mut Pipeline<In, Out, Target>, data: &D) -> Result<()>
where
    In: Payload,
    Out: Payload,
    Target: Payload,
    D: Data<Input = In, Target = Target> + ?Sized,
{
    // Batches that cannot be cut into samples, or whose samples are masked, are not judged.
    let Ok(together) = data.batch(0, 2).and_then(|batch| Ok(batch.into_micro_batches(1)?)) else { return Ok(()) };
    let Ok(each) = data.batch(0, 2).and_then(|batch| Ok(batch.into_micro_batches(2)?)) else { return Ok(()) };
    let mut sum = |batches: Vec<_>| -> Result<Option<f64>> {
        let mut sum = 0.0;
        for batch in batches {
            match pipeline.eval(Batch::from_micro_batches(vec![batch])) {
                Ok(report) => sum += report.terms.iter().map(|term| term.loss * term.weight).sum::<f64>(),
                Err(StepError::Batch(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(sum))
    };
    let (Some(together), Some(each)) = (sum(together)?, sum(each)?) else { return Ok(()) };
    if each != 0.0 && (each / together - 2.0).abs() < 0.01 {
        tracing::warn!(
            "the loss seems to be a mean: two samples have {together:.4} together and {each:.4} one by one; \
             `LossStage::loss` must return the sum over the targets, and `LossStage::weight` their number"
        );
    }
    Ok(())
}

/// Evaluates all held-out samples, prints their mean loss and metrics, and writes them to the log. Returns the loss, or
/// `None` if there are no held-out samples.
fn evaluate<In, Out, Target, D>(
    pipeline: &mut Pipeline<In, Out, Target>,
    data: &D,
    batches: &[Batch<In, Target>],
    log: &mut Log,
    steps: usize,
) -> Result<Option<f64>>
where
    In: Payload,
    Out: Payload,
    Target: Payload,
    D: Data<Input = In, Target = Target> + ?Sized,
{
    let (mut terms, mut sums) = (Vec::<LossTerm>::new(), BTreeMap::<String, f64>::new());
    for batch in batches {
        let report = pipeline.eval(batch.clone())?;
        terms.resize(terms.len().max(report.terms.len()), LossTerm { loss: 0.0, weight: 0.0 });
        for (sum, term) in terms.iter_mut().zip(&report.terms) {
            sum.loss += term.loss * term.weight;
            sum.weight += term.weight;
        }
        for metric in &report.metrics {
            *sums.entry(metric.name.to_owned()).or_default() += metric.value * report.weight();
        }
    }
    if batches.is_empty() {
        return Ok(None);
    }
    let mean = |sum: f64, weight: f64| if sum == 0.0 && weight == 0.0 { 0.0 } else { sum / weight };
    let weight = terms.first().map_or(0.0, |term| term.weight);
    let metrics: BTreeMap<_, _> = sums.into_iter().map(|(name, sum)| (name, mean(sum, weight))).collect();
    let loss = terms.iter().map(|term| mean(term.loss, term.weight)).sum();
    let shown: Vec<_> = metrics.iter().map(|(name, value)| format!(", {name} {value:.4}")).collect();
    println!("validation: {}{} after {steps} steps", data.show_loss(loss), shown.concat());
    log.validation(Validation { after_steps: steps, validation_loss: loss, metrics })?;
    Ok(Some(loss))
}

/// Everything that the pipeline of a run is built from. A recipe can build more than one pipeline, because `--verify`
/// needs several.
struct Recipe<'a, M> {
    job: &'a Job,
    model: &'a M,
    planned: &'a Planned,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

impl<M: Model> Recipe<'_, M> {
    /// Prints the layers of every stage.
    fn print_cut(&self, costs: Option<&Costs>) -> Result<()> {
        let (Some(cut), Some(costs)) = (&self.planned.cut, costs) else { return Ok(()) };
        for (stage, range) in cut.ranges(costs.layers().len())?.into_iter().enumerate() {
            let [first, last] = [range.start, range.end - 1].map(|layer| &costs.layers()[layer].name);
            println!("stage {stage}: {}", if first == last { first.clone() } else { format!("{first} to {last}") });
        }
        Ok(())
    }

    /// Builds the pipeline, and returns it with the device of each stage in the first replica.
    fn build(&self, checkpoint: Option<Checkpoint>) -> Result<(PipelineOf<M>, Vec<Device>)> {
        let devices = self.planned.devices(&self.job.running, self.job.training.micro_batches)?;
        Ok((self.builder(&devices, checkpoint)?.build()?, devices.into_iter().next().unwrap_or_default()))
    }

    /// Returns a pipeline builder with freshly initialised parameters, or with the state of `checkpoint`.
    fn builder(
        &self,
        devices: &[Vec<Device>],
        checkpoint: Option<Checkpoint>,
    ) -> Result<PipelineBuilder<M::Input, M::Output, M::Target>> {
        let Job { training, running, .. } = self.job;
        let recompute = running.recompute.policy();
        let config = |device: &Device| {
            StageConfig::new(device.clone(), self.optimizer.clone(), self.learning_rate.clone()).recompute(recompute)
        };
        let configs = devices[0].iter().map(config).collect();
        let builder = self.model.pipeline(self.planned.cut.as_ref(), configs)?.watchdog(running.watchdog);
        let builder = builder.schedule(self.planned.schedule.clone()).precision(running.precision);
        let builder = builder.rollback(running.rollback).tuned_for(training.tuned_for);
        let builder = builder.micro_batches(training.micro_batches).health_every(training.health_every);
        let mut builder = builder.on_non_finite(training.on_non_finite);
        for devices in &devices[1..] {
            builder = builder.replica(devices.iter().cloned());
        }
        if let Some(checkpoint) = checkpoint {
            builder = builder.restore(checkpoint);
        }
        if let Some(scale) = training.loss_scale {
            builder = builder.loss_scale(scale);
        }
        if let Some(groups) = training.gradient_groups {
            builder = builder.gradient_groups(groups);
        }
        if let Some(steps) = running.synchronise_every {
            builder = builder.synchronise_every(steps);
        }
        if let Some(clip) = training.clip {
            builder = builder.clip(clip);
        }
        if let Some(capacity) = running.channel_capacity {
            builder = builder.channel_capacity(capacity);
        }
        if let Some(cores) = running.cores_per_stage {
            builder = builder.cores_per_stage(cores);
        }
        Ok(builder)
    }

    /// Compares training by the pipeline with full-batch training on one device over `steps` steps, and prints the
    /// comparison.
    ///
    /// # Errors
    /// Returns an error if the two trainings differ, or a batch cannot be read.
    fn verify<D>(&self, data: &D, steps: usize) -> Result<()>
    where
        D: Data<Input = M::Input, Target = M::Target> + ?Sized,
    {
        let samples = self.job.training.batch_size;
        let validation = data.validation(samples)?;
        let batches = (0..steps).map(|step| data.batch(step, samples)).collect::<Result<Vec<_>>>()?;
        let batch = |step: usize| batches[step].clone();
        let devices = self.planned.devices(&self.job.running, self.job.training.micro_batches)?;
        // An error in the settings comes out here, and not in the closure.
        drop(self.builder(&devices, None)?);
        let build = || self.builder(&devices, None).expect("a builder was made from the same settings");
        let verification = Verify::new().steps(steps).pipeline(build, batch, &validation)?;
        print!("{verification}");
        ensure!(verification.passes(), "the pipeline does not train as one full batch on one device does");
        Ok(())
    }

    /// Returns the description of the run with which the log begins.
    fn run_line(
        &self,
        plan: &stageline::schedule::Plan,
        costs: Option<&Costs>,
        estimate: Option<&MemoryEstimate>,
        links: Vec<Option<Link>>,
        tokens_per_micro_batch: f64,
    ) -> Result<RunLine> {
        let Job { training, running, settings, .. } = self.job;
        let layers = match (costs, &self.planned.cut) {
            (Some(costs), Some(cut)) => record::layers(costs, cut)?,
            _ => Vec::new(),
        };
        Ok(RunLine {
            stageline: env!("CARGO_PKG_VERSION").to_owned(),
            schedule: self.planned.schedule.name().to_owned(),
            plan: plan.to_csv(),
            replicas: running.replicas,
            channel_capacity: running.channel_capacity.unwrap_or(training.micro_batches),
            layers,
            links,
            memory: estimate.map(|estimate| record::estimate(estimate, plan.workers())).unwrap_or_default(),
            tokens_per_micro_batch,
            machine: BTreeMap::from([
                fact("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
                fact("cores", std::thread::available_parallelism().map_or(0, NonZero::get)),
            ]),
            configuration: settings.0.clone(),
        })
    }
}

/// Returns the name and the value of a fact as an entry in the log's description of the machine.
fn fact(name: &str, value: impl Into<Value>) -> (String, Value) {
    (name.to_owned(), value.into())
}

/// Measures and prints the network between each pair of neighbouring stages.
///
/// A pair of stages on the same host has the entry `None`; the result is empty if all stages are on one host.
fn links(devices: &[Device]) -> Result<Vec<Option<Link>>> {
    let speeds = link_speeds(devices).context("the network between the stages cannot be measured")?;
    let link = |LinkSpeed { latency, bandwidth }| Link { latency: latency.as_secs_f64(), bandwidth };
    let links: Vec<_> = speeds.into_iter().map(|speed| speed.map(link)).collect();
    for (stage, Link { latency, bandwidth }) in
        links.iter().enumerate().filter_map(|(stage, link)| Some((stage, (*link)?)))
    {
        let (latency, bandwidth) = (1e3 * latency, 1e-9 * bandwidth);
        println!("the network between stages {stage} and {}: {latency:.2} ms, {bandwidth:.2} GB/s", stage + 1);
    }
    Ok(if links.iter().all(Option::is_none) { Vec::new() } else { links })
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use anyhow::ensure;
    use burn::module::Module;
    use burn::nn::LinearConfig;
    use burn::tensor::Tensor;
    use clap::{Args, Command, FromArgMatches};
    use stageline::checkpoint::Saved;
    use stageline::nn::Linear;
    use stageline::{LossStage, Row, Stage, Weight};

    use super::*;
    use crate::settings::flags::TrainingFlags;
    use crate::settings::merge::Settings;

    /// A linear layer, whose loss is the sum of its squared outputs in the rows whose target is not 0.
    #[derive(Module, Debug)]
    struct Layer {
        linear: Linear,
    }

    impl Stage for Layer {
        type Input = Tensor<2>;
        type Output = Tensor<2>;

        fn forward(&self, input: Tensor<2>) -> Tensor<2> {
            self.linear.forward(input)
        }
    }

    impl LossStage for Layer {
        type Target = Tensor<2>;

        fn loss(&self, output: Tensor<2>, mask: Tensor<2>) -> Tensor<1> {
            (output.clone() * output * mask).sum()
        }

        fn weight(&self, mask: &Tensor<2>) -> Weight {
            mask.clone().sum().into_scalar::<f64>().into()
        }
    }

    fn row() -> Row<Layer, Layer, Layer> {
        let layer = |device: &Device| Layer { linear: LinearConfig::new(2, 2).init(device).into() };
        Row::new(layer, 2, move |_, device| layer(device), layer)
    }

    /// Batches whose first sample does not count, and of which one panics or is an error.
    #[derive(Default)]
    struct Ones {
        panics_at: Option<usize>,
        fails_at: Option<usize>,
    }

    impl Data for Ones {
        type Input = Tensor<2>;
        type Target = Tensor<2>;

        fn batch(&self, step: usize, samples: usize) -> Result<Batch<Tensor<2>, Tensor<2>>> {
            assert_ne!(Some(step), self.panics_at, "the source panics");
            ensure!(Some(step) != self.fails_at, "the source fails");
            let cpu = Device::flex();
            let mask = Tensor::ones([samples, 1], &cpu).slice_fill([0..1, 0..1], 0.0);
            Ok(Batch::new(Tensor::ones([samples, 2], &cpu), mask))
        }
    }

    fn run(flags: &str) -> Run<()> {
        let command = TrainingFlags::augment_args(Command::new("train"));
        let small = "train --micro-batches 2 --micro-batch-size 3 --steps 5";
        let words = small.split_whitespace().chain(flags.split_whitespace());
        let matches = command.args_override_self(true).try_get_matches_from(words).unwrap();
        let flags = TrainingFlags::from_arg_matches(&matches).unwrap();
        Run::new((), Job::of(flags, Settings(BTreeMap::new())).unwrap(), None, Progress::default())
    }

    #[test]
    fn the_hook_is_called_after_every_step_without_any_output() {
        let calls = Rc::new(Cell::new(0));
        let counted = Rc::clone(&calls);
        let run = run("").on_step(move |_, _| counted.set(counted.get() + 1));
        // The first sample of every batch is masked, which the check of the loss must take.
        let trained = run.train(&row(), &Ones::default()).unwrap().unwrap();
        assert_eq!((calls.get(), trained.validation_loss), (5, None));
    }

    /// A batch that cannot be made ends the training with an error and a checkpoint of the steps before it.
    #[test]
    fn a_data_source_that_panics_or_fails_loses_no_step() {
        for (data, message) in [
            (
                Ones { panics_at: Some(3), ..Ones::default() },
                "the batch of step 3 cannot be made: `Data::batch` panicked",
            ),
            (Ones { fails_at: Some(3), ..Ones::default() }, "the source fails"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let run = run(&format!("--checkpoint {}", folder.path().display()));
            let error = run.train(&row(), &data).map(drop).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(Saved::open(folder.path()).unwrap().manifest().progress.steps, 3);
        }
    }
}
