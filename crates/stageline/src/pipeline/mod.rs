//! The pipeline: the caller's handle for training steps, evaluations, gradients, memory estimates and checkpoints.
//!
//! Takes assembled stages and the caller's batches. Runs every batch as a pass of all workers, decides how a step ends,
//! and returns reports, checkpoints and trained modules. Must not interpret plans or compute gradients, which the
//! workers do.
//!
//! - `train`: one step, from the command to the workers to the report.
//! - `overlapped_steps`: steps that begin before the verdict on the step before.
//! - `gradients`: the gradients of a batch without a step.
//! - `estimate_memory`: the memory that a step will need, and the recomputation with which it fits.
//! - `checkpoint`: the state to resume from.
//! - `passes`: the commands and contexts that describe a pass to the workers.
//! - `workers`: the threads, with their channels.
//! - `report`: the results of a step and of an evaluation.
//! - `modules`: the trained modules after the training.

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
use crate::model::batch::Batch;
use crate::model::batch_error::BatchError;
use crate::model::loss_weight::Weight;
use crate::model::micro_batches::MicroBatches;
use crate::model::payload::Payload;
use crate::pipeline::modules::Modules;
use crate::pipeline::report::{EvalReport, StepReport};
use crate::pipeline::workers::Replicated;
use crate::recording::Clock;
use crate::state::layout::Layout;
use crate::threads::cores::Cores;
use crate::transfer::order::Turns;
use crate::update::flush::FlushConfig;
use crate::update::loss_scale::Scaler;
use crate::update::optimizer_step::Rollback;
use stageline_nn::autograd::recompute::Recompute;

/// A model on its stages' devices and threads, ready to train.
///
/// [`Pipeline::builder`] begins the chain of stages from which a pipeline is built. Dropping the pipeline ends its
/// threads.
pub struct Pipeline<In: Payload, Target: Payload> {
    /// The plan that every replica follows.
    plan: Arc<Checked>,
    workers: Workers<In, Target>,
    /// The loss weight of a micro-batch, given its targets.
    weight: fn(&Target) -> Weight,
    stepping: Stepping,
    transfers: TransferOrder,
    done: Done,
    overlap: Overlap,
    /// The names of all tensors in a checkpoint.
    layout: Layout,
    sizes: Sizes,
}

/// The order of transfers between GPUs, for each replica.
struct TransferOrder {
    /// The communication stream of each stage's device, where transfers are ordered.
    streams: Vec<Vec<Option<usize>>>,
    /// The turns in which the transfers of a training pass are issued.
    turns: Vec<Arc<Turns>>,
}

/// The progress of the training.
struct Done {
    /// The number of steps, skipped ones included.
    steps: usize,
    /// The number of steps in which the optimizers stepped.
    optimizer_steps: u64,
    /// The number of steps after which the last checkpoint was taken or restored.
    last_checkpoint: Option<usize>,
}

/// The state between one step and the next, where steps may overlap.
struct Overlap {
    /// Whether workers run a step whose report the caller has not fetched. Any other call abandons such a step.
    is_in_flight: bool,
    /// The error of a rollback that stopped the pipeline after the caller had dropped its steps; the next call returns
    /// it.
    error: Option<StepError>,
    /// The time at which the last step ended.
    last_end: Instant,
    /// Whether the last verdict was the assumed one; only then may the next step run ahead of its verdict.
    as_assumed: bool,
}

/// The sizes from which a memory estimate is computed.
struct Sizes {
    /// The device and the parameters of each stage, by replica.
    stages: Vec<Vec<(Device, Parameters)>>,
    /// The number of groups in which gradients are summed.
    groups: usize,
    /// The cores that workers may use for their kernels.
    cores: Cores,
}

/// The settings that all replicas share, from the builder.
pub(crate) struct Common<Target> {
    pub(crate) plan: Arc<Checked>,
    /// The loss weight of a micro-batch, given its targets.
    pub(crate) weight: fn(&Target) -> Weight,
    /// The number of groups in which gradients are summed.
    pub(crate) groups: usize,
    pub(crate) cores: Cores,
    pub(crate) stepping: Stepping,
    pub(crate) layout: Layout,
    pub(crate) watchdog: Option<Watchdog>,
}

/// The settings of training steps.
pub(crate) struct Stepping {
    pub(crate) scaler: Scaler,
    /// The samples per step for which the learning rates and step counts were tuned; `None` if unset, or after the
    /// warning about another number of samples.
    pub(crate) tuned_for: Option<usize>,
    pub(crate) flush: FlushConfig,
    /// The interval of steps in which actions are synchronised with their devices; 0 if none are.
    pub(crate) synchronise_every: usize,
    pub(crate) rollback: Rollback,
    /// The part of each stage's forward that its backward recomputes.
    pub(crate) recompute: Arc<[Recompute]>,
}

impl Stepping {
    /// Returns the clock for the recording of a step.
    pub(crate) fn clock(&self, step: usize) -> Clock {
        let synchronised = self.synchronise_every > 0 && step.is_multiple_of(self.synchronise_every);
        if synchronised { Clock::Synchronised } else { Clock::Host }
    }
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// Creates a pipeline from assembled replicas, and starts its workers.
    pub(crate) fn start(prepared: Vec<Prepared<In, Target>>, common: Common<Target>) -> Result<Self, BuildError> {
        let Common { plan, weight, groups, cores, stepping, layout, watchdog } = common;
        let turns = Turns::of_replicas(prepared.iter().map(|replica| (&*plan, &replica.streams)));
        let (mut replicas, mut streams, mut stages) = (Vec::new(), Vec::new(), Vec::new());
        for Prepared { input, runners, streams: stage_streams, stages: stage_parameters } in prepared {
            let devices = stage_parameters.iter().map(|(device, _)| device.clone()).collect();
            replicas.push(Replicated { input, runners, devices });
            streams.push(stage_streams);
            stages.push(stage_parameters);
        }
        let cores_per_worker = cores.of_one(replicas.len() * plan.plan().workers());
        Ok(Self {
            workers: Workers::start(replicas, &plan, cores_per_worker, watchdog)?,
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

    /// Returns the plan of a step, which every replica follows.
    pub fn plan(&self) -> &Plan {
        self.plan.plan()
    }

    /// Returns the interval, in steps, of steps whose actions wait for their device
    /// ([`Clock::Synchronised`](crate::Clock::Synchronised)), beginning with step 0; 0 if there are none.
    pub fn synchronise_every(&self) -> usize {
        self.stepping.synchronise_every
    }

    /// Returns R, the number of replicas.
    pub fn replicas(&self) -> usize {
        self.workers.replicas()
    }

    /// Splits a batch into the micro-batches of a step, for all replicas.
    fn micro_batches(&self, batch: Batch<In, Target>) -> Result<MicroBatches<In, Target>, BatchError> {
        batch.cut(self.pieces(), self.weight).map_err(|error| error.of_replicas(self.replicas()))
    }

    /// Returns R x M, the number of micro-batches of a step.
    fn pieces(&self) -> usize {
        self.replicas() * self.plan().micro_batches()
    }

    /// Trains on one batch: M micro-batches pass forward and backward, then every stage steps its optimizer once. With
    /// R replicas the batch is split into R x M micro-batches; replica 0 has the first M, and so on.
    ///
    /// A step is skipped if its batch has no unmasked target. If the loss or a gradient is not finite, the step is
    /// skipped or fails, as set by [`on_non_finite`](crate::PipelineBuilder::on_non_finite). A skipped step leaves
    /// parameters, optimizer states and learning rates unchanged, and [`StepReport::update`] says why it was skipped.
    ///
    /// # Errors
    /// Returns [`StepError::Batch`] if the batch is rejected, which leaves the pipeline unchanged. Any other error
    /// stops the pipeline and ends its threads; [`into_modules`](Self::into_modules) then returns the modules.
    pub fn step(&mut self, batch: Batch<In, Target>) -> Result<StepReport, StepError> {
        self.running()?;
        self.workers.begin(During::Step(self.done.steps));
        match self.micro_batches(batch) {
            Err(BatchError::NoWeight) => self.pass_over().map_err(|ended| self.end(ended)),
            cut => self.train(cut?).map_err(|ended| self.end(ended)),
        }
    }

    /// Evaluates one batch: computes the loss by forwards without an autodiff graph, and trains nothing. A batch with
    /// fewer rows than a step has micro-batches is split into single rows.
    ///
    /// # Errors
    /// Returns the errors of [`step`](Self::step).
    pub fn eval(&mut self, batch: Batch<In, Target>) -> Result<EvalReport, StepError> {
        self.running()?;
        let batch = batch.cut_up_to(self.pieces(), self.weight)?;
        self.evaluate(batch).map_err(|interrupt| self.end(interrupt))
    }

    /// Ends the threads and returns the modules of all stages, on autodiff devices, as the last step left them.
    pub fn into_modules(mut self) -> Modules {
        self.finish();
        Modules::new(self.workers.take_stages(), self.plan().stages())
    }

    /// Stops and joins every worker, and returns the one root cause.
    pub(crate) fn end(&mut self, ended: Ended) -> StepError {
        self.workers.end(ended, self.done.last_checkpoint)
    }

    /// Ends the threads. Workers in the middle of a step may be waiting for each other, so they are stopped first.
    fn finish(&mut self) {
        if self.overlap.is_in_flight {
            self.abandon();
        }
        self.workers.join(None);
    }

    /// Abandons a step in flight, and returns an error if the pipeline has stopped.
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
