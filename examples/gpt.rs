//! Trains a byte-level GPT, cut into pipeline stages, on text.
//!
//! ```text
//! cargo run --release --example gpt -- --stages 2 --micro-batches 8
//! ```

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::num::NonZero;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use burn::module::ParamGroup;
use burn::optim::{AdafactorConfig, AdamWConfig, ModuleOptimizer};
use burn::tensor::Device;
use stageline::checkpoint::{Checkpoint, Saved};
use stageline::remote::{LinkSpeed, link_speeds};
use stageline::schedule::Plan;
use stageline::{
    Costs, CountingAllocator, Cut, MemoryEstimate, Pipeline, PipelineBuilder, StageConfig, StepError, StepReport,
    Verify, WarmupCosine,
};
use stageline_report::record::{Link, Run};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use example_gpt::flags::{FlushName, OptimizerName};
use example_gpt::job::{Job, Training};
use example_gpt::keep::{self, Identity, Keeper};
use example_gpt::log::{FinalLine, Log, setting};
use example_gpt::model::{Bytes, Gpt, Logits, costs, gpt};
use example_gpt::progress::Progress;
use example_gpt::text::Source;
use example_gpt::{fingerprint, memory, record, sample};

/// The allocator that counts the memory of every stage on the CPU, for memory estimates and the log.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The exit status after a stall, when the process may end while the thread of a stage still hangs.
const STALLED: u8 = 3;

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    eprintln!("Error: {error:?}");
    let mut cause = error.downcast_ref::<StepError>();
    while let Some(StepError::Torn { cause: inner, .. }) = cause {
        cause = Some(inner);
    }
    match cause {
        Some(StepError::Stalled(_)) => ExitCode::from(STALLED),
        _ => ExitCode::FAILURE,
    }
}

fn run() -> Result<()> {
    let progress = Progress::default();
    let warnings = progress.clone();
    let shown =
        tracing_subscriber::fmt::layer().with_writer(move || warnings.clone()).with_target(false).without_time();
    // burn logs every compiler pass over a GPU kernel, and warns of every message in flight to a lost host. Neither is
    // shown: a lost host ends the training with one error.
    let other_crates = Targets::new().with_default(Level::WARN).with_target("burn_remote", Level::ERROR);
    let filter = other_crates.with_targets([("gpt", Level::INFO), ("stageline", Level::INFO)]);
    tracing_subscriber::registry().with(shown.with_filter(filter)).init();
    let (resolved, saved) = keep::command_line(&std::env::args_os().collect::<Vec<_>>())?;
    if resolved.flags.print_config {
        print!("{}", resolved.settings.to_toml()?);
        return Ok(());
    }
    let mut job = Job::of(resolved.flags, resolved.settings)?;
    let place = keep::place(&job.keeping, saved.as_ref())?;
    let outputs = std::mem::take(&mut job.outputs);
    // Batches and initial parameters are made on the CPU, whichever devices the stages use.
    let text = Source::open(job.data.as_deref(), job.shape.context, job.seed, Device::flex())?;
    memory::refuse_too_many_parameters(&job, saved.is_some())?;
    let recipe = Recipe::new(&job)?;
    let training = &job.training;
    if let Some(steps) = job.verify {
        return verify(&recipe, &text, training.batch_size, steps);
    }

    let checkpoint = saved.as_ref().map(Saved::read).transpose().context("--resume")?;
    let identity = Identity::of(&job, &text);
    checkpoint.iter().try_for_each(|checkpoint| identity.check(checkpoint, training.steps))?;
    let start = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.progress.steps as usize);
    let mut pipeline = recipe.builder(checkpoint).build()?;
    let estimate = memory::estimate(&mut pipeline, &text, &job, (start, saved.is_some()))?;
    let mut keeper = Keeper::new(&job.keeping, place, identity, saved.as_ref())?;
    let run = recipe.run(pipeline.plan(), estimate.as_ref(), links(&job.running.devices)?)?;
    let mut log = Log::create(outputs, run, start..training.steps, pipeline.synchronise_every())?;
    let before = bits_per_byte(&mut pipeline, &text, training.batch_size)?;
    log.validation(start, before * LN_2)?;
    println!(
        "validation: {before:.3} bits a byte after {start} steps; the entropy of single bytes is {:.3}",
        text.unigram_entropy()?
    );
    let trained = train(&mut pipeline, &text, &job, (start, &mut keeper), &mut log, &progress);
    let kept = keeper.finish();
    if !trained.as_ref().is_ok_and(|steps| *steps == training.steps) {
        let closed = log.close();
        // The first error is the cause of the later ones, so it is the one that is returned.
        return trained.map(drop).and(kept).and(closed);
    }
    let after = bits_per_byte(&mut pipeline, &text, training.batch_size)?;
    log.validation(training.steps, after * LN_2)?;
    println!("validation: {after:.3} bits a byte after training");

    let (parameters_sha256, parameters) = fingerprint::fingerprint(&recipe.row.join(pipeline.snapshot()?)?);
    println!("{parameters} parameters, sha256 {parameters_sha256}");
    log.finish(&FinalLine { r#final: true, validation_bits_per_byte: after, parameters, parameters_sha256 })?;

    if job.sample > 0 {
        let prompt = text.prompt()?;
        let continued = sample::continue_text(&mut pipeline, &prompt, job.sample, job.seed)?;
        println!("--- held-out text:\n{}", String::from_utf8_lossy(&prompt));
        println!("--- continued by the model:\n{}", String::from_utf8_lossy(&continued));
    }
    kept
}

/// Everything that the pipeline of a job is built from: the partition of the layers, and a configuration for each
/// stage.
///
/// A recipe can build more than one pipeline, because `--verify` needs several.
struct Recipe<'a> {
    job: &'a Job,
    row: Gpt,
    costs: Costs,
    cut: Cut,
    /// The configuration of each stage: its device, optimizer and recomputation.
    configs: Vec<StageConfig>,
}

impl<'a> Recipe<'a> {
    /// Partitions the layers of the model among the stages, and prints the partition.
    fn new(job: &'a Job) -> Result<Self> {
        let (row, costs) = (gpt(job.shape, job.seed), costs(job.shape));
        let cut = costs.cut(job.running.devices.len())?;
        for (stage, range) in cut.ranges(row.layers())?.into_iter().enumerate() {
            let [first, last] = [range.start, range.end - 1].map(|layer| &costs.layers()[layer].name);
            println!("stage {stage}: {}", if first == last { first.clone() } else { format!("{first} to {last}") });
        }
        let optimizer = optimizer(job.training.optimizer);
        let learning_rate = learning_rate(&job.training)?;
        let recompute = job.running.recompute.policy();
        let config = |device: &Device| {
            StageConfig::new(device.clone(), optimizer.clone(), learning_rate.clone()).recompute(recompute)
        };
        Ok(Self { job, row, costs, cut, configs: job.running.devices.iter().map(config).collect() })
    }

    /// Returns the description of the run with which the log begins.
    fn run(&self, plan: &Plan, estimate: Option<&MemoryEstimate>, links: Vec<Option<Link>>) -> Result<Run> {
        let Job { shape, training, running, settings, .. } = self.job;
        let tokens = training.micro_batch_size * shape.context;
        Ok(Run {
            stageline: env!("CARGO_PKG_VERSION").to_owned(),
            schedule: running.schedule.name().to_owned(),
            plan: plan.to_csv(),
            replicas: 1 + running.elsewhere.len(),
            channel_capacity: running.channel_capacity.unwrap_or(training.micro_batches),
            layers: record::layers(&self.costs, &self.cut)?,
            links,
            memory: estimate.map(|estimate| record::estimate(estimate, plan.workers())).unwrap_or_default(),
            tokens_per_micro_batch: tokens as f64,
            machine: BTreeMap::from([
                setting("burn", burn_version()),
                setting("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
                setting("cores", std::thread::available_parallelism().map_or(0, NonZero::get)),
            ]),
            configuration: settings.0.clone(),
        })
    }

    /// Returns a pipeline builder with freshly initialised parameters, or with the state of `checkpoint`.
    fn builder(&self, checkpoint: Option<Checkpoint>) -> PipelineBuilder<Bytes, Logits, Bytes> {
        let Job { training, running, .. } = self.job;
        let builder = self.row.pipeline(&self.cut, self.configs.clone());
        let mut builder = builder.expect("the cut of this model, with a configuration for each stage");
        builder = builder.watchdog(running.watchdog);
        if let Some(checkpoint) = checkpoint {
            builder = builder.restore(checkpoint);
        }
        let builder = builder.schedule(running.schedule).precision(running.precision).rollback(running.rollback);
        let mut builder = builder.tuned_for(training.tuned_for);
        builder = builder.micro_batches(training.micro_batches).health_every(training.health_every);
        for devices in &running.elsewhere {
            builder = builder.replica(devices.iter().cloned());
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
        builder
    }
}

/// Compares training by the pipeline with full-batch training on one device over `steps` steps, and prints the
/// comparison.
///
/// # Errors
/// Returns an error if the two trainings differ, or a batch cannot be read.
fn verify(recipe: &Recipe, text: &Source, batch_size: usize, steps: usize) -> Result<()> {
    let validation = text.validation(batch_size).collect::<Result<Vec<_>>>()?;
    let batches = (0..steps).map(|step| text.batch(step, batch_size)).collect::<Result<Vec<_>>>()?;
    let batch = |step: usize| batches[step].clone();
    let verification = Verify::new().steps(steps).pipeline(|| recipe.builder(None), batch, &validation)?;
    print!("{verification}");
    ensure!(verification.passes(), "the pipeline does not train as one full batch on one device does");
    Ok(())
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

/// Returns the version of burn that this program is built with, as Cargo.lock has it.
fn burn_version() -> &'static str {
    let packages = include_str!("../Cargo.lock").split("[[package]]");
    let burn = packages.into_iter().find_map(|package| package.split_once("name = \"burn\"\nversion = \""));
    burn.and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown")
}

/// Returns the optimizer that `--optimizer` names, with a weight decay of 0.1 on all parameters except norms and
/// biases.
fn optimizer(name: OptimizerName) -> ModuleOptimizer {
    let group = ParamGroup::from_any_predicates(vec!["norm", "bias"]);
    match name {
        OptimizerName::Adamw => {
            let adam = |decay| AdamWConfig::new().with_weight_decay(decay).with_epsilon(1e-8);
            adam(0.1).init().with_group(group, adam(0.0).build(), None)
        }
        OptimizerName::Adafactor => {
            // Adafactor's relative step and parameter scaling would change the configured learning rate.
            let plain = AdafactorConfig::new().with_relative_step(false).with_scale_parameter(false);
            let adafactor = |decay| plain.clone().with_weight_decay(decay);
            adafactor(0.1).init().with_group(group, adafactor(0.0).build(), None)
        }
    }
}

/// Returns the schedule of the learning rate: a linear warm-up over a tenth of its steps, and then a cosine down to a
/// tenth of the peak.
fn learning_rate(training: &Training) -> Result<WarmupCosine> {
    let Training { learning_rate: peak, schedule_steps: steps, .. } = *training;
    Ok(WarmupCosine::new(peak, steps / 10, steps)?.down_to(peak / 10.0)?)
}

/// Trains until the last step, `--stop-after` or a signal, and returns the number of steps that are done by then.
///
/// A last checkpoint is written at the end of the training, also after an error.
fn train(
    pipeline: &mut Pipeline<Bytes, Logits, Bytes>,
    text: &Source,
    job: &Job,
    (start, keeper): (usize, &mut Keeper),
    log: &mut Log,
    progress: &Progress,
) -> Result<usize> {
    let Job { training, running, .. } = job;
    progress.begin(start, training.steps)?;
    let mut log_step = |report: StepReport| {
        let utilisation = running.utilisation.map(|share| share * report.weight() / report.step_time.as_secs_f64());
        progress.step(&report, utilisation);
        log.step(&report, utilisation)
    };
    let mut run = || {
        let mut done = start;
        keeper.step(pipeline, done)?;
        while done < training.steps && !keeper.stops(done) {
            let until = match running.flush {
                FlushName::Together => done + 1,
                FlushName::Ahead => keeper.due_after(done).min(training.steps),
            };
            let (first, mut read_error) = (done, None);
            let read = |step| text.batch(step, training.batch_size).map_err(|error| read_error = Some(error)).ok();
            let steps_ahead = (first..until).take_while(|step| *step == first || !keeper.stops(*step));
            for report in pipeline.steps(steps_ahead.map_while(read)) {
                log_step(report?)?;
                done += 1;
            }
            read_error.map_or(Ok(()), Err)?;
            keeper.step(pipeline, done)?;
        }
        Ok(done)
    };
    let ended = run();
    progress.end();
    // All stages have made the same steps, also after an error, so a checkpoint of them is consistent.
    let kept = keeper.save(pipeline);
    match ended {
        Ok(steps) => kept.map(|()| steps),
        Err(error) => {
            kept.unwrap_or_else(|lost| eprintln!("no checkpoint after the error: {lost:#}"));
            Err(error)
        }
    }
}

/// Returns the mean loss of the model on the windows of held-out text, in bits a byte.
fn bits_per_byte(pipeline: &mut Pipeline<Bytes, Logits, Bytes>, text: &Source, batch_size: usize) -> Result<f64> {
    let (mut nats, mut bytes) = (0.0, 0.0);
    for batch in text.validation(batch_size) {
        let report = pipeline.eval(batch?)?;
        nats += report.loss * report.weight();
        bytes += report.weight();
    }
    Ok(nats / bytes / LN_2)
}
