//! The caller's handle: cuts a batch, starts a pass, and gathers what the workers report.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};
use stageline_schedule::{Checked, Plan, check_forward};

use crate::batch::{Batch, MicroBatches};
use crate::builder::Chain;
use crate::error::{BuildError, Failure, StepError};
use crate::flush::{self, Ledger};
use crate::modules::Modules;
use crate::payload::Payload;
use crate::report::{EvalReport, StageReport, StepReport};
use crate::runner::{Pass, Runner};
use crate::stop::{Stop, Stopped};
use crate::worker::{Command, Line, Report, Worker};

/// A model on its stages' devices and threads, ready to train.
///
/// It is made by [`Pipeline::builder`]. Dropping it ends its threads.
pub struct Pipeline<In: Payload, Target: Payload> {
    plan: Arc<Checked>,
    weight: fn(&Target) -> f64,
    inputs: Sender<Vec<In>>,
    targets: Sender<Vec<Target>>,
    workers: Vec<WorkerHandle>,
    reports: Receiver<Report>,
    stop: Arc<Stop<StepError>>,
    step: usize,
    /// The stages, once their workers have ended.
    ended: Vec<Box<dyn Runner>>,
}

struct WorkerHandle {
    commands: Sender<Command>,
    commits: Sender<()>,
    thread: JoinHandle<Vec<Box<dyn Runner>>>,
}

impl Pipeline<(), ()> {
    /// Begins a chain of stages, in order.
    pub fn builder<In: Payload>() -> Chain<In, In> {
        Chain::new()
    }
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    pub(crate) fn start(
        plan: Arc<Checked>,
        runners: Vec<Box<dyn Runner>>,
        cores: usize,
        (inputs, targets): (Sender<Vec<In>>, Sender<Vec<Target>>),
        weight: fn(&Target) -> f64,
    ) -> Result<Self, BuildError> {
        let (report_sender, reports) = bounded(runners.len());
        let mut pipeline = Self {
            weight,
            inputs,
            targets,
            workers: Vec::new(),
            reports,
            stop: Arc::new(Stop::new()),
            step: 0,
            ended: Vec::new(),
            plan: Arc::clone(&plan),
        };
        let mut unseated: Vec<_> = runners.into_iter().map(Some).collect();
        for (index, row) in plan.plan().rows().iter().enumerate() {
            let mut stages: Vec<_> = row.iter().map(|action| action.stage).collect();
            stages.sort_unstable();
            let runners = stages.into_iter().filter_map(|stage| unseated[stage].take()).collect();
            let (commands, command_receiver) = bounded(1);
            let (commits, commit_receiver) = bounded(1);
            let line = Line {
                commands: command_receiver,
                commits: commit_receiver,
                reports: report_sender.clone(),
                stop: Arc::clone(&pipeline.stop),
            };
            let thread = Worker::new(index, runners, line).spawn(cores);
            let thread = thread.map_err(|cause| BuildError::Spawn { worker: index, cause })?;
            pipeline.workers.push(WorkerHandle { commands, commits, thread });
        }
        Ok(pipeline)
    }

    /// The plan of a step.
    pub fn plan(&self) -> &Plan {
        self.plan.plan()
    }

    /// Trains on one batch: M micro-batches forward and backward, then one optimizer step on every stage.
    ///
    /// # Errors
    /// [`StepError::Batch`] leaves the pipeline as it was. After any other error all threads have ended and
    /// [`into_modules`](Self::into_modules) gives the modules back.
    pub fn step(&mut self, batch: Batch<In, Target>) -> Result<StepReport, StepError> {
        self.running()?;
        let batch = batch.cut(self.plan().micro_batches(), self.weight)?;
        let start = Instant::now();
        self.train(batch, start).map_err(|interrupt| self.end(interrupt))
    }

    /// Evaluates one batch: forwards only, without a graph. A batch of fewer than M rows is cut into its rows.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn eval(&mut self, batch: Batch<In, Target>) -> Result<EvalReport, StepError> {
        self.running()?;
        let batch = batch.cut_up_to(self.plan().micro_batches(), self.weight)?;
        self.evaluate(batch).map_err(|interrupt| self.end(interrupt))
    }

    /// Ends the threads and gives the modules back, with autodiff, as the last step left them.
    pub fn into_modules(mut self) -> Modules {
        self.join();
        Modules::new(std::mem::take(&mut self.ended))
    }

    fn running(&self) -> Result<(), StepError> {
        if self.workers.is_empty() { Err(StepError::Stopped { step: self.step }) } else { Ok(()) }
    }

    fn train(&mut self, batch: MicroBatches<In, Target>, start: Instant) -> Result<StepReport, Ended> {
        let weights = Arc::new(batch.weights);
        let expected = Ledger { backwards: weights.each.len(), weight: weights.total };
        let plan = Arc::clone(&self.plan);
        let finished = self.run(batch.inputs, batch.targets, &plan, &Pass::Train(Arc::clone(&weights)))?;

        let ledgers = finished.iter().map(|report| (report.stage, report.outcome.ledger));
        flush::agree(ledgers, expected).map_err(|error| Ended::ByCaller(error.into()))?;
        for worker in &self.workers {
            self.stop.send(&worker.commits, ())?;
        }
        let stepped = self.gather()?;

        let report = StepReport {
            step: self.step,
            loss: total_loss(&finished) / weights.total,
            weight: weights.total,
            step_time: start.elapsed(),
            stages: stepped
                .iter()
                .map(|report| StageReport { busy: report.busy, learning_rate: report.learning_rate })
                .collect(),
            workers: self.workers.len(),
            micro_batches: weights.each.len(),
        };
        self.step += 1;
        Ok(report)
    }

    fn evaluate(&mut self, batch: MicroBatches<In, Target>) -> Result<EvalReport, Ended> {
        let forwards = self.plan().forward_only(batch.inputs.len());
        let plan = check_forward(forwards, self.plan.capacity());
        let plan = plan.expect("the forwards of a checked plan wait for each other only as they did in it");
        let finished = self.run(batch.inputs, batch.targets, &Arc::new(plan), &Pass::Evaluate)?;
        Ok(EvalReport { loss: total_loss(&finished) / batch.weights.total, weight: batch.weights.total })
    }

    /// Runs one pass of every worker's list.
    fn run(
        &self,
        inputs: Vec<In>,
        targets: Vec<Target>,
        plan: &Arc<Checked>,
        pass: &Pass,
    ) -> Result<Vec<Report>, Stopped> {
        self.stop.send(&self.inputs, inputs)?;
        self.stop.send(&self.targets, targets)?;
        for worker in &self.workers {
            let command = Command { step: self.step, plan: Arc::clone(plan), pass: pass.clone() };
            self.stop.send(&worker.commands, command)?;
        }
        self.gather()
    }

    /// One report of every stage, in order.
    fn gather(&self) -> Result<Vec<Report>, Stopped> {
        let reports = (0..self.plan().stages()).map(|_| self.stop.receive(&self.reports));
        let mut reports = reports.collect::<Result<Vec<_>, _>>()?;
        reports.sort_by_key(|report| report.stage);
        Ok(reports)
    }

    /// Stops and joins every worker; gives the one root cause.
    fn end(&mut self, ended: Ended) -> StepError {
        if let Ended::ByCaller(error) = ended {
            self.stop.raise(error);
        }
        self.join();
        self.stop.take_error().unwrap_or(StepError::Stopped { step: self.step })
    }

    /// Ends every worker that still runs, and keeps its stages.
    fn join(&mut self) {
        let threads: Vec<_> = self.workers.drain(..).map(|worker| worker.thread).collect();
        for thread in threads {
            match thread.join() {
                Ok(runners) => self.ended.extend(runners),
                Err(panic) => tracing::error!(failure = %Failure::of_panic(panic), "a worker thread panicked"),
            }
        }
    }
}

impl<In: Payload, Target: Payload> Drop for Pipeline<In, Target> {
    fn drop(&mut self) {
        self.join();
    }
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

/// The sum of the losses, from the one stage that makes them.
fn total_loss(finished: &[Report]) -> f64 {
    finished.iter().filter_map(|report| report.outcome.loss).sum()
}
