//! The caller's handle: what is asked of a pipeline.
//!
//! - `train`: a step; `steps`: one after the other; `probe`: gradients without a step; `rehearse`: what a step will hold.
//! - `pass`: what both ask of the workers; `hosts`: those that are lost.

mod hosts;
mod pass;
mod probe;
mod rehearse;
mod save;
mod steps;
mod train;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use stageline_schedule::{Checked, Plan};

use self::pass::Ended;
pub(crate) use self::probe::Probe;
pub use self::steps::Steps;
use crate::batch::{Batch, BatchError};
use crate::error::{BuildError, StepError};
use crate::failure::{During, Failure};
use crate::flush::{FlushConfig, Outcome, Verdict};
use crate::layout::{Layout, StageState};
use crate::loss_scale::Scaler;
use crate::modules::Modules;
use crate::payload::Payload;
use crate::recompute::Recompute;
use crate::recording::Clock;
use crate::rehearsal::Parameters;
use crate::replica::Replica;
use crate::report::{EvalReport, StepReport};
use crate::runner::Runner;
use crate::site::Stages;
use crate::stop::Stop;
use crate::threads::{JoinHandle, Receiver, Sender, bounded, ends_within};
use crate::turns::Turns;
use crate::watchdog::{Place, Post, Stall, Watchdog};
use crate::weight::Weight;
use crate::worker::{Command, Line, Lines, Recorded, Stepped, Worker, events_of, place_of};

/// A model on its stages' devices and threads, ready to train.
///
/// It is made by [`Pipeline::builder`]. Dropping it ends its threads.
pub struct Pipeline<In: Payload, Target: Payload> {
    /// Of every replica.
    plan: Arc<Checked>,
    doors: Vec<Door<In, Target>>,
    weight: fn(&Target) -> Weight,
    /// Those of one replica after those of another.
    workers: Vec<WorkerHandle>,
    finished: Receiver<Outcome>,
    stepped: Receiver<Stepped>,
    recorded: Receiver<Recorded>,
    saved: Receiver<StageState>,
    stop: Arc<Stop>,
    stepping: Stepping,
    /// The communication stream of each replica's stages' devices, where transfers are ordered.
    streams: Vec<Vec<Option<usize>>>,
    /// Of training passes, of each replica.
    turns: Vec<Arc<Turns>>,
    /// The longest thing that a worker did in any step.
    longest: Duration,
    /// How many steps are done, those that were skipped included.
    steps: usize,
    optimizer_steps: u64,
    /// Whether a step is not over, of which nobody knows any more if it is still so when something else is asked for.
    is_in_flight: bool,
    /// Why the pipeline stopped, if nobody was there to be told.
    unsaid: Option<StepError>,
    /// When the last step ended.
    last_end: Instant,
    /// Whether the last step was none to put right: the next may be made ahead of its verdict.
    as_assumed: bool,
    /// What its tensors are called.
    layout: Layout,
    /// Each stage's parameters, and where they are, by replica.
    stages: Vec<Vec<(Device, Parameters)>>,
    /// In how many groups gradients are summed.
    groups: usize,
    /// Whether the watchdog has warned of what the workers were last asked for.
    warned: Cell<bool>,
    /// After how many floors of the watchdog, in which nothing began, hosts were asked whether they are there.
    asked: Cell<u32>,
    /// What the workers were last asked for, and when.
    during: During,
    began: Instant,
    /// The stages of the first replica, once their workers have ended.
    ended: Vec<Box<dyn Runner>>,
    /// Stages on hosts that do not answer any more.
    out_of_reach: Vec<usize>,
}

/// How long threads are waited for after an error, if no action takes long: one in an endless action cannot be ended from outside.
const AFTER_AN_ERROR: Duration = Duration::from_secs(5);

/// How steps are made.
pub(crate) struct Stepping {
    pub(crate) scaler: Scaler,
    /// Samples a step, until it was told that there are others.
    pub(crate) tuned_for: Option<usize>,
    pub(crate) flush: FlushConfig,
    /// Every how many steps actions are synchronised with their devices; 0 is never.
    pub(crate) synchronise_every: usize,
    pub(crate) watchdog: Option<Watchdog>,
    /// By stage.
    pub(crate) recompute: Arc<[Recompute]>,
}

impl Stepping {
    /// Whose time a step is recorded in.
    pub(crate) fn clock(&self, step: usize) -> Clock {
        let synchronised = self.synchronise_every > 0 && step.is_multiple_of(self.synchronise_every);
        if synchronised { Clock::Synchronised } else { Clock::Host }
    }
}

/// Where a replica's part of a batch enters.
pub(crate) struct Door<In, Target> {
    pub(crate) inputs: Sender<Vec<In>>,
    pub(crate) targets: Sender<Vec<Target>>,
}

/// A replica that is put up, and not yet started.
pub(crate) struct Prepared<In, Target> {
    pub(crate) door: Door<In, Target>,
    pub(crate) runners: Stages,
    /// The communication stream of each stage's device, where transfers are ordered.
    pub(crate) streams: Vec<Option<usize>>,
    pub(crate) stages: Vec<(Device, Parameters)>,
}

/// What replicas have in common.
pub(crate) struct Common<Target> {
    pub(crate) plan: Arc<Checked>,
    pub(crate) weight: fn(&Target) -> Weight,
    /// In how many groups gradients are summed.
    pub(crate) groups: usize,
    /// Of a worker.
    pub(crate) cores: usize,
    pub(crate) stepping: Stepping,
    pub(crate) layout: Layout,
}

struct WorkerHandle {
    replica: Replica,
    commands: Sender<Command>,
    verdicts: Sender<Verdict>,
    thread: JoinHandle<Vec<Box<dyn Runner>>>,
    post: Post,
    /// How many events there are in a step, or in a rehearsal.
    events: usize,
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    pub(crate) fn start(prepared: Vec<Prepared<In, Target>>, common: Common<Target>) -> Result<Self, BuildError> {
        let Common { plan, weight, groups, cores, stepping, layout } = common;
        let all_stages = prepared.len() * plan.plan().stages();
        let (finished_sender, finished) = bounded(all_stages);
        let (stepped_sender, stepped) = bounded(all_stages);
        let (recorded_sender, recorded) = bounded(prepared.len() * plan.plan().workers());
        let (saved_sender, saved) = bounded(plan.plan().stages());
        let lines = Lines {
            finished: finished_sender,
            stepped: stepped_sender,
            recorded: recorded_sender,
            saved: saved_sender,
        };
        let mut pipeline = Self {
            doors: Vec::new(),
            weight,
            workers: Vec::new(),
            finished,
            stepped,
            recorded,
            saved,
            stop: Arc::new(Stop::new()),
            stepping,
            turns: Turns::of_replicas(prepared.iter().map(|replica| (&*plan, &replica.streams))),
            streams: Vec::new(),
            longest: Duration::ZERO,
            steps: 0,
            optimizer_steps: 0,
            is_in_flight: false,
            unsaid: None,
            last_end: Instant::now(),
            as_assumed: true,
            layout,
            stages: Vec::new(),
            groups,
            warned: Cell::new(false),
            asked: Cell::new(0),
            during: During::Step(0),
            began: Instant::now(),
            ended: Vec::new(),
            out_of_reach: Vec::new(),
            plan,
        };
        for replica in prepared {
            pipeline.open(replica, &lines, cores)?;
        }
        Ok(pipeline)
    }

    /// Starts the workers of a replica.
    fn open(&mut self, prepared: Prepared<In, Target>, lines: &Lines, cores: usize) -> Result<(), BuildError> {
        let mut unseated: Vec<_> = prepared.runners.into_iter().map(Some).collect();
        for (index, stages) in self.plan.placement().stages_of().iter().enumerate() {
            let runners: Vec<_> = stages.iter().filter_map(|&stage| unseated[stage].take()).collect();
            let (commands, command_receiver) = bounded(1);
            let (verdicts, verdict_receiver) = bounded(1);
            let line = Line { commands: command_receiver, verdicts: verdict_receiver, lines: lines.clone() };
            let (replica, stage) = place_of(&runners);
            let post = Post::new(replica, stage);
            let thread = Worker::new(index, runners, line, Arc::clone(&self.stop), post.clone()).spawn(cores)?;
            let room = |plan: &Checked| events_of(plan, index, stages.len());
            let events = room(&self.plan).max(room(&self.plan.rehearsal()));
            self.workers.push(WorkerHandle { replica, commands, verdicts, thread, post, events });
        }
        self.doors.push(prepared.door);
        self.streams.push(prepared.streams);
        self.stages.push(prepared.stages);
        Ok(())
    }

    /// The plan of a step, which every replica follows.
    pub fn plan(&self) -> &Plan {
        self.plan.plan()
    }

    /// R: how many replicas there are.
    pub fn replicas(&self) -> usize {
        self.doors.len()
    }

    /// R x M: into how many micro-batches a batch is cut.
    fn pieces(&self) -> usize {
        self.replicas() * self.plan().micro_batches()
    }

    /// Trains on one batch: M micro-batches forward and backward, then one optimizer step on every stage. Of several replicas each
    /// has M micro-batches, in order.
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
        self.begin(During::Step(self.steps));
        match batch.cut(self.pieces(), self.weight) {
            Err(BatchError::NoWeight) => self.pass_over().map_err(|ended| self.end(ended)),
            cut => self.train(cut?).map_err(|ended| self.end(ended)),
        }
    }

    /// Evaluates one batch: forwards only, without a graph. A batch of fewer rows than micro-batches is cut into its rows.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn eval(&mut self, batch: Batch<In, Target>) -> Result<EvalReport, StepError> {
        self.running()?;
        let batch = batch.cut_up_to(self.pieces(), self.weight)?;
        self.evaluate(batch).map_err(|interrupt| self.end(interrupt))
    }

    /// Ends the threads and gives the modules back, with autodiff, as the last step left them.
    pub fn into_modules(mut self) -> Modules {
        self.join(None);
        Modules::new(std::mem::take(&mut self.ended), self.plan().stages())
    }

    /// What is asked of the workers from now on.
    fn begin(&mut self, during: During) {
        (self.during, self.began) = (during, Instant::now());
        self.warned.set(false);
    }

    fn running(&mut self) -> Result<(), StepError> {
        if self.is_in_flight {
            self.abandon();
        }
        if let Some(error) = self.unsaid.take() {
            return Err(error);
        }
        if self.workers.is_empty() { Err(StepError::Stopped { during: self.during }) } else { Ok(()) }
    }

    /// Stops and joins every worker; gives the one root cause.
    fn end(&mut self, ended: Ended) -> StepError {
        if let Ended::ByCaller(error) = ended {
            self.stop.raise(error);
        }
        let error = self.stop.take_error().map(|error| self.of_hosts(error));
        let patience = match &error {
            // Who waits for a lost host does not end.
            Some(StepError::HostsLost { hosts, .. }) => {
                self.give_up(hosts);
                Some(AFTER_AN_ERROR)
            }
            _ => self.stepping.watchdog.map(|watchdog| AFTER_AN_ERROR.max(watchdog.many(self.longest))),
        };
        self.join(patience);
        error.or_else(|| self.stop.take_error()).unwrap_or(StepError::Stopped { during: self.during })
    }

    /// Waits for a message of a worker, and looks meanwhile whether any of them still begins something.
    fn receive<R>(&self, messages: &Receiver<R>) -> Result<R, Ended> {
        let Some(watchdog) = self.stepping.watchdog else { return Ok(self.stop.receive(messages)?) };
        loop {
            if let Some(message) = self.stop.receive_within(messages, watchdog.interval())? {
                return Ok(message);
            }
            self.look(watchdog)?;
        }
    }

    /// Sends to a worker, and looks meanwhile as well.
    fn send<R>(&self, channel: &Sender<R>, mut message: R) -> Result<(), Ended> {
        let Some(watchdog) = self.stepping.watchdog else { return Ok(self.stop.send(channel, message)?) };
        while let Some(back) = self.stop.send_within(channel, message, watchdog.interval())? {
            message = back;
            self.look(watchdog)?;
        }
        Ok(())
    }

    /// Whether any worker still begins something.
    fn look(&self, watchdog: Watchdog) -> Result<(), Ended> {
        let limit = watchdog.limit(self.longest);
        let stall = Stall::seen(self.workers.iter().map(|worker| worker.post.places()), self.began, self.during);
        if stall.still > limit.saturating_add(watchdog.grace) {
            return Err(Ended::ByCaller(StepError::Stalled(Box::new(stall))));
        }
        if stall.still > limit && !self.warned.replace(true) {
            tracing::warn!(events = %stall.to_json(), "{stall}");
        }
        // To ask is cheap, so it need not be as long as many actions; but who is asked again and again is there.
        let floors = stall.still.div_duration_f64(watchdog.floor) as u32;
        if floors > self.asked.replace(floors) && floors.is_power_of_two() {
            let error = self.of_hosts(StepError::Stalled(Box::new(stall)));
            if matches!(error, StepError::HostsLost { .. }) {
                return Err(Ended::ByCaller(error));
            }
        }
        Ok(())
    }

    /// Ends every worker that still runs, and keeps the stages of the first replica. One that does not end in time is left behind.
    fn join(&mut self, patience: Option<Duration>) {
        // Without their ends of the channels.
        let workers: Vec<_> =
            self.workers.drain(..).map(|worker| (worker.replica, worker.thread, worker.post)).collect();
        let start = Instant::now();
        for (replica, thread, post) in workers {
            if patience.is_some_and(|patience| !ends_within(&thread, patience.saturating_sub(start.elapsed()))) {
                let Some(Place { stage, activity, .. }) = post.places().pop() else { continue };
                let replica = replica.index;
                tracing::error!(stage, replica, %activity, "a worker does not end: its thread and its modules are left behind");
                continue;
            }
            match thread.join() {
                Ok(runners) if replica.is_first() => self.ended.extend(runners),
                Ok(_) => {}
                Err(panic) => tracing::error!(failure = %Failure::of_panic(panic), "a worker thread was lost"),
            }
        }
    }
}

impl<In: Payload, Target: Payload> Drop for Pipeline<In, Target> {
    fn drop(&mut self) {
        self.join(None);
    }
}
