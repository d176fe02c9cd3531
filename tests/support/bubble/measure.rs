//! Builds the pipeline of one case, times its steps, and returns the medians as a [`Point`].

use anyhow::Result;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use stageline::schedule::{Timeline, simulate};
use stageline::{Account, Batch, Payload, Pipeline, PipelineBuilder, StageConfig, StepReport};

use crate::bubble::flags::{Case, Flags, Kind};
use crate::bubble::point::Point;
use crate::gpt::{LEARNING_RATE, Load};
use crate::model::{Shape, costs, gpt};
use crate::paced::{Pace, Paced};
use crate::side_by_side::median;

/// Measures one case.
///
/// # Errors
///
/// The pipeline cannot be built for this case, or a step fails.
pub fn measure(flags: &Flags, case: &Case) -> Result<Point> {
    match flags.kind {
        Kind::Paced => {
            let pace = flags.pace(case.schedule.chunks());
            let rows = Tensor::<2>::ones([case.micro_batches, 1], &Device::flex());
            point(flags, case, || Ok(paced(pace, case)), || Batch::new(rows.clone(), ()), case.micro_batches)
        }
        Kind::Cpu | Kind::Cuda => {
            let load = Load {
                shape: Shape { layers: flags.layers, width: flags.width, context: flags.context },
                micro_batches: case.micro_batches,
                micro_batch_size: flags.micro_batch_size,
            };
            let stages = case.workers * case.schedule.chunks();
            let (cut, devices) = (costs(load.shape).cut(stages)?, flags.devices()?);
            let row = gpt(load.shape, 0);
            // All chunks of a worker are on the worker's device.
            let placement = case.schedule.plan(stages, case.micro_batches)?.placement();
            let device = |stage: usize| devices[placement.worker(stage) % devices.len()].clone();
            let config = |stage| StageConfig::new(device(stage), AdamWConfig::new().init(), LEARNING_RATE);
            let build = || Ok(row.pipeline(&cut, (0..stages).map(config))?.cores_per_stage(1));
            let tokens = case.micro_batches * load.micro_batch_size * load.shape.context;
            point(flags, case, build, || load.batch(), tokens)
        }
    }
}

fn paced(pace: Pace, case: &Case) -> PipelineBuilder<Tensor<2>, Tensor<2>, ()> {
    let config = || StageConfig::new(Device::flex(), SgdConfig::new().init(), 0.0);
    let mut chain = Pipeline::builder();
    for _ in 1..case.workers * case.schedule.chunks() {
        chain = chain.stage(Paced::new(pace), config());
    }
    chain.loss(Paced::new(pace), config()).cores_per_stage(1)
}

fn point<In: Payload, Out: Payload, Target: Payload>(
    flags: &Flags,
    case: &Case,
    build: impl Fn() -> Result<PipelineBuilder<In, Out, Target>>,
    batch: impl Fn() -> Batch<In, Target>,
    samples: usize,
) -> Result<Point> {
    let run = |synchronise_every: usize| -> Result<_> {
        let builder =
            build()?.schedule(case.schedule).micro_batches(case.micro_batches).synchronise_every(synchronise_every);
        let mut pipeline = builder.build()?;
        pipeline.step(batch())?;
        let reports = if flags.overlap {
            // The first and the last step overlap with one neighbour only, so they are not measured.
            let steps = pipeline.steps((0..flags.rounds + 2).map(|_| batch()));
            steps.skip(1).take(flags.rounds).collect::<Result<Vec<_>, _>>()?
        } else {
            (0..flags.rounds).map(|_| pipeline.step(batch())).collect::<Result<Vec<_>, _>>()?
        };
        Ok((reports, pipeline.plan().peak_live().into_iter().max().unwrap_or(0)))
    };
    let median_of = |reports: &[StepReport], figure: fn(&StepReport) -> f64| median(reports.iter().map(figure));
    let (unsynchronised, peak_live) = run(0)?;
    let step_seconds = median_of(&unsynchronised, |report| report.step_time.as_secs_f64());
    // On a GPU the bubble is measured in separate steps, because waiting for the device after every action slows them
    // down.
    let reports = if flags.kind == Kind::Cuda { run(1)?.0 } else { unsynchronised };
    let last = &reports[flags.rounds - 1];
    let ideal = simulate(last.recording.plan(), &flags.ideal(case.schedule.chunks(), last.stages.len()));
    Ok(Point {
        schedule: case.schedule.name(),
        stages: case.workers,
        micro_batches: case.micro_batches,
        r#virtual: case.schedule.chunks(),
        kind: flags.kind.to_string(),
        step_seconds,
        bubble: median_of(&reports, StepReport::bubble),
        clock: last.recording.clock().to_string(),
        step_ideal_seconds: (flags.kind == Kind::Paced).then(|| step(flags, &ideal)),
        bubble_ideal: bubble(flags, &ideal),
        bubble_simulated: median(reports.iter().map(|report| simulated_bubble(flags, report))),
        throughput: samples as f64 / step_seconds,
        peak_live,
        peak_bytes: last.recording.memory().and_then(|workers| workers.iter().map(|worker| worker.peak).max()),
        causes: Account::shares(&last.recording.accounts(), last.recording.took().as_secs_f64()),
    })
}

/// Returns the seconds from the start of one simulated step to the start of the next.
fn step(flags: &Flags, timeline: &Timeline) -> f64 {
    let optimizer = timeline.optimizers().iter().copied().fold(0.0, f64::max);
    if flags.overlap { timeline.span() + optimizer } else { timeline.step() }
}

/// Returns the bubble of a simulated step, a share of the total stage time.
fn bubble(flags: &Flags, timeline: &Timeline) -> f64 {
    let busy = timeline.busy();
    1.0 - busy.iter().sum::<f64>() / (busy.len() as f64 * step(flags, timeline))
}

/// Returns the bubble of the step's plan, simulated with the measured costs.
fn simulated_bubble(flags: &Flags, report: &StepReport) -> f64 {
    let recording = &report.recording;
    match flags.overlap {
        true => bubble(flags, &simulate(recording.plan(), &recording.costs())),
        false => recording.simulated_bubble(),
    }
}
