//! Builds a training run's pipelines from its settings and its plan ([`Recipe`]): the one that trains, and those that
//! `--verify` compares with full-batch training on one device.

use std::collections::BTreeMap;
use std::num::NonZero;

use anyhow::{Context, Error, Result, ensure};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use serde_json::Value;
use stageline::checkpoint::{Checkpoint, Saved};
use stageline::remote::{LinkSpeed, link_speeds};
use stageline::{
    BuildError, Costs, DeviceMemory, DeviceName, MemoryEstimate, OptimizerState, ParameterCount, Pipeline,
    PipelineBuilder, StageConfig, Verify,
};
use stageline_report::layer_range;
use stageline_report::record::{Link, Run as RunLine};

use crate::data::Data;
use crate::kernel_messages::gpus;
use crate::memory::batches::BatchMemory;
use crate::memory::check::Demand;
use crate::model::Model;
use crate::optimizers::adamw::AdamW;
use crate::optimizers::named::without_decay;
use crate::outputs::amount::Amount;
use crate::outputs::record;
use crate::plan::Planned;
use crate::settings::job::Job;
use crate::settings::merge::Settings;
use crate::settings::resume::{differences, settings_of};
use crate::terminal::say;
use crate::training::checkpoints::check_model;

/// The type of the pipeline that trains a model of type `M`.
pub type PipelineOf<M> = Pipeline<<M as Model>::Input, <M as Model>::Output, <M as Model>::Target>;

/// Builds a run's pipelines from its settings, plan and model. A training run builds one pipeline. `--verify` builds
/// several, to compare them with full-batch training on one device.
pub struct Recipe<'a, M> {
    pub job: &'a Job,
    pub model: &'a M,
    pub planned: &'a Planned,
    pub optimizer: ModuleOptimizer,
    /// Whether the user's program sets the optimizer in its code. `--optimizer` then has no effect.
    owns_optimizer: bool,
    /// The optimizer of the model's first and last layer; `None` if these two layers use the same optimizer as all
    /// others.
    ends: Option<AdamW>,
    pub learning_rate: ModuleLrScheduler,
}

impl<'a, M: Model> Recipe<'a, M> {
    /// Creates the recipe for a run's pipelines. `optimizer` and `learning_rate` are those set in the program's code;
    /// `None` leaves the choice to the flags.
    pub fn of(
        job: &'a Job,
        model: &'a M,
        planned: &'a Planned,
        optimizer: Option<ModuleOptimizer>,
        learning_rate: Option<ModuleLrScheduler>,
    ) -> Self {
        let owns_optimizer = optimizer.is_some();
        let ends = if owns_optimizer { None } else { job.training.optimizer_of_ends() };
        let optimizer = optimizer.unwrap_or_else(|| job.training.optimizer(job.running.optimizer_state));
        let learning_rate = learning_rate.unwrap_or_else(|| job.training.learning_rate.clone().into());
        Self { job, model, planned, optimizer, owns_optimizer, ends, learning_rate }
    }

    /// Returns the inputs of the memory check. `most_stages` is the maximum number of stages for this model, `saved` is
    /// the checkpoint that the run resumes from, and `batches` holds the batch sizes in host memory.
    pub fn demand(&self, most_stages: usize, saved: Option<&Saved>, batches: BatchMemory) -> Demand<'a> {
        let Self { job, planned, owns_optimizer, .. } = *self;
        let progress = saved.map(|saved| saved.manifest().progress);
        let step = progress.map_or(0, |progress| progress.steps as usize);
        let has_states = progress.is_some_and(|progress| progress.optimizer_steps > 0);
        Demand { job, planned, most_stages, step, resumed: saved.is_some(), has_states, owns_optimizer, batches }
    }

    /// Prints the names of every stage's first and last layer; nothing for a hand-cut model, whose program defines the
    /// stages.
    pub fn print_cut(&self, costs: Option<&Costs>) -> Result<()> {
        let (Some(cut), Some(costs)) = (&self.planned.cut, costs) else { return Ok(()) };
        for (stage, range) in cut.ranges(costs.layers().len())?.into_iter().enumerate() {
            let names = costs.layers()[range].iter().map(|layer| layer.name.as_str());
            say(format_args!("stage {stage}: {}", layer_range(names)))?;
        }
        Ok(())
    }

    /// Builds the training pipeline, restoring the state of `checkpoint` if one is given. Also returns each stage's
    /// device in the first replica.
    pub fn build(&self, checkpoint: Option<Checkpoint>) -> Result<(PipelineOf<M>, Vec<Device>)> {
        checkpoint.iter().try_for_each(|checkpoint| check_model(self.model.description(), checkpoint))?;
        let devices = self.planned.devices(&self.job.running, self.job.training.micro_batches)?;
        let before = checkpoint.as_ref().map(|checkpoint| settings_of(checkpoint.run.get("settings")));
        let mut built = self.builder(&devices, checkpoint)?.build().map_err(Error::from);
        if let Some(before) = before {
            built = built.map_err(|error| with_differences(error, &before, &self.job.settings));
        }
        Ok((built?, devices.into_iter().next().unwrap_or_default()))
    }

    /// Returns a builder of the training pipeline. `devices` lists each stage's device for every replica. The pipeline
    /// starts from `checkpoint`, or from newly initialised parameters if it is `None`.
    ///
    /// # Errors
    /// Returns an error if the model cannot be cut into the plan's stages, or if `--optimizer-state host` is given
    /// although the program sets the optimizer in its code.
    fn builder(
        &self,
        devices: &[Vec<Device>],
        checkpoint: Option<Checkpoint>,
    ) -> Result<PipelineBuilder<M::Input, M::Output, M::Target>> {
        let Job { training, running, .. } = self.job;
        let state = running.optimizer_state;
        ensure!(
            !self.owns_optimizer || state == OptimizerState::Device,
            "--optimizer-state {state}: this program sets its optimizer in its code, so the flag has no effect; leave it out (in \
             code, give `Run::optimizer` an optimizer that `OptimizerState::Host.of` returns)"
        );
        let recompute = running.recompute.policy();
        let config = |device: &Device| {
            let config = StageConfig::new(device.clone(), self.optimizer.clone(), self.learning_rate.clone());
            let config = config.recompute(recompute);
            let Some(adamw) = self.ends.map(|adamw| state.of(adamw)) else { return config };
            config.ends(move |optimizer, ends| optimizer.with_group(ends.exclude(without_decay()), adamw.clone(), None))
        };
        let configs = devices[0].iter().map(config).collect();
        let builder = self.model.pipeline(self.planned.cut.as_ref(), configs)?.watchdog(running.watchdog);
        let builder = builder.schedule(self.planned.schedule.clone()).precision(running.precision);
        let builder = builder.rollback(running.rollback).tuned_for(training.tuned_for);
        let builder = builder.micro_batches(training.micro_batches).health_every(training.health_every);
        let builder = builder.noise_every(training.noise_every);
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
        if let Some(fallbacks) = running.fallbacks {
            builder = builder.fallbacks(fallbacks);
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

    /// Trains `steps` steps with the pipeline, and again with full batches on one device. Prints a comparison of the
    /// two results.
    ///
    /// # Errors
    /// Returns an error if the two results differ by more than the tolerances of [`Verify`], if a pipeline cannot be
    /// built, if a batch cannot be read, or if a step fails.
    pub fn verify<D>(&self, data: &D, steps: usize) -> Result<()>
    where
        D: Data<Input = M::Input, Target = M::Target> + ?Sized,
    {
        let samples = self.job.training.batch_size;
        let validation = data.validation(samples)?;
        let batches = (0..steps).map(|step| data.batch(step, samples)).collect::<Result<Vec<_>>>()?;
        let batch = |step: usize| batches[step].clone();
        let devices = self.planned.devices(&self.job.running, self.job.training.micro_batches)?;
        // Returns errors in the settings here, because the closure below cannot.
        drop(self.builder(&devices, None)?);
        let build = || self.builder(&devices, None).expect("a builder was made from the same settings");
        let verification = Verify::new().steps(steps).pipeline(build, batch, &validation)?;
        say(verification.to_string().trim_end())?;
        ensure!(verification.passes(), "the pipeline does not train as one full batch on one device does");
        Ok(())
    }

    /// Returns the first line of the run's log, which describes the run. `costs` are the layers' costs, and `estimate`
    /// is the memory estimate. `links` are the network links between consecutive stages (see [`links`]), `amount` is
    /// the amount of data per step, and `batch_bytes` is the batches' host memory in bytes.
    pub fn run_line(
        &self,
        pipeline: &PipelineOf<M>,
        costs: Option<&Costs>,
        estimate: Option<&MemoryEstimate>,
        links: Vec<Option<Link>>,
        amount: Amount,
        batch_bytes: u64,
    ) -> Result<RunLine> {
        let Job { training, running, settings, .. } = self.job;
        let plan = pipeline.plan();
        let mut configuration = settings.0.clone();
        if self.owns_optimizer {
            configuration.insert("optimizer".to_owned(), "the program's own".into());
        }
        let (layers, cut_by_hand) = match (costs, &self.planned.cut) {
            (Some(costs), Some(cut)) => (record::layers(costs, cut)?, false),
            _ => (record::stages_as_layers(&pipeline.parameters()), true),
        };
        Ok(RunLine {
            stageline: env!("CARGO_PKG_VERSION").to_owned(),
            schedule: self.planned.schedule.name().to_owned(),
            plan: plan.to_csv(),
            replicas: running.replicas,
            channel_capacity: running.channel_capacity.unwrap_or(training.micro_batches),
            layers,
            cut_by_hand,
            links,
            memory: estimate.map(|estimate| record::estimate(estimate, plan.workers())).unwrap_or_default(),
            batch_bytes,
            unit: amount.unit(),
            tokens_per_micro_batch: amount.of_samples(training.micro_batch_size),
            machine: machine(&running.devices),
            configuration,
        })
    }
}

/// Adds the settings that differ from those of the resumed checkpoint (`before`) to the error that the checkpoint is of
/// another model. Returns any other error unchanged.
fn with_differences(error: Error, before: &Settings, now: &Settings) -> Error {
    let differences = differences(before, now, true).join("; ");
    match error.downcast_ref() {
        Some(BuildError::Checkpoint(_)) if !differences.is_empty() => error.context(format!("--resume: {differences}")),
        _ => error,
    }
}

/// Returns facts about the machine for a run's log: its operating system, its number of cores, and the memory of each
/// GPU in bytes. GPUs whose memory is unknown are left out.
fn machine(devices: &[Device]) -> BTreeMap<String, Value> {
    let facts = [
        fact("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        fact("cores", std::thread::available_parallelism().map_or(0, NonZero::get)),
    ];
    let size = |gpu: &Device| {
        let name = format!("memory of {} in bytes", DeviceName::shown(gpu));
        Some(fact(&name, DeviceMemory::of(gpu)?.total?))
    };
    facts.into_iter().chain(gpus(devices).iter().filter_map(size)).collect()
}

fn fact(name: &str, value: impl Into<Value>) -> (String, Value) {
    (name.to_owned(), value.into())
}

/// Measures the network link between each stage and the next. Returns each link's latency in seconds and bandwidth in
/// bytes per second, and prints them in ms and GB/s. `devices` holds the device of each stage.
///
/// Two stages on the same host have no link: their entry is `None`. The list is empty if all stages are on one host.
///
/// # Errors
/// Returns an error if the network cannot be measured, or a line cannot be printed.
pub fn links(devices: &[Device]) -> Result<Vec<Option<Link>>> {
    let speeds = link_speeds(devices).context("the network between the stages cannot be measured")?;
    let link = |LinkSpeed { latency, bandwidth }| Link { latency: latency.as_secs_f64(), bandwidth };
    let links: Vec<_> = speeds.into_iter().map(|speed| speed.map(link)).collect();
    for (stage, Link { latency, bandwidth }) in
        links.iter().enumerate().filter_map(|(stage, link)| Some((stage, (*link)?)))
    {
        let (latency, bandwidth) = (1e3 * latency, 1e-9 * bandwidth);
        say(format_args!(
            "the network between stages {stage} and {}: {latency:.2} ms, {bandwidth:.2} GB/s",
            stage + 1
        ))?;
    }
    Ok(if links.iter().all(Option::is_none) { Vec::new() } else { links })
}

/// Returns the model FLOP utilisation (MFU) at a throughput of one sample per second: the model's FLOPs per sample
/// divided by the devices' total peak FLOP/s. Multiply it by a step's samples per second to get the step's MFU. Returns
/// `None` if the peak is not set or, with a warning, if the model's FLOPs are unknown.
pub fn utilisation(job: &Job, costs: Option<&Costs>, parameters: Option<ParameterCount>) -> Option<f64> {
    // A backward pass takes a forward pass's FLOPs for the input gradients, and again for the weight gradients, which
    // frozen weights lack. Recomputation does not count (Chowdhery et al., 2022, arXiv:2204.02311, appendix B).
    let trained = parameters.map_or(1.0, |ParameterCount { trained, frozen, .. }| {
        trained as f64 / (trained as f64 + frozen as f64).max(1.0)
    });
    let peak = job.running.peak_flops?;
    let share = costs.map(|costs| (2.0 + trained) * costs.flops() / peak).filter(|share| *share > 0.0);
    if share.is_none() {
        tracing::warn!("--peak-tflops has no effect: the model is cut by hand, or none of its layers reports FLOPs");
    }
    share
}
