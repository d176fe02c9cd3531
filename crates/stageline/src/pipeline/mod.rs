//! The pipeline ([`Pipeline`]): the caller's handle for training steps, evaluation, inference, memory estimates and
//! checkpoints.
//!
//! Input: the assembled replicas and settings from `build`, then the caller's batches. Output: [`StepReport`],
//! [`EvalReport`], outputs, checkpoints, and the trained [`Modules`]. This folder owns the code that runs on the
//! caller's thread. This thread splits a batch into micro-batches, fills in the context of a pass (step number, loss
//! weights, loss scale), and commands the workers. Then it waits for the outcomes of all stages (losses, gradient
//! norms), decides the verdict on the step (whether all stages step their optimizers or skip it), and counts steps. The
//! thread also provides the values that differ between passes: each replica's part of the loss weights, the step
//! number, and the loss scale. For an evaluation, it creates the plan of forward passes and the order of transfers.
//! `build` creates only what is needed once, before the first step. This folder must not interpret plans or run a
//! model: the workers do.
//!
//! [`Pipeline`] keeps the checked plan and hands it to the workers with each request (`Asked`). It also keeps the
//! settings of steps (`Stepping`: loss scale, clock, rollback, each stage's `Recompute`), the counts of past steps
//! (`Done`), the state of overlapping steps (`Overlap`), the order of transfers and the sizes of stages. `update` sums
//! losses and metrics over the stages; this folder divides the sums by the loss weight (`LossTerm`, `Metric`) and
//! averages them over batches.
//!
//! - `train`: one training step, from the commands (`launch`) to the verdict, the loss scale and the report (`Begun`,
//!   `Concluded`); also skipped and abandoned steps. Divides the sums by the step's loss weight, and gives the recorded
//!   events of all workers one start time.
//! - `overlapped_steps`: training steps that begin before the verdict on the previous step; the iterator [`Steps`], and
//!   the reasons why a step ends early (`StepOver`).
//! - `passes`: the contexts (step, loss weights, loss scale, order of GPU transfers) and the requests of one pass for
//!   every replica's workers; evaluations, and second runs of steps with a NaN or infinite result (inspections).
//! - `gradients`: the gradients and losses of a batch, computed without an optimizer step (`Probe`).
//! - `estimate_memory`: rehearsals (steps that are run to measure memory, and rolled back), and the choice of each
//!   stage's `Recompute`: the least activation recomputation that lets training fit into memory.
//! - `checkpoint`: checkpoints of parameters, optimizer states, progress and `RunSettings`, from which training
//!   resumes; reads the states of all stages from running or ended workers.
//! - `infer`: outputs of the last stage, and snapshots of the modules, while the pipeline stays alive.
//! - `workers`: the worker threads (`Workers`): their number, their channels, their watchdog and their shutdown. It
//!   gathers their replies (`Outcome`, `Stepped`) in the order of replicas and stages.
//! - `report`: the reports of steps and evaluations (`StageReport`, `LossTerm`, `Metric`, `Update`: stepped or
//!   skipped), with the measured and the ideal bubble, and the means over several batches.
//! - `modules`: the trained modules of all stages (`Slot`), which the caller takes by their types (`ModuleError`).

mod checkpoint;
mod estimate_memory;
mod gradients;
mod infer;
pub(crate) mod modules;
mod overlapped_steps;
mod passes;
pub(crate) mod report;
mod train;
pub(crate) mod workers;

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;

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
use crate::model::micro_batches::MicroBatches;
use crate::model::payload::Payload;
use crate::model::scoring::{Scoring, WeightOf};
use crate::pipeline::modules::Modules;
use crate::pipeline::report::{EvalReport, StepReport};
use crate::pipeline::workers::Replicated;
use crate::recording::Clock;
use crate::state::layout::Layout;
use crate::state::parameter_count::ParameterCount;
use crate::threads::cores::Cores;
use crate::transfer::order::Turns;
use crate::update::flush::FlushConfig;
use crate::update::loss_scale::Scaler;
use crate::update::optimizer_step::Rollback;
use stageline_nn::Recompute;
use stageline_schedule::{Checked, Plan};

/// A pipeline-parallel model, ready to train: its stages are on their devices, and its worker threads run.
///
/// [`Pipeline::builder`] returns an empty chain of stages. The stages of a model are added to the chain in order, and
/// the pipeline is built from it. Dropping the pipeline ends its worker threads.
pub struct Pipeline<In: Payload, Out: Payload, Target: Payload> {
    plan: Arc<Checked>,
    workers: Workers<In, Out, Target>,
    scoring: Scoring<Target>,
    stepping: Stepping,
    transfers: TransferOrder,
    done: Done,
    overlap: Overlap,
    layout: Layout,
    sizes: Sizes,
}

/// The order in which the workers of each data-parallel replica issue transfers between GPUs.
struct TransferOrder {
    /// The index of the queue of GPU transfers (communication stream) on the device of each stage, by replica and
    /// stage. Devices with the same index share one order of transfers. `None` for a device whose transfers need no
    /// order.
    streams: Vec<Vec<Option<usize>>>,
    /// The fixed order in which each replica issues the GPU transfers of a training pass, so that NCCL cannot deadlock.
    turns: Vec<Arc<Turns>>,
}

/// The progress of the training run: its step counts, its last learning rate, and the step of its last checkpoint.
struct Done {
    /// The number of training steps that the pipeline has made so far, skipped steps included.
    steps: usize,
    /// The number of training steps in which the optimizers stepped, without skipped steps.
    optimizer_steps: u64,
    /// The learning rate of the first stage in the last optimizer step; `None` before the first optimizer step.
    learning_rate: Option<f64>,
    /// The number of training steps that had been made when the latest checkpoint was taken or restored; `None` if
    /// there is no checkpoint.
    last_checkpoint: Option<usize>,
}

/// The state of overlapping steps, where a step may begin before the previous step has ended.
struct Overlap {
    /// Whether the workers run a training step whose report the caller has not fetched from [`Steps`] yet. Any other
    /// method call then stops the pipeline and rolls back this step.
    is_in_flight: bool,
    /// The error of a failed rollback, which the next step, evaluation or inference returns; `None` if none failed. A
    /// step in flight is rolled back when the caller drops [`Steps`], the iterator over overlapping steps.
    error: Option<StepError>,
    /// The end time of the last training step. With overlapping steps, the next step's duration is measured from this
    /// time if the next step began earlier.
    last_end: Instant,
    /// Whether the verdict on the last step was the one that stages assume in advance when steps overlap: finite
    /// results, and gradients that need no clipping. If false, the stages assume nothing in the next step: they wait
    /// for its verdict (step or skip) before they step their optimizers.
    as_assumed: bool,
}

/// Inputs of the memory estimate that are known before the first step: the stages' devices and parameter sizes, the
/// number of gradient groups, and the CPU cores.
struct Sizes {
    /// The device and the parameter sizes of each stage, by replica and stage.
    stages: Vec<Vec<(Device, Parameters)>>,
    groups: usize,
    cores: Cores,
}

/// The builder's settings that all replicas of the pipeline share.
pub(crate) struct Common<Target> {
    pub(crate) plan: Arc<Checked>,
    pub(crate) scoring: Scoring<Target>,
    /// The number of groups of micro-batches whose gradients are summed separately, before the sums of the groups are
    /// added up.
    pub(crate) groups: usize,
    pub(crate) cores: Cores,
    pub(crate) stepping: Stepping,
    pub(crate) layout: Layout,
    pub(crate) watchdog: Option<Watchdog>,
}

/// The settings of training steps, such as loss scale, gradient clipping and rollback.
pub(crate) struct Stepping {
    pub(crate) scaler: Scaler,
    /// The number of samples per step for which the user tuned the learning rates. `None` if unset, or once a warning
    /// was logged that a batch has another number of samples.
    pub(crate) tuned_for: Option<usize>,
    pub(crate) flush: FlushConfig,
    /// The interval, in training steps, between synchronised steps, in which workers wait for their device after every
    /// action (such as a forward pass) to record exact times; 0 if no step is synchronised.
    pub(crate) synchronise_every: usize,
    pub(crate) rollback: Rollback,
    pub(crate) recompute: Arc<[Recompute]>,
}

impl Stepping {
    /// Returns how the events of a step are timed. In every `synchronise_every`-th step, workers wait for the device
    /// after every action, such as a forward pass. In other steps they only read the host's clock.
    pub(crate) fn clock(&self, step: usize) -> Clock {
        let synchronised = self.synchronise_every > 0 && step.is_multiple_of(self.synchronise_every);
        if synchronised { Clock::Synchronised } else { Clock::Host }
    }
}

impl<In: Payload, Out: Payload, Target: Payload> Pipeline<In, Out, Target> {
    /// Creates a pipeline and starts its worker threads. The stages of the `prepared` replicas are on their devices and
    /// connected by channels.
    pub(crate) fn start(prepared: Vec<Prepared<In, Out, Target>>, common: Common<Target>) -> Result<Self, BuildError> {
        let Common { plan, scoring, groups, cores, stepping, layout, watchdog } = common;
        let turns = Turns::of_replicas(prepared.iter().map(|replica| (&*plan, &replica.streams)));
        let (mut replicas, mut streams, mut stages) = (Vec::new(), Vec::new(), Vec::new());
        for Prepared { channels, runners, streams: stage_streams, stages: stage_parameters } in prepared {
            let devices = stage_parameters.iter().map(|(device, _)| device.clone()).collect();
            replicas.push(Replicated { channels, runners, devices });
            streams.push(stage_streams);
            stages.push(stage_parameters);
        }
        let cores_per_worker = cores.of_one(replicas.len() * plan.plan().workers());
        Ok(Self {
            workers: Workers::start(replicas, &plan, cores_per_worker, watchdog)?,
            plan,
            scoring,
            stepping,
            transfers: TransferOrder { streams, turns },
            done: Done { steps: 0, optimizer_steps: 0, learning_rate: None, last_checkpoint: None },
            overlap: Overlap { is_in_flight: false, error: None, last_end: Instant::now(), as_assumed: true },
            layout,
            sizes: Sizes { stages, groups, cores },
        })
    }

    /// Returns the plan of a training step: the order of actions on each worker. All replicas follow the same plan.
    pub fn plan(&self) -> &Plan {
        self.plan.plan()
    }

    /// Returns the interval, in training steps, between synchronised steps
    /// ([`Clock::Synchronised`](crate::Clock::Synchronised)). Their workers wait for their device after every action,
    /// such as a forward pass. Step 0 is the first such step. The interval is 0 if no step is synchronised.
    pub fn synchronise_every(&self) -> usize {
        self.stepping.synchronise_every
    }

    /// Returns R, the number of data-parallel replicas of the pipeline; 1 without data parallelism.
    pub fn replicas(&self) -> usize {
        self.workers.replicas()
    }

    /// Returns the sizes of each stage's parameters, in the order of the stages. Running statistics, such as a batch
    /// norm's mean, count as frozen parameters. A tied parameter counts only for the first stage that has it.
    pub fn parameters(&self) -> Vec<ParameterCount> {
        self.layout.elements()
    }

    /// Whether at least one parameter is trainable. If all are frozen, training steps change nothing.
    pub fn trains(&self) -> bool {
        self.layout.trains()
    }

    fn micro_batches(&self, batch: Batch<In, Target>) -> Result<MicroBatches<In, Target>, BatchError> {
        self.micro_batches_with(batch, &*self.scoring.weight)
    }

    /// Splits a batch into the micro-batches of a step. `weight` computes the loss weight of a micro-batch from its
    /// targets.
    fn micro_batches_with(
        &self,
        batch: Batch<In, Target>,
        weight: &WeightOf<'_, Target>,
    ) -> Result<MicroBatches<In, Target>, BatchError> {
        batch.cut(self.pieces(), weight).map_err(|error| error.of_replicas(self.replicas()))
    }

    /// Returns R x M, the number of micro-batches of a training step: M for each of R replicas.
    fn pieces(&self) -> usize {
        self.replicas() * self.plan().micro_batches()
    }

    /// Trains on one batch: runs forward and backward passes on its M micro-batches (M is set in the builder), then
    /// steps every stage's optimizer once. With R data-parallel replicas the batch is split into R x M micro-batches;
    /// replica 0 has the first M, and so on.
    ///
    /// A step is skipped if its batch has no unmasked target. If the loss or a gradient is not finite, the step is
    /// skipped or fails, as set by [`on_non_finite`](crate::PipelineBuilder::on_non_finite). A skipped step leaves
    /// parameters, optimizer states and learning rates unchanged, and [`StepReport::update`] says why it was skipped.
    ///
    /// # Errors
    /// Returns [`StepError::Batch`] if the batch is rejected, which leaves the pipeline unchanged. Any other error
    /// stops the pipeline and ends its threads. The modules are still available from
    /// [`into_modules`](Self::into_modules).
    pub fn step(&mut self, batch: Batch<In, Target>) -> Result<StepReport, StepError> {
        self.running()?;
        self.workers.begin(During::Step(self.done.steps));
        match self.micro_batches(batch) {
            Err(BatchError::NoWeight) => self.pass_over().map_err(|ended| self.end(ended)),
            cut => self.train(cut?).map_err(|ended| self.end(ended)),
        }
    }

    /// Evaluates one batch: computes its loss and metrics by forward passes without an autodiff graph, and changes no
    /// parameters. A batch with fewer rows than a step has micro-batches is split into single rows. A batch without any
    /// unmasked target is an error ([`BatchError::NoWeight`]).
    ///
    /// # Errors
    /// Returns the same errors as [`step`](Self::step).
    pub fn eval(&mut self, batch: Batch<In, Target>) -> Result<EvalReport, StepError> {
        self.running()?;
        let batch = batch.cut_up_to(self.pieces(), &*self.scoring.weight)?;
        self.evaluate(batch).map_err(|interrupt| self.end(interrupt))
    }

    /// Ends the worker threads and returns the modules of all stages, on autodiff devices, as the last training step
    /// left them.
    pub fn into_modules(mut self) -> Modules {
        self.finish();
        let runners = self.workers.take_stages().into_iter();
        let modules = runners.filter_map(|runner| Some((runner.stage(), runner.into_module()?)));
        Modules::new(modules, self.plan().stages())
    }

    /// Returns the number of training steps that the pipeline has made or skipped, which is also the number of the next
    /// step. After a resume, the steps before the checkpoint count too.
    pub fn steps_done(&self) -> usize {
        self.done.steps
    }

    /// Makes the next training step repeat step `step`, the last one, which changed no parameters. If the pipeline has
    /// stopped, the next step returns the error.
    pub(crate) fn rewind_to(&mut self, step: usize) {
        self.done.steps = step;
        // The workers' count of committed steps is lowered too. Otherwise a stage that has made the repeated step would
        // commit that step, even if another stage fails in it.
        let _ = self.workers.commit(step);
    }

    /// Stops and joins every worker thread after a failure (`ended`), and returns the root-cause error.
    pub(crate) fn end(&mut self, ended: Ended) -> StepError {
        self.workers.end(ended, self.done.last_checkpoint)
    }

    /// Ends the worker threads of the pipeline. A training step that is still running is stopped and rolled back first.
    fn finish(&mut self) {
        // A panic of the caller's thread may come after one replica's commands and before the next replica's. Then the
        // first replica waits for the second, so the workers must be stopped.
        let interrupted = std::thread::panicking() && self.workers.running() > 0;
        if self.overlap.is_in_flight || interrupted {
            self.abandon();
        }
        self.workers.join(None);
    }

    /// Returns an error if the pipeline has stopped. If the workers still run a step whose report the caller has not
    /// fetched, stops the pipeline, rolls back this step, and returns an error.
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

impl<In: Payload, Out: Payload, Target: Payload> Drop for Pipeline<In, Out, Target> {
    fn drop(&mut self) {
        self.finish();
    }
}
