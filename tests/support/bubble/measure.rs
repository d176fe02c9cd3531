//! Builds the pipelines of the bubble bench's cases, times their steps in turn, and returns the medians as [`Point`]s.

use anyhow::{Result, anyhow};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use stageline::schedule::{Timeline, simulate};
use stageline::{Account, Batch, Payload, Pipeline, PipelineBuilder, StageConfig, StepReport};

use crate::bubble::flags::{Case, Flags, Kind};
use crate::bubble::point::Point;
use crate::bubble::predict::predict;
use crate::bubble::warm_up::{WarmUp, WarmedUp};
use crate::gpt::{LEARNING_RATE, Load};
use crate::model::{Shape, costs, gpt};
use crate::paced::Paced;
use crate::side_by_side::median;

/// The number of warm-up reports before the reports of the measured steps. Predictions leave out the first two steps of
/// a log, so they leave out these reports and no measured step.
const KEPT: usize = 2;

/// Measures the given cases of the bubble bench. Returns for each case a [`Point`] (the measured figures), or the
/// reason why the case is left out. Cases with the same number of workers P take turns, step by step. A drift of the
/// machine then affects all of them. On a GPU each case runs alone, because the cases together might not fit its
/// memory.
pub fn measure(flags: &Flags, cases: &[Case]) -> Vec<Result<Point>> {
    let together = |a: &Case, b: &Case| flags.kind != Kind::Cuda && a.workers == b.workers;
    cases.chunk_by(together).flat_map(|group| of_group(flags, group)).collect()
}

fn of_group(flags: &Flags, cases: &[Case]) -> Vec<Result<Point>> {
    let mut runs: Vec<_> = cases.iter().map(|case| Measurement::new(flags, *case)).collect();
    // Overlapping steps follow each other, so each case makes all of its steps at once.
    let (turns, steps) = if flags.overlap { (1, flags.rounds) } else { (flags.rounds, 1) };
    for _ in 0..turns {
        for run in &mut runs {
            if let Ok(measurement) = run
                && let Err(error) = measurement.steps(steps)
            {
                *run = Err(error);
            }
        }
    }
    let measured: Vec<_> = runs.iter().filter_map(|run| run.as_ref().ok()).collect();
    let predictions = predict(flags, &measured);
    let mut predictions = predictions.into_iter();
    runs.iter()
        .map(|run| match run {
            Ok(measurement) => measurement.point(flags, predictions.next().flatten()),
            Err(error) => Err(anyhow!("{error:#}")),
        })
        .collect()
}

/// The state while a case of the bubble bench is measured: its pipelines, and the times and reports of their steps.
pub struct Measurement {
    pub case: Case,
    /// The number of samples in a step of the measured case; for a GPT, the number of tokens.
    pub samples: usize,
    /// The pipeline whose step times the bench measures.
    timed: Box<dyn Steps>,
    /// The pipeline whose bubble is measured if the device is a GPU. Its workers wait for the device after every
    /// action, which makes steps slower, so its step times are not used. `None` on a CPU.
    synchronised: Option<Box<dyn Steps>>,
    step_times: Vec<f64>,
    /// The reports of the steps whose bubble is measured, after the reports of the last two warm-up steps.
    pub reports: Vec<StepReport>,
    /// The number of warm-up reports at the start of `reports`.
    kept: usize,
    warmed_up: WarmedUp,
}

/// A pipeline of the bench together with its batch; the types of its input and targets are erased.
trait Steps {
    fn steps(&mut self, count: usize) -> Result<Vec<StepReport>>;
    fn peak_live(&self) -> usize;
}

struct Running<In: Payload, Out: Payload, Target: Payload, F> {
    pipeline: Pipeline<In, Out, Target>,
    batch: F,
    overlap: bool,
}

impl<In: Payload, Out: Payload, Target: Payload, F: Fn() -> Batch<In, Target>> Steps for Running<In, Out, Target, F> {
    fn steps(&mut self, count: usize) -> Result<Vec<StepReport>> {
        if !self.overlap {
            return (0..count).map(|_| Ok(self.pipeline.step((self.batch)())?)).collect();
        }
        // The first and the last step overlap with one neighbour only, so they are not measured.
        let steps = self.pipeline.steps((0..count + 2).map(|_| (self.batch)()));
        Ok(steps.skip(1).take(count).collect::<Result<_, _>>()?)
    }

    fn peak_live(&self) -> usize {
        self.pipeline.plan().peak_live().into_iter().max().unwrap_or(0)
    }
}

/// Builds the pipeline of a measured case, and returns it with the number of samples (for a GPT, of tokens) in a step.
/// The workers wait for their devices after every action in each `synchronise_every`-th step, or never if
/// `synchronise_every` is 0.
fn pipeline(flags: &Flags, case: &Case, synchronise_every: usize) -> Result<(Box<dyn Steps>, usize)> {
    fn start<In: Payload, Out: Payload, Target: Payload>(
        flags: &Flags,
        case: &Case,
        synchronise_every: usize,
        builder: PipelineBuilder<In, Out, Target>,
        batch: impl Fn() -> Batch<In, Target> + 'static,
    ) -> Result<Box<dyn Steps>> {
        let builder = builder.schedule(case.schedule).micro_batches(case.micro_batches).cores_per_stage(1);
        let pipeline = builder.synchronise_every(synchronise_every).build()?;
        Ok(Box::new(Running { pipeline, batch, overlap: flags.overlap }))
    }
    let samples = case.micro_batches * case.micro_batch_size;
    match flags.kind {
        Kind::Paced => {
            let rows = Tensor::<2>::ones([samples, 1], &Device::flex());
            let batch = move || Batch::new(rows.clone(), ());
            Ok((start(flags, case, synchronise_every, paced(flags, case), batch)?, samples))
        }
        Kind::Cpu | Kind::Cuda => {
            let load = Load {
                shape: shape(flags),
                micro_batches: case.micro_batches,
                micro_batch_size: case.micro_batch_size,
            };
            let (cut, devices) = (costs(load.shape).cut(case.stages())?, flags.devices()?);
            // All chunks of a worker are on the worker's device.
            let placement = case.schedule.plan(case.stages(), case.micro_batches)?.placement();
            let device = |stage: usize| devices[placement.worker(stage) % devices.len()].clone();
            let config = |stage| StageConfig::new(device(stage), AdamWConfig::new().init(), LEARNING_RATE);
            let builder = gpt(load.shape, 0).pipeline(&cut, (0..case.stages()).map(config))?;
            let batch = move || load.batch();
            Ok((start(flags, case, synchronise_every, builder, batch)?, samples * load.shape.context))
        }
    }
}

/// Returns the shape of the GPT that the bubble bench's flags describe.
pub fn shape(flags: &Flags) -> Shape {
    Shape { layers: flags.layers, width: flags.width, context: flags.context }
}

fn paced(flags: &Flags, case: &Case) -> PipelineBuilder<Tensor<2>, Tensor<2>, ()> {
    let pace = flags.pace(case);
    let config = || StageConfig::new(Device::flex(), SgdConfig::new().init(), 0.0);
    let mut chain = Pipeline::builder();
    for _ in 1..case.stages() {
        chain = chain.stage(Paced::new(pace), config());
    }
    chain.loss(Paced::new(pace), config())
}

/// Makes training steps until the times of the last ones agree, as `criterion` says. Returns the reports of the last
/// two steps, and how the warm-up ended.
fn warm_up(pipeline: &mut dyn Steps, criterion: WarmUp) -> Result<(Vec<StepReport>, WarmedUp)> {
    let mut last = Vec::new();
    let ended = criterion.run(|| {
        let mut reports = pipeline.steps(1)?;
        let seconds = reports[0].step_time.as_secs_f64();
        last.append(&mut reports);
        last.drain(..last.len().saturating_sub(KEPT));
        Ok::<_, anyhow::Error>(seconds)
    })?;
    Ok((last, ended))
}

impl Measurement {
    fn new(flags: &Flags, case: Case) -> Result<Self> {
        let (mut timed, samples) = pipeline(flags, &case, 0)?;
        let (mut reports, mut warmed_up) = warm_up(&mut *timed, flags.warm_up())?;
        let mut synchronised = None;
        if flags.kind == Kind::Cuda {
            let mut pipeline = pipeline(flags, &case, 1)?.0;
            let (of_synchronised, ended) = warm_up(&mut *pipeline, flags.warm_up())?;
            (reports, warmed_up) = (of_synchronised, warmed_up.and(ended));
            synchronised = Some(pipeline);
        }
        let kept = reports.len();
        Ok(Self { case, samples, timed, synchronised, step_times: Vec::new(), reports, kept, warmed_up })
    }

    fn steps(&mut self, count: usize) -> Result<()> {
        let reports = self.timed.steps(count)?;
        self.step_times.extend(reports.iter().map(|report| report.step_time.as_secs_f64()));
        self.reports.extend(match &mut self.synchronised {
            Some(pipeline) => pipeline.steps(count)?,
            None => reports,
        });
        Ok(())
    }

    /// Returns the figures of a measured case of the bubble bench. `predicted` is the predicted step time in seconds,
    /// if there is a prediction.
    fn point(&self, flags: &Flags, predicted: Option<f64>) -> Result<Point> {
        let Self { case, samples, timed, step_times, reports, kept, warmed_up, .. } = self;
        let reports = &reports[*kept..];
        let median_of = |figure: fn(&StepReport) -> f64| median(reports.iter().map(figure));
        let last = reports.last().ok_or_else(|| anyhow!("{case}: no step was measured"))?;
        let ideal = simulate(last.recording.plan(), &flags.ideal(case));
        let step_seconds = median(step_times.iter().copied());
        Ok(Point {
            schedule: case.schedule.name(),
            stages: case.workers,
            micro_batches: case.micro_batches,
            micro_batch_size: case.micro_batch_size,
            r#virtual: case.schedule.chunks(),
            kind: flags.kind.to_string(),
            step_seconds,
            bubble: median_of(StepReport::bubble),
            clock: last.recording.clock().to_string(),
            step_ideal_seconds: (flags.kind == Kind::Paced).then(|| step(flags, &ideal)),
            step_predicted_seconds: predicted,
            bubble_ideal: bubble(flags, &ideal),
            bubble_simulated: median(reports.iter().map(|report| simulated_bubble(flags, report))),
            throughput: *samples as f64 / step_seconds,
            throughput_predicted: predicted.map(|seconds| *samples as f64 / seconds),
            warm_up_steps: warmed_up.steps,
            warm_up_spread: warmed_up.spread,
            warm_up_settled: warmed_up.settled,
            peak_live: timed.peak_live(),
            peak_bytes: last.recording.memory().and_then(|workers| workers.iter().map(|worker| worker.peak).max()),
            causes: Account::shares(&last.recording.accounts(), last.recording.took().as_secs_f64()),
        })
    }
}

/// Returns the time in seconds from the start of one simulated step to the start of the next. With overlapping steps,
/// the next step starts before the simulated step has ended.
fn step(flags: &Flags, timeline: &Timeline) -> f64 {
    let optimizer = timeline.optimizers().iter().copied().fold(0.0, f64::max);
    if flags.overlap { timeline.span() + optimizer } else { timeline.step() }
}

/// Returns the bubble (idle time) of a simulated step, as a share of the total stage time (workers x step time).
fn bubble(flags: &Flags, timeline: &Timeline) -> f64 {
    let busy = timeline.busy();
    1.0 - busy.iter().sum::<f64>() / (busy.len() as f64 * step(flags, timeline))
}

/// Returns the bubble (idle share of the stage time) of a measured step's plan, simulated with the costs that the step
/// measured.
fn simulated_bubble(flags: &Flags, report: &StepReport) -> f64 {
    let recording = &report.recording;
    match flags.overlap {
        true => bubble(flags, &simulate(recording.plan(), &recording.costs())),
        false => recording.simulated_bubble(),
    }
}
