//! One training run ([`Run`]): from the settings, a model and its data to the trained pipeline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use stageline::checkpoint::Saved;
use stageline::{Batch, MemoryEstimate, ParameterCount, Payload, Pipeline, Precision, StepReport};

use crate::data::Data;
use crate::data::repeatable::first_sample;
use crate::kernel_messages::gpus;
use crate::memory::batches::BatchMemory;
use crate::memory::{check, parameters};
use crate::model::Model;
use crate::outputs::amount::Amount;
use crate::outputs::log::Log;
use crate::outputs::progress::Progress;
use crate::outputs::unwritten::Unwritten;
use crate::plan::{self, Purpose};
use crate::settings::job::Job;
use crate::terminal::say;
use crate::training::checkpoints::{self, Finished, Identity, Keeper};
use crate::training::evaluation::{at_start, evaluate, warn_of_mean};
use crate::training::recipe::{PipelineOf, Recipe, links, utilisation};
use crate::training::steps::{Ended, Loop, OnStep, Stopped};
use crate::training::trained::{TrainedOf, complete, ended_early};

/// A training run that is ready to start, with its settings and the values of the program's own flags.
/// [`Program::main`](crate::Program::main) hands it to the program, which calls [`train`](Self::train).
pub struct Run<F> {
    /// The values of the program's own flags, for its model and data.
    pub flags: F,
    /// The names of the settings that are set explicitly, on the command line, in a settings file or by a checkpoint.
    set: BTreeSet<String>,
    job: Job,
    saved: Option<Saved>,
    progress: Progress,
    unwritten: Unwritten,
    optimizer: Option<ModuleOptimizer>,
    learning_rate: Option<ModuleLrScheduler>,
    on_step: OnStep,
    /// Advice on how to make the model smaller, such as `lower --layers`, for the error if its parameters do not fit
    /// into memory.
    smaller: &'static str,
}

impl<F> Run<F> {
    pub(crate) fn new(
        flags: F,
        set: BTreeSet<String>,
        job: Job,
        saved: Option<Saved>,
        progress: Progress,
        unwritten: Unwritten,
    ) -> Self {
        let on_step = Box::new(|_: &StepReport, _: &mut BTreeMap<String, f64>| {});
        Self {
            flags,
            set,
            job,
            saved,
            progress,
            unwritten,
            optimizer: None,
            learning_rate: None,
            on_step,
            smaller: "use a smaller model",
        }
    }

    /// Returns the collected errors from writing outputs, so that a program can add those of its own outputs. If there
    /// is any error, the program ends with status 1.
    pub fn unwritten(&self) -> Unwritten {
        self.unwritten.clone()
    }

    /// Returns the run's seed (`--seed`, 0 by default), which decides the initial parameters and the order of the
    /// samples.
    pub fn seed(&self) -> u64 {
        self.job.seed
    }

    /// Whether a setting is set explicitly (even to its default) on the command line, in a settings file or by the
    /// checkpoint of a resumed run. `name` is its flag's name without leading dashes and with `_` for `-`, such as
    /// `learning_rate`.
    pub fn is_set(&self, name: &str) -> bool {
        self.set.contains(name)
    }

    /// Returns the precision of forward and backward passes (`--precision`).
    pub fn precision(&self) -> Precision {
        self.job.running.precision
    }

    /// Returns the number of samples in a training step, over all micro-batches and replicas.
    pub fn samples_per_step(&self) -> usize {
        self.job.training.batch_size
    }

    /// Returns the number of steps after which the training ends (`--steps`), including those before a resume.
    /// Meaningless with `--epochs` before the data is opened, because the number is then unknown.
    pub fn steps(&self) -> usize {
        self.job.training.steps
    }

    /// Whether the run trains, and therefore needs data: `--steps` is not 0, or `--epochs` is given.
    pub fn trains(&self) -> bool {
        self.job.training.steps > 0 || self.job.training.epochs > 0.0
    }

    /// Whether the run writes checkpoints: to the folder of `--checkpoint` or `--best-checkpoint`, or to the folder
    /// that it resumes from.
    pub fn writes_checkpoints(&self) -> bool {
        self.job.keeping.has_folder()
    }

    /// Replaces the optimizer of `--optimizer` with one that the program chooses. To keep its state in host memory,
    /// wrap it with [`OptimizerState::of`](stageline::OptimizerState::of).
    #[must_use]
    pub fn optimizer(self, optimizer: impl Into<ModuleOptimizer>) -> Self {
        Self { optimizer: Some(optimizer.into()), ..self }
    }

    /// Replaces the learning-rate schedule of the flags (a warm-up and a decay) with one that the program chooses. It
    /// advances once per optimizer step.
    #[must_use]
    pub fn learning_rate(self, schedule: impl Into<ModuleLrScheduler>) -> Self {
        Self { learning_rate: Some(schedule.into()), ..self }
    }

    /// Sets the advice on how to make the model smaller, such as `lower --layers`, which the error gives if a new
    /// model's parameters do not fit into memory. The default is `use a smaller model`.
    #[must_use]
    pub fn smaller(self, remedy: &'static str) -> Self {
        Self { smaller: remedy, ..self }
    }

    /// Sets a callback that is called after every training step with the step's report and its metrics by name. The
    /// callback may add metrics, which then appear in the log, in TensorBoard and on the HTML page.
    #[must_use]
    pub fn on_step(self, call: impl FnMut(&StepReport, &mut BTreeMap<String, f64>) + 'static) -> Self {
        Self { on_step: Box::new(call), ..self }
    }

    /// Builds the pipeline that the settings describe, without training it, and prints that no step is trained. The
    /// pipeline has the model's initial parameters, or the parameters of the checkpoint that `--resume` names.
    ///
    /// By default, stages are balanced by their number of parameters. The layers are run on `sample`, the input of one
    /// sample, only for `--cut measured` and `--schedule search`.
    ///
    /// # Errors
    /// Returns an error if the settings do not fit the model, if they ask for a comparison of training runs
    /// (`--verify`), if the parameters do not fit into memory, or if the checkpoint cannot be read.
    pub fn pipeline<M: Model>(self, model: &M, sample: M::Input) -> Result<PipelineOf<M>> {
        let Self { job, saved, smaller, .. } = self;
        job.check_untrained()?;
        let fits = |count| parameters::refuse_too_large_model(&job, count, saved.is_some(), smaller);
        model.parameters().map_or(Ok(()), fits)?;
        let costs = plan::costs(model, sample, &job, Purpose::Pipeline)?;
        let planned = plan::choose(&job.running, &job.training, costs.as_ref())?;
        let recipe = Recipe::of(&job, model, &planned, self.optimizer, self.learning_rate);
        recipe.print_cut(costs.as_ref())?;
        let checkpoint = saved.as_ref().map(Saved::read).transpose().context("--resume")?;
        let (pipeline, _) = recipe.build(checkpoint)?;
        say(if saved.is_some() { "no further step is trained" } else { "the model is not trained" })?;
        Ok(pipeline)
    }

    /// Trains the model on the data, according to the settings. A program that needs its data after the training run
    /// passes a clone of an [`Arc`].
    ///
    /// Returns the trained pipeline with its last evaluation. Returns `None` if `--stop-after` or a signal ended the
    /// run early, or if the run only compared the pipeline with full-batch training on one device (`--verify`).
    ///
    /// # Errors
    /// With `--checkpoint`, the steps before an error are saved in a checkpoint. Returns an error if:
    ///
    /// - The settings do not fit the model or the data.
    /// - All parameters are frozen.
    /// - The training run does not fit into memory.
    /// - A batch cannot be read, or two reads of the same sample differ.
    /// - An output cannot be written. After the last step, such an error is kept in
    ///   [`Trained::unwritten`](crate::Trained::unwritten) instead, so that the trained pipeline is not lost.
    /// - A step fails.
    pub fn train<M, D>(self, model: &M, data: D) -> Result<Option<TrainedOf<M>>>
    where
        M: Model,
        D: Data<Input = M::Input, Target = M::Target>,
    {
        let Self { mut job, saved, progress, unwritten, on_step, smaller, .. } = self;
        job.check_verified()?;
        job.count_epochs(data.samples_per_epoch())?;
        let data = Arc::new(data);
        let place = if job.verify.is_some() { None } else { checkpoints::place(&job.keeping, saved.as_ref())? };
        let parameters = check_parameters(model, &job, self.optimizer.is_none(), saved.is_some(), smaller)?;
        let sample = first_sample(&*data)?;
        let of_step = sample.bytes().saturating_mul(job.training.batch_size as u64);
        let purpose = Purpose::Training { is_written: job.outputs.have_lines() };
        let costs = plan::costs(model, input(sample)?, &job, purpose)?;
        let planned = plan::choose(&job.running, &job.training, costs.as_ref())?;
        let has_own_rate = self.learning_rate.is_some();
        let recipe = Recipe::of(&job, model, &planned, self.optimizer, self.learning_rate);
        recipe.print_cut(costs.as_ref())?;
        if let Some(steps) = job.verify {
            recipe.verify(&*data, steps)?;
            return Ok(None);
        }

        let training = &job.training;
        let checkpoint = saved.as_ref().map(Saved::read).transpose().context("--resume")?;
        let identity = Identity::of(&job, data.fingerprint(), model.description(), checkpoint.as_ref());
        checkpoint.iter().try_for_each(|checkpoint| identity.check(checkpoint, training.steps))?;
        let validation = data.validation(training.batch_size)?;
        let mut keeper = Keeper::new(&job.keeping, place, identity, saved.as_ref())?;
        keeper.compare(&job, &validation, checkpoint.as_ref())?;
        let start = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.progress.steps as usize);
        let (mut pipeline, devices) = recipe.build(checkpoint)?;
        ensure!(pipeline.trains(), "all parameters of the model are frozen, so no step changes any; freeze fewer");
        let most_stages = costs.as_ref().map_or(planned.stages, |costs| costs.layers().len());
        let batches = BatchMemory { of_step, held_out: validation.iter().map(Batch::bytes).sum() };
        let demand = recipe.demand(most_stages, saved.as_ref(), batches);
        let estimate = check::estimate(&mut pipeline, &*data, &demand)?;
        let amount = Amount::of(&*data, training.batch_size);
        let (links, batch_bytes) = (links(&devices)?, batches.total(&job));
        let run = recipe.run_line(&pipeline, costs.as_ref(), estimate.as_ref(), links, amount, batch_bytes)?;
        let (steps, gpus) = (keeper.range(start, training.steps), gpus(&job.running.devices));
        let mut log = Log::create(job.outputs.clone(), run, steps, pipeline.synchronise_every(), gpus)?;
        warn_of_mean(&mut pipeline, &*data)?;
        let validate = |pipeline: &mut Pipeline<_, _, _>, log: &mut Log, steps: usize| {
            evaluate(pipeline, &*data, &validation, log, steps)
        };
        let evaluated = validate(&mut pipeline, &mut log, start)?;
        let evaluated = at_start(evaluated, training.validates_after(start), &mut keeper, &mut pipeline)?;
        let utilisation = utilisation(&job, costs.as_ref(), parameters);
        amount.tell(training.steps)?;
        training.beyond_the_schedule().filter(|_| !has_own_rate).iter().for_each(|text| tracing::warn!("{text}"));
        let estimated = estimate.as_ref().map(MemoryEstimate::devices).unwrap_or_default();
        let progress = progress.counting(amount);
        let mut steps =
            Loop { job: &job, start, keeper, progress, amount, utilisation, on_step, estimated, evaluated, unwritten };
        let trained = steps.run(&mut pipeline, &data, &mut log, validate);
        let Loop { mut keeper, unwritten, .. } = steps;
        let Ok(Stopped { ended: Ended::Complete(validation), waited }) = trained else {
            return ended_early(trained.err(), keeper.finish(), log.close()).map(|()| None);
        };
        let Finished { latest, best } = keeper.finish();
        let [latest, best] = [latest, best].map(|kept| unwritten.unless(kept));
        let lines = [&latest, &best].into_iter().flatten().flatten();
        unwritten.unless(lines.into_iter().try_for_each(say));
        complete(model, pipeline, validation, log, latest.is_some(), waited, unwritten).map(Some)
    }
}

/// Counts the model's parameters, prints how many are trained if some are frozen, and checks that they fit into memory.
/// Returns `None` for a hand-cut model, whose program defines the stages.
///
/// # Errors
/// Returns an error with the advice `smaller` if the parameters do not fit into memory. Not checked if
/// `has_known_optimizer` is false, because the optimizer is then the program's own, with a state of unknown size.
fn check_parameters<M: Model>(
    model: &M,
    job: &Job,
    has_known_optimizer: bool,
    resumes: bool,
    smaller: &str,
) -> Result<Option<ParameterCount>> {
    let Some(parameters) = model.parameters() else { return Ok(None) };
    if parameters.frozen > 0 {
        let ParameterCount { trained, frozen, .. } = parameters;
        say(format_args!("{trained} of {} parameters are trained", trained + frozen))?;
    }
    if has_known_optimizer {
        parameters::refuse_too_many_parameters(job, parameters, resumes, smaller)?;
    }
    Ok(Some(parameters))
}

/// Returns the input of a one-sample batch, to count or measure the layers' costs.
fn input<In: Payload, Target: Payload>(sample: Batch<In, Target>) -> Result<In> {
    let Some((input, _)) = sample.into_micro_batches(1)?.pop() else { bail!("a batch of one sample is empty") };
    Ok(input)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::program::{NoFlags, Program};
    use crate::support::row;

    /// A source of test batches in which all values of the input are 1. The first sample of each batch is masked in the
    /// loss.
    struct Ones;

    impl Data for Ones {
        type Input = Tensor<2>;
        type Target = Tensor<2>;

        fn batch(&self, _: usize, samples: usize) -> Result<Batch<Tensor<2>, Tensor<2>>> {
            let cpu = Device::flex();
            let mask = Tensor::ones([samples, 1], &cpu).slice_fill([0..1, 0..1], 0.0);
            Ok(Batch::new(Tensor::ones([samples, 2], &cpu), mask))
        }
    }

    fn run() -> Run<()> {
        let job = Job::of_line("--micro-batches 2 --micro-batch-size 3 --steps 5").unwrap();
        Run::new((), BTreeSet::new(), job, None, Progress::default(), Unwritten::default())
    }

    /// Tests that settings given in code train with the same result as the same flags on the command line. A wrong
    /// setting is an error.
    #[test]
    fn settings_given_in_code_are_those_of_the_flags() {
        let by_flags = run().train(&row(), Ones).unwrap().unwrap();
        let program = || Program::<NoFlags>::new().default_value("micro_batches", "2");
        let run = program().configured([("micro_batch_size", "3"), ("steps", "5")]).unwrap();
        let trained = run.train(&row(), Ones).unwrap().unwrap();
        assert_eq!(trained.parameters_sha256, by_flags.parameters_sha256);
        let error = |name, value| program().configured([(name, value)]).err().unwrap().to_string();
        assert!(error("steps", "many").contains("invalid value 'many' for '--steps <STEPS>'"));
        assert!(error("step", "5").contains("'--steps'"));
    }

    /// Tests an output that is written after the last step. If its folder is missing, nothing is trained. If it cannot
    /// be written at the end, the pipeline is returned all the same.
    #[test]
    fn a_trained_pipeline_is_not_lost_with_an_output() {
        let folder = tempfile::tempdir().unwrap();
        let run_to = |path: &std::path::Path, unwritten: &Unwritten| {
            let flags = format!("--micro-batches 2 --micro-batch-size 3 --steps 5 --report {}", path.display());
            Run::new((), BTreeSet::new(), Job::of_line(&flags).unwrap(), None, Progress::default(), unwritten.clone())
        };
        let unwritten = Unwritten::default();
        let run = run_to(&folder.path().join("none/page.html"), &unwritten);
        let refused = run.on_step(|_, _| panic!("a step is trained")).train(&row(), Ones).map(drop);
        assert!(refused.unwrap_err().to_string().starts_with("cannot write "));

        let page = folder.path().join("page.html");
        let run = run_to(&page, &unwritten);
        let in_the_way = page.clone();
        let run = run.on_step(move |_, _| std::fs::create_dir_all(&in_the_way).unwrap());
        let trained = run.train(&row(), Ones).unwrap().unwrap();
        assert!(trained.parameters_sha256.is_some() && trained.unwritten.first().is_err());
        let error = unwritten.first().unwrap_err().to_string();
        assert!(error.contains(&page.display().to_string()), "{error}");
    }

    #[test]
    fn the_hook_is_called_after_every_step_without_any_output() {
        let calls = Rc::new(Cell::new(0));
        let counted = Rc::clone(&calls);
        let run = run().on_step(move |_, _| counted.set(counted.get() + 1));
        // The first sample of every batch is masked out. The check that the loss is a sum must accept such samples.
        let trained = run.train(&row(), Ones).unwrap().unwrap();
        assert_eq!((calls.get(), trained.validation), (5, None));
    }
}
