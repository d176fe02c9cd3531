//! The caller's handle: what is asked of a pipeline.
//!
//! - `train`: a step; `steps`: one after the other; `probe`: gradients without a step; `rehearse`: what a step will hold.
//! - `pass`: what both ask of the workers; `look`: waiting for them; `hosts`: those that are lost; `start` and `end`: of its threads.

mod checkpoint;
mod estimate_memory;
mod gradients;
pub(crate) mod modules;
mod overlapped_steps;
pub(crate) mod report;
mod train;
mod workers;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use stageline_schedule::{Checked, Plan};

pub(crate) use self::gradients::Probe;
pub use self::overlapped_steps::Steps;
pub(crate) use self::workers::start::{BatchInput, Common, Prepared};
use crate::failure::activity::During;
use crate::failure::step_error::StepError;
use crate::failure::stop::Stop;
use crate::failure::watchdog::{ProgressBoard, Watchdog};
use crate::memory::rehearsal::Parameters;
use crate::model::batch::{Batch, BatchError, MicroBatches};
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::model::replica::Replica;
use crate::nn::autograd::recompute::Recompute;
use crate::pipeline::modules::Modules;
use crate::pipeline::report::{EvalReport, StepReport};
use crate::recording::Clock;
use crate::runner::Runner;
use crate::state::layout::{Layout, StageState};
use crate::threads::cores::Cores;
use crate::threads::{JoinHandle, Receiver, Sender};
use crate::transfer::order::Turns;
use crate::update::flush::{FlushConfig, Outcome, Rollback, Verdict};
use crate::update::loss_scale::Scaler;
use crate::worker::messages::{Command, Recorded, Stepped};

/// A model on its stages' devices and threads, ready to train.
///
/// It is made by [`Pipeline::builder`]. Dropping it ends its threads.
pub struct Pipeline<In: Payload, Target: Payload> {
    /// Of every replica.
    plan: Arc<Checked>,
    doors: Vec<BatchInput<In, Target>>,
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
    /// After how many steps the last checkpoint was taken, or restored.
    last_checkpoint: Option<usize>,
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
    cores: Cores,
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

/// How steps are made.
pub(crate) struct Stepping {
    pub(crate) scaler: Scaler,
    /// Samples a step, until it was told that there are others.
    pub(crate) tuned_for: Option<usize>,
    pub(crate) flush: FlushConfig,
    /// Every how many steps actions are synchronised with their devices; 0 is never.
    pub(crate) synchronise_every: usize,
    pub(crate) rollback: Rollback,
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

struct WorkerHandle {
    replica: Replica,
    commands: Sender<Command>,
    verdicts: Sender<Verdict>,
    thread: JoinHandle<Vec<Box<dyn Runner>>>,
    post: ProgressBoard,
    /// How many events there are in a step, or in a rehearsal.
    events: usize,
    /// Bytes of the buffer for products of each of its kernel threads.
    packing_buffer: u64,
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// The plan of a step, which every replica follows.
    pub fn plan(&self) -> &Plan {
        self.plan.plan()
    }

    /// The interval of steps that are timed by the device's clock ([`Clock::Synchronised`](crate::Clock)), starting with step 0; 0 if
    /// no step is.
    pub fn synchronise_every(&self) -> usize {
        self.stepping.synchronise_every
    }

    /// R: how many replicas there are.
    pub fn replicas(&self) -> usize {
        self.doors.len()
    }

    /// The micro-batches of a step, of all replicas.
    fn micro_batches(&self, batch: Batch<In, Target>) -> Result<MicroBatches<In, Target>, BatchError> {
        batch.cut(self.pieces(), self.weight).map_err(|error| error.of_replicas(self.replicas()))
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
        match self.micro_batches(batch) {
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
        self.finish();
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
}
