//! Builds the pipelines of a training run from its settings and its plan ([`Recipe`]). One is the pipeline that trains.
//! `--verify` builds others, and compares them with full-batch training on one device.

use std::collections::BTreeMap;
use std::num::NonZero;

use anyhow::{Context, Result, ensure};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use serde_json::Value;
use stageline::checkpoint::Checkpoint;
use stageline::remote::{LinkSpeed, link_speeds};
use stageline::{
    Costs, DeviceMemory, DeviceName, MemoryEstimate, OptimizerState, ParameterCount, Pipeline, PipelineBuilder,
    StageConfig, Verify,
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
use crate::terminal::say;

/// The type of the pipeline that trains a model of type `M`.
pub type PipelineOf<M> = Pipeline<<M as Model>::Input, <M as Model>::Output, <M as Model>::Target>;

/// Builds the pipelines of a run from its settings, its plan and its model. A training run builds one pipeline.
/// `--verify` builds several, to compare them with full-batch training on one device.
pub struct Recipe<'a, M> {
    pub job: &'a Job,
    pub model: &'a M,
    pub planned: &'a Planned,
    pub optimizer: ModuleOptimizer,
    /// Whether the user's program sets the optimizer in its code. `--optimizer` then has no effect.
    owns_optimizer: bool,
    /// The optimizer of the model's first and last layer; `None` if these two have the same optimizer as all other
    /// layers.
    ends: Option<AdamW>,
    pub learning_rate: ModuleLrScheduler,
}

impl<'a, M: Model> Recipe<'a, M> {
    /// Creates the recipe from which the pipelines of a run are built: its settings, model, plan, optimizer and
    /// learning rate. The user's program sets `optimizer` and `learning_rate` in its code. If it leaves one of them
    /// `None`, the flags decide.
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

    /// Returns the description of this training job from which its memory is estimated. `most_stages` is the largest
    /// number of stages into which the model can be partitioned. `step` is the index of the run's first step, counted
    /// from 0. `resumed` says whether the run resumes from a checkpoint. `batches` holds the sizes of its batches on
    /// the host.
    pub fn demand(&self, most_stages: usize, step: usize, resumed: bool, batches: BatchMemory) -> Demand<'a> {
        let Self { job, planned, owns_optimizer, .. } = *self;
        Demand { job, planned, most_stages, step, resumed, owns_optimizer, batches }
    }

    /// Prints the names of the first and the last layer of every stage. Prints nothing for a model that the user has
    /// cut into stages by hand.
    pub fn print_cut(&self, costs: Option<&Costs>) -> Result<()> {
        let (Some(cut), Some(costs)) = (&self.planned.cut, costs) else { return Ok(()) };
        for (stage, range) in cut.ranges(costs.layers().len())?.into_iter().enumerate() {
            let names = costs.layers()[range].iter().map(|layer| layer.name.as_str());
            say(format_args!("stage {stage}: {}", layer_range(names)))?;
        }
        Ok(())
    }

    /// Builds the pipeline that trains, and restores the state of `checkpoint` if one is given. Also returns the device
    /// of each stage in the first replica.
    pub fn build(&self, checkpoint: Option<Checkpoint>) -> Result<(PipelineOf<M>, Vec<Device>)> {
        let devices = self.planned.devices(&self.job.running, self.job.training.micro_batches)?;
        Ok((self.builder(&devices, checkpoint)?.build()?, devices.into_iter().next().unwrap_or_default()))
    }

    /// Returns the builder of the pipeline that trains. `devices` holds one list for each replica, with the device of
    /// each stage. The pipeline starts with the state of `checkpoint`, or with newly initialised parameters if there is
    /// none.
    ///
    /// # Errors
    /// Returns an error if the model cannot be cut into the stages of the plan. It is also an error if
    /// `--optimizer-state host` is given although the program sets the optimizer in its code.
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
    /// two training runs.
    ///
    /// # Errors
    /// Returns an error if the two trainings differ by more than the tolerances of [`Verify`], or a batch cannot be
    /// read.
    pub fn verify<D>(&self, data: &D, steps: usize) -> Result<()>
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
        say(verification.to_string().trim_end())?;
        ensure!(verification.passes(), "the pipeline does not train as one full batch on one device does");
        Ok(())
    }

    /// Returns the description of a run, which becomes the first line of its log. `costs` are the costs of the model's
    /// layers, and `estimate` is the estimated memory. `links` are the network links between consecutive stages, as
    /// [`links`] returns them. `amount` is the amount of data in a step. `batch_bytes` is the memory of the batches on
    /// the host, in bytes.
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

/// Returns facts about the machine for the log of a run: its system, its number of cores, and the memory of each GPU in
/// bytes. A GPU whose memory is not known is left out.
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

/// Measures the network between each stage and the next. Returns the latency in seconds and the bandwidth in bytes per
/// second of each link, and prints them in ms and GB/s. `devices` holds the device of each stage.
///
/// The entry of a pair of stages on the same host is `None`. The list is empty if all stages are on one host.
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

/// Returns the model FLOP utilisation at one sample per second: the fraction of the devices' peak FLOP/s that training
/// on one sample per second needs. The utilisation of a step is this fraction times the step's samples per second.
/// Returns `None` if the peak or the model's FLOPs are not known.
pub fn utilisation(job: &Job, costs: Option<&Costs>, parameters: Option<ParameterCount>) -> Option<f64> {
    // A backward takes the FLOPs of a forward for the gradients of inputs, and as many for those of weights. Recomputed
    // work does not count (Chowdhery et al., 2022, arXiv:2204.02311, appendix B). Frozen weights have no gradient.
    let trained = parameters.map_or(1.0, |ParameterCount { trained, frozen, .. }| {
        trained as f64 / (trained as f64 + frozen as f64).max(1.0)
    });
    let flops = (2.0 + trained) * costs?.flops();
    Some(flops / job.running.peak_flops?).filter(|share| *share > 0.0)
}
