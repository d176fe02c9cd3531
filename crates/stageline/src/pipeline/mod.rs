//! The pipeline: the caller's handle, through which steps, evaluations and checkpoints are asked for.
//!
//! - `train`: one step; `overlapped_steps`: steps that overlap; `gradients`: the gradients of a batch without a step.
//! - `estimate_memory`: the memory that a step will need; `checkpoint`: the state to resume from.
//! - `passes`: what all stages are told of a pass; `workers`: the threads that run it.
//! - `report`: what a step returns; `modules`: the trained modules, at the end.

mod checkpoint;
mod estimate_memory;
mod gradients;
pub(crate) mod modules;
mod overlapped_steps;
mod passes;
pub(crate) mod report;
mod train;
pub(crate) mod workers;

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use stageline_schedule::{Checked, Plan};

pub(crate) use self::gradients::Probe;
pub use self::overlapped_steps::Steps;
use self::workers::{Ended, Prepared, Workers};
use crate::failure::activity::During;
use crate::failure::build_error::BuildError;
use crate::failure::step_error::StepError;
use crate::failure::watchdog::Watchdog;
use crate::memory::rehearsal::Parameters;
use crate::model::batch::{Batch, BatchError, MicroBatches};
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::pipeline::modules::Modules;
use crate::pipeline::report::{EvalReport, StepReport};
use crate::pipeline::workers::Replicated;
use crate::recording::Clock;
use crate::state::layout::Layout;
use crate::threads::cores::Cores;
use crate::transfer::order::Turns;
use crate::update::flush::{FlushConfig, Rollback};
use crate::update::loss_scale::Scaler;
use stageline_nn::autograd::recompute::Recompute;

/// A model on its stages' devices and threads, ready to train.
///
/// [`Pipeline::builder`] makes it, and dropping it ends its threads.
pub struct Pipeline<In: Payload, Target: Payload> {
    /// The plan that every replica follows.
    plan: Arc<Checked>,
    workers: Workers<In, Target>,
    weight: fn(&Target) -> Weight,
    stepping: Stepping,
    transfers: TransferOrder,
    done: Done,
    overlap: Overlap,
    /// The names of all tensors.
    layout: Layout,
    sizes: Sizes,
}

/// The order of transfers, for each replica.
struct TransferOrder {
    /// The communication stream of each stage's device, where transfers are ordered.
    streams: Vec<Vec<Option<usize>>>,
    /// The turns of a training pass.
    turns: Vec<Arc<Turns>>,
}

/// How far the training is.
struct Done {
    /// The number of steps, skipped ones included.
    steps: usize,
    optimizer_steps: u64,
    /// The number of steps after which the last checkpoint was taken or restored.
    last_checkpoint: Option<usize>,
}

/// The state between one step and the next, where steps may overlap.
struct Overlap {
    /// Whether a step is in flight. If it still is when something else is asked for, nobody waits for it any more.
    is_in_flight: bool,
    /// The error that stopped the pipeline while nobody waited for it.
    error: Option<StepError>,
    /// When the last step ended.
    last_end: Instant,
    /// Whether the last verdict was the assumed one; only then may the next step run ahead of its verdict.
    as_assumed: bool,
}

/// What an estimate of memory is made from.
struct Sizes {
    /// The device and the parameters of each stage, by replica.
    stages: Vec<Vec<(Device, Parameters)>>,
    /// The number of groups in which gradients are summed.
    groups: usize,
    cores: Cores,
}

/// What replicas have in common.
pub(crate) struct Common<Target> {
    pub(crate) plan: Arc<Checked>,
    pub(crate) weight: fn(&Target) -> Weight,
    /// The number of groups in which gradients are summed.
    pub(crate) groups: usize,
    pub(crate) cores: Cores,
    pub(crate) stepping: Stepping,
    pub(crate) layout: Layout,
    pub(crate) watchdog: Option<Watchdog>,
}

/// The settings of steps.
pub(crate) struct Stepping {
    pub(crate) scaler: Scaler,
    /// The samples per step for which the settings were tuned, until a warning has said that there are others.
    pub(crate) tuned_for: Option<usize>,
    pub(crate) flush: FlushConfig,
    /// The interval of steps in which actions are synchronised with their devices; 0 if none are.
    pub(crate) synchronise_every: usize,
    pub(crate) rollback: Rollback,
    /// What each stage recomputes.
    pub(crate) recompute: Arc<[Recompute]>,
}

impl Stepping {
    /// The clock by which a step is recorded.
    pub(crate) fn clock(&self, step: usize) -> Clock {
        let synchronised = self.synchronise_every > 0 && step.is_multiple_of(self.synchronise_every);
        if synchronised { Clock::Synchronised } else { Clock::Host }
    }
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// Starts the workers of all replicas.
    pub(crate) fn start(prepared: Vec<Prepared<In, Target>>, common: Common<Target>) -> Result<Self, BuildError> {
        let Common { plan, weight, groups, cores, stepping, layout, watchdog } = common;
        let turns = Turns::of_replicas(prepared.iter().map(|replica| (&*plan, &replica.streams)));
        let (mut replicas, mut streams, mut stages) = (Vec::new(), Vec::new(), Vec::new());
        for Prepared { input, runners, streams: of_stages, stages: known } in prepared {
            let devices = known.iter().map(|(device, _)| device.clone()).collect();
            replicas.push(Replicated { input, runners, devices });
            streams.push(of_stages);
            stages.push(known);
        }
        let of_one = cores.of_one(replicas.len() * plan.plan().workers());
        Ok(Self {
            workers: Workers::start(replicas, &plan, of_one, watchdog)?,
            plan,
            weight,
            stepping,
            transfers: TransferOrder { streams, turns },
            done: Done { steps: 0, optimizer_steps: 0, last_checkpoint: None },
            overlap: Overlap { is_in_flight: false, error: None, last_end: Instant::now(), as_assumed: true },
            layout,
            sizes: Sizes { stages, groups, cores },
        })
    }

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
        self.workers.replicas()
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
        self.workers.begin(During::Step(self.done.steps));
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
        Modules::new(self.workers.take_stages(), self.plan().stages())
    }

    /// Stops and joins every worker, and returns the one root cause.
    pub(crate) fn end(&mut self, ended: Ended) -> StepError {
        self.workers.end(ended, self.done.last_checkpoint)
    }

    /// Ends the threads. Workers in the middle of a step may wait for each other, so they are stopped first.
    fn finish(&mut self) {
        if self.overlap.is_in_flight {
            self.abandon();
        }
        self.workers.join(None);
    }

    fn running(&mut self) -> Result<(), StepError> {
        if self.overlap.is_in_flight {
            self.abandon();
        }
        if let Some(error) = self.overlap.error.take() {
            return Err(error);
        }
        match self.workers.running() {
            0 => Err(StepError::Stopped { during: self.workers.during() }),
            _ => Ok(()),
        }
    }
}

impl<In: Payload, Target: Payload> Drop for Pipeline<In, Target> {
    fn drop(&mut self) {
        self.finish();
    }
}
