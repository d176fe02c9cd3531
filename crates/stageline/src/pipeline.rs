//! The caller's handle: cuts a batch, starts a pass, and gathers what the workers report.

mod probe;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};
use stageline_schedule::{Checked, Plan};

pub(crate) use self::probe::Probe;
use crate::batch::{Batch, BatchError, MicroBatches, Weights};
use crate::batch_size::BatchChange;
use crate::clip::Scaling;
use crate::error::{BuildError, StepError};
use crate::failure::{During, Failure};
use crate::finite::{self, Culprit, OnNonFinite, Origin};
use crate::flush::{FlushConfig, Ledger, Sums, Verdict, losses};
use crate::health::ParameterHealth;
use crate::loss_scale::Scaler;
use crate::modules::Modules;
use crate::payload::Payload;
use crate::report::{EvalReport, LossTerm, StageReport, StepReport, Update};
use crate::runner::{Context, Pass, Runner};
use crate::stop::{Stop, Stopped};
use crate::weight::Weight;
use crate::worker::{Command, Finished, Line, Stepped, Worker};

/// A model on its stages' devices and threads, ready to train.
///
/// It is made by [`Pipeline::builder`]. Dropping it ends its threads.
pub struct Pipeline<In: Payload, Target: Payload> {
    plan: Arc<Checked>,
    door: Door<In, Target>,
    workers: Vec<WorkerHandle>,
    finished: Receiver<Finished>,
    stepped: Receiver<Stepped>,
    stop: Arc<Stop>,
    stepping: Stepping,
    /// How many steps are done, those that were skipped included.
    steps: usize,
    /// What the workers were last asked for.
    during: During,
    /// The stages, once their workers have ended.
    ended: Vec<Box<dyn Runner>>,
}

/// How steps are made.
pub(crate) struct Stepping {
    pub(crate) scaler: Scaler,
    /// Samples a step, until it was told that there are others.
    pub(crate) tuned_for: Option<usize>,
    pub(crate) flush: FlushConfig,
}

/// Where batches enter.
pub(crate) struct Door<In, Target> {
    pub(crate) inputs: Sender<Vec<In>>,
    pub(crate) targets: Sender<Vec<Target>>,
    pub(crate) weight: fn(&Target) -> Weight,
}

struct WorkerHandle {
    commands: Sender<Command>,
    verdicts: Sender<Verdict>,
    thread: JoinHandle<Vec<Box<dyn Runner>>>,
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    pub(crate) fn start(
        plan: Arc<Checked>,
        runners: Vec<Box<dyn Runner>>,
        cores: usize,
        door: Door<In, Target>,
        stepping: Stepping,
    ) -> Result<Self, BuildError> {
        let (finished_sender, finished) = bounded(runners.len());
        let (stepped_sender, stepped) = bounded(runners.len());
        let mut pipeline = Self {
            door,
            workers: Vec::new(),
            finished,
            stepped,
            stop: Arc::new(Stop::new()),
            stepping,
            steps: 0,
            during: During::Step(0),
            ended: Vec::new(),
            plan: Arc::clone(&plan),
        };
        let mut unseated: Vec<_> = runners.into_iter().map(Some).collect();
        for (index, row) in plan.plan().rows().iter().enumerate() {
            let mut stages: Vec<_> = row.iter().map(|action| action.stage).collect();
            stages.sort_unstable();
            let runners = stages.into_iter().filter_map(|stage| unseated[stage].take()).collect();
            let (commands, command_receiver) = bounded(1);
            let (verdicts, verdict_receiver) = bounded(1);
            let line = Line {
                commands: command_receiver,
                finished: finished_sender.clone(),
                verdicts: verdict_receiver,
                stepped: stepped_sender.clone(),
                stop: Arc::clone(&pipeline.stop),
            };
            let thread = Worker::new(index, runners, line).spawn(cores)?;
            pipeline.workers.push(WorkerHandle { commands, verdicts, thread });
        }
        Ok(pipeline)
    }

    /// The plan of a step.
    pub fn plan(&self) -> &Plan {
        self.plan.plan()
    }

    /// Trains on one batch: M micro-batches forward and backward, then one optimizer step on every stage.
    ///
    /// Where no target of the batch counts, the step is skipped; where the loss or a gradient is not finite, it is
    /// skipped or an error, as [`on_non_finite`](crate::PipelineBuilder::on_non_finite) says. A skipped step leaves
    /// parameters, optimizer states and learning rates as they are, and [`StepReport::update`] says why.
    ///
    /// # Errors
    /// [`StepError::Batch`] leaves the pipeline as it was. After any other error all threads have ended and
    /// [`into_modules`](Self::into_modules) gives the modules back.
    pub fn step(&mut self, batch: Batch<In, Target>) -> Result<StepReport, StepError> {
        self.running()?;
        let start = Instant::now();
        self.during = During::Step(self.steps);
        let loss_scale = self.stepping.scaler.scale();
        let concluded = match batch.cut(self.plan().micro_batches(), self.door.weight) {
            Err(BatchError::NoWeight) => Concluded::without_weight(self.plan().stages()),
            cut => self.train(cut?).map_err(|interrupt| self.end(interrupt))?,
        };
        let report = StepReport {
            step: self.steps,
            loss: concluded.loss(),
            terms: concluded.terms,
            loss_scale,
            step_time: start.elapsed(),
            stages: concluded.stages,
            workers: self.workers.len(),
            micro_batches: self.plan().micro_batches(),
            update: concluded.update,
            health: concluded.health,
        };
        self.steps += 1;
        Ok(report)
    }

    /// Evaluates one batch: forwards only, without a graph. A batch of fewer than M rows is cut into its rows.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn eval(&mut self, batch: Batch<In, Target>) -> Result<EvalReport, StepError> {
        self.running()?;
        let batch = batch.cut_up_to(self.plan().micro_batches(), self.door.weight)?;
        self.evaluate(batch).map_err(|interrupt| self.end(interrupt))
    }

    /// Ends the threads and gives the modules back, with autodiff, as the last step left them.
    pub fn into_modules(mut self) -> Modules {
        self.join();
        Modules::new(std::mem::take(&mut self.ended), self.plan().stages())
    }

    fn running(&self) -> Result<(), StepError> {
        if self.workers.is_empty() { Err(StepError::Stopped { during: self.during }) } else { Ok(()) }
    }

    fn train(&mut self, batch: MicroBatches<In, Target>) -> Result<Concluded, Ended> {
        self.warn_of_change(batch.weights.all_samples());
        let total = batch.weights.total.clone();
        let context = self.context(batch.weights, total);
        let again = (batch.inputs.clone(), batch.targets.clone());
        let sums = self.sums(batch.inputs, batch.targets, &context)?;
        let scaling = sums.scaling(self.stepping.flush);
        let examine = self.stepping.flush.examines(self.steps);
        let verdict = scaling.map_or(Verdict::Skip, |scaling| Verdict::Step { scaling, examine });
        let concluded = self.conclude(verdict)?;
        let update = match scaling {
            Some(scaling) => {
                self.stepping.scaler.stepped();
                Update::Stepped { gradient_norm: sums.gradient_norm, clipped: scaling != Scaling::Keep }
            }
            None => {
                let culprit = self.inspect(again, &context)?;
                self.not_finite(culprit, context.loss_scale)?
            }
        };
        let report = |stage: &Stepped| StageReport { busy: stage.busy, learning_rate: stage.conclusion.learning_rate };
        Ok(Concluded {
            terms: terms(&sums.losses, &context.weights.total),
            stages: concluded.iter().map(report).collect(),
            health: concluded.into_iter().flat_map(|stage| stage.conclusion.health).collect(),
            update,
        })
    }

    /// What the stages know of a step.
    fn context(&self, weights: Weights, divisor: Weight) -> Arc<Context> {
        Arc::new(Context { step: self.steps, weights, divisor, loss_scale: self.stepping.scaler.scale() })
    }

    /// The first part of a step: what all stages have summed.
    fn sums(&self, inputs: Vec<In>, targets: Vec<Target>, context: &Arc<Context>) -> Result<Sums, Ended> {
        let expected = Ledger { backwards: context.weights.each.len(), weight: context.weights.total.clone() };
        let finished = self.run(inputs, targets, Arc::clone(&self.plan), &Pass::Train(Arc::clone(context)))?;
        Sums::of(finished, &expected).map_err(|error| Ended::ByCaller(error.into()))
    }

    /// The second part of a step: what every stage tells of it, in order.
    fn conclude(&self, verdict: Verdict) -> Result<Vec<Stepped>, Stopped> {
        for worker in &self.workers {
            self.stop.send(&worker.verdicts, verdict)?;
        }
        self.concluded_stages()
    }

    /// Once.
    fn warn_of_change(&mut self, samples: usize) {
        if let Some(change) = self.stepping.tuned_for.and_then(|tuned_for| BatchChange::between(tuned_for, samples)) {
            self.stepping.tuned_for = None;
            tracing::warn!("{change}");
        }
    }

    /// What is made of a step that is not finite.
    fn not_finite(&mut self, culprit: Option<Culprit>, loss_scale: f64) -> Result<Update, Ended> {
        let step = self.steps;
        // What a forward made, or came with the batch, is not for its scale.
        let by_scale = culprit.is_none_or(|culprit| culprit.origin == Origin::Backward);
        if by_scale && self.stepping.scaler.back_off() {
            tracing::info!(
                step,
                loss_scale,
                lower = self.stepping.scaler.scale(),
                ?culprit,
                "gradients overflow: the step is skipped"
            );
            return Ok(Update::Overflow { loss_scale, culprit });
        }
        match self.stepping.flush.on_non_finite {
            OnNonFinite::Stop => Err(Ended::ByCaller(StepError::NonFinite { step, culprit })),
            OnNonFinite::Skip => {
                tracing::warn!(step, ?culprit, "the loss or a gradient is not finite: the step is skipped");
                Ok(Update::NonFinite { culprit })
            }
        }
    }

    /// Runs a step again, without its flush, to find the first thing in it that is not finite.
    fn inspect(
        &self,
        (inputs, targets): (Vec<In>, Vec<Target>),
        context: &Arc<Context>,
    ) -> Result<Option<Culprit>, Stopped> {
        let finished = self.run(inputs, targets, Arc::clone(&self.plan), &Pass::Inspect(Arc::clone(context)))?;
        self.concluded_stages()?;
        Ok(finite::first(finished.into_iter().flat_map(|stage| stage.outcome.culprits)))
    }

    /// What every stage tells when its step is over, in order.
    fn concluded_stages(&self) -> Result<Vec<Stepped>, Stopped> {
        let mut stepped = self.gather(&self.stepped)?;
        stepped.sort_by_key(|stage| stage.stage);
        Ok(stepped)
    }

    fn evaluate(&mut self, batch: MicroBatches<In, Target>) -> Result<EvalReport, Ended> {
        self.during = During::Evaluation { steps: self.steps };
        let total = batch.weights.total.clone();
        let context = self.context(batch.weights, total);
        let plan = Arc::new(self.plan.forwards(batch.inputs.len()));
        let finished = self.run(batch.inputs, batch.targets, plan, &Pass::Evaluate(Arc::clone(&context)))?;
        let terms = terms(&losses(&finished), &context.weights.total);
        Ok(EvalReport { loss: total_loss(&terms), terms })
    }

    /// Runs one pass of every worker's list.
    fn run(
        &self,
        inputs: Vec<In>,
        targets: Vec<Target>,
        plan: Arc<Checked>,
        pass: &Pass,
    ) -> Result<Vec<Finished>, Stopped> {
        self.stop.send(&self.door.inputs, inputs)?;
        self.stop.send(&self.door.targets, targets)?;
        for worker in &self.workers {
            let command = Command { during: self.during, plan: Arc::clone(&plan), pass: pass.clone() };
            self.stop.send(&worker.commands, command)?;
        }
        self.gather(&self.finished)
    }

    /// One message of every stage.
    fn gather<R>(&self, messages: &Receiver<R>) -> Result<Vec<R>, Stopped> {
        (0..self.plan().stages()).map(|_| self.stop.receive(messages)).collect()
    }

    /// Stops and joins every worker; gives the one root cause.
    fn end(&mut self, ended: Ended) -> StepError {
        if let Ended::ByCaller(error) = ended {
            self.stop.raise(error);
        }
        self.join();
        self.stop.take_error().unwrap_or(StepError::Stopped { during: self.during })
    }

    /// Ends every worker that still runs, and keeps its stages.
    fn join(&mut self) {
        let threads: Vec<_> = self.workers.drain(..).map(|worker| worker.thread).collect();
        for thread in threads {
            match thread.join() {
                Ok(runners) => self.ended.extend(runners),
                Err(panic) => tracing::error!(failure = %Failure::of_panic(panic), "a worker thread was lost"),
            }
        }
    }
}

impl<In: Payload, Target: Payload> Drop for Pipeline<In, Target> {
    fn drop(&mut self) {
        self.join();
    }
}

/// A step that is over.
struct Concluded {
    /// None where nothing was computed.
    terms: Vec<LossTerm>,
    stages: Vec<StageReport>,
    health: Vec<ParameterHealth>,
    update: Update,
}

impl Concluded {
    /// Nothing was computed.
    fn without_weight(stages: usize) -> Self {
        let stages = vec![StageReport::default(); stages];
        Self { terms: Vec::new(), stages, health: Vec::new(), update: Update::NoWeight }
    }

    fn loss(&self) -> f64 {
        if self.terms.is_empty() { f64::NAN } else { total_loss(&self.terms) }
    }
}

/// The terms of a loss, of their sums.
fn terms(sums: &[f64], weight: &Weight) -> Vec<LossTerm> {
    let means = weight.divide(sums).into_iter();
    means.zip(weight.terms()).map(|(loss, &weight)| LossTerm { loss, weight }).collect()
}

fn total_loss(terms: &[LossTerm]) -> f64 {
    terms.iter().map(|term| term.loss).sum()
}

/// Why a pass ended early.
enum Ended {
    /// A worker stopped; it has said why.
    ByWorker,
    /// The caller stops the workers, with this error.
    ByCaller(StepError),
}

impl From<Stopped> for Ended {
    fn from(Stopped: Stopped) -> Self {
        Self::ByWorker
    }
}
