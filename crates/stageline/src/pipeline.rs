//! The caller's handle: cuts a batch, starts a pass, and gathers what the workers report.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};
use stageline_schedule::{Checked, Plan};

use crate::batch::{Batch, MicroBatches};
use crate::error::{BuildError, StepError};
use crate::failure::{During, Failure};
use crate::flush::{self, Ledger};
use crate::modules::Modules;
use crate::payload::Payload;
use crate::report::{EvalReport, StageReport, StepReport};
use crate::runner::{Pass, Runner};
use crate::stop::{Stop, Stopped};
use crate::worker::{Command, Finished, Line, Stepped, Worker};

/// A model on its stages' devices and threads, ready to train.
///
/// It is made by [`Pipeline::builder`]. Dropping it ends its threads.
pub struct Pipeline<In: Payload, Target: Payload> {
    plan: Arc<Checked>,
    weight: fn(&Target) -> f64,
    inputs: Sender<Vec<In>>,
    targets: Sender<Vec<Target>>,
    workers: Vec<WorkerHandle>,
    finished: Receiver<Finished>,
    stepped: Receiver<Stepped>,
    stop: Arc<Stop>,
    /// How many steps are done.
    steps: usize,
    /// What the workers were last asked for.
    during: During,
    /// The stages, once their workers have ended.
    ended: Vec<Box<dyn Runner>>,
}

struct WorkerHandle {
    commands: Sender<Command>,
    commits: Sender<()>,
    thread: JoinHandle<Vec<Box<dyn Runner>>>,
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    pub(crate) fn start(
        plan: Arc<Checked>,
        runners: Vec<Box<dyn Runner>>,
        cores: usize,
        (inputs, targets): (Sender<Vec<In>>, Sender<Vec<Target>>),
        weight: fn(&Target) -> f64,
    ) -> Result<Self, BuildError> {
        let (finished_sender, finished) = bounded(runners.len());
        let (stepped_sender, stepped) = bounded(runners.len());
        let mut pipeline = Self {
            weight,
            inputs,
            targets,
            workers: Vec::new(),
            finished,
            stepped,
            stop: Arc::new(Stop::new()),
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
            let (commits, commit_receiver) = bounded(1);
            let line = Line {
                commands: command_receiver,
                finished: finished_sender.clone(),
                commits: commit_receiver,
                stepped: stepped_sender.clone(),
                stop: Arc::clone(&pipeline.stop),
            };
            let thread = Worker::new(index, runners, line).spawn(cores)?;
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
        Modules::new(std::mem::take(&mut self.ended), self.plan().stages())
    }

    fn running(&self) -> Result<(), StepError> {
        if self.workers.is_empty() { Err(StepError::Stopped { during: self.during }) } else { Ok(()) }
    }

    fn train(&mut self, batch: MicroBatches<In, Target>, start: Instant) -> Result<StepReport, Ended> {
        self.during = During::Step(self.steps);
        let weights = Arc::new(batch.weights);
        let expected = Ledger { backwards: weights.each.len(), weight: weights.total };
        let plan = Arc::clone(&self.plan);
        let finished = self.run(batch.inputs, batch.targets, plan, &Pass::Train(Arc::clone(&weights)))?;

        let ledgers = finished.iter().map(|stage| (stage.stage, stage.outcome.ledger));
        flush::agree(ledgers, expected).map_err(|error| Ended::ByCaller(error.into()))?;
        for worker in &self.workers {
            self.stop.send(&worker.commits, ())?;
        }
        let mut stepped = self.gather(&self.stepped)?;
        stepped.sort_by_key(|stage| stage.stage);

        let stages = stepped.iter().map(|stage| StageReport { busy: stage.busy, learning_rate: stage.learning_rate });
        let report = StepReport {
            step: self.steps,
            loss: total_loss(&finished) / weights.total,
            weight: weights.total,
            step_time: start.elapsed(),
            stages: stages.collect(),
            workers: self.workers.len(),
            micro_batches: weights.each.len(),
        };
        self.steps += 1;
        Ok(report)
    }

    fn evaluate(&mut self, batch: MicroBatches<In, Target>) -> Result<EvalReport, Ended> {
        self.during = During::Evaluation { steps: self.steps };
        let weights = Arc::new(batch.weights);
        let plan = Arc::new(self.plan.forwards(batch.inputs.len()));
        let finished = self.run(batch.inputs, batch.targets, plan, &Pass::Evaluate(Arc::clone(&weights)))?;
        Ok(EvalReport { loss: total_loss(&finished) / weights.total, weight: weights.total })
    }

    /// Runs one pass of every worker's list.
    fn run(
        &self,
        inputs: Vec<In>,
        targets: Vec<Target>,
        plan: Arc<Checked>,
        pass: &Pass,
    ) -> Result<Vec<Finished>, Stopped> {
        self.stop.send(&self.inputs, inputs)?;
        self.stop.send(&self.targets, targets)?;
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
fn total_loss(finished: &[Finished]) -> f64 {
    finished.iter().filter_map(|stage| stage.outcome.loss).sum()
}
