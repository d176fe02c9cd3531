//! Workers: a [`Worker`] is one thread that executes its list of instructions in the plan, for the stages that are
//! placed on it.
//!
//! Input: commands from the caller, and verdicts (whether all stages step their optimizers or skip the step). Output:
//! the outcome (losses, gradient norms) and the report of every stage, the recorded events, and copies of states and
//! modules. This folder owns the loop of a worker thread: it receives a command, executes each instruction on the
//! runner of the instruction's stage, records each activity, and ends the step at the flush. It catches panics and
//! reports them through the stop signal. A worker must not know how a plan was generated, or which tensors a runner
//! computes.
//!
//! For each piece of work, such as an instruction, the worker calls one method of the stage's runner. Of an
//! instruction, it reads only the stage and the micro-batch; the runner matches on the instruction and executes it. The
//! worker records each piece of work as an event in its `Diary`, with the time spent waiting and the allocated memory,
//! as measured by its `Gauges`. This file also spawns the worker's thread (`Started`), with its thread pool for
//! computations on the CPU and its `Meter`, which tracks allocated host memory.
//!
//! - `flush`: the end of a step: reduction over replicas, outcomes of stages, wait for the verdict, and the optimizer
//!   step of every stage.
//! - `messages`: the commands (`Command`, `Run`), requests (`Asked`, with the plan) and replies (`Stepped`, `Recorded`)
//!   between the caller and the workers, and their channels (`WorkerChannels`, `ReplySenders`).
//! - `last_verdict`: whether the verdict on a worker's last step is known, assumed or mispredicted (`Last`).
//! - `speculate`: speculative steps, whose optimizer step is made before the verdict is known: polling for the verdict,
//!   commit, rollback and misprediction.
//! - `spans`: the tracing spans of a worker's activities.

mod flush;
mod last_verdict;
pub(crate) mod messages;
mod spans;
mod speculate;

use stageline_schedule::{Action, Activity, Checked, Compute, Instruction};

use crate::worker::spans::note_wait;
use crate::worker::spans::span;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::device::location::is_host;
use crate::failure::activity::{During, StageFailure};
use crate::failure::build_error::BuildError;
use crate::failure::step_error::StepError;
use crate::failure::stop::{Stop, Waits};
use crate::failure::watchdog::ProgressBoard;
use crate::model::replica::{Replica, ReplicaStage};
use crate::recording::allocator::Meter;
use crate::recording::events::Diary;
use crate::recording::gauges::Gauges;
use crate::runner::pass::Pass;
use crate::runner::{Interrupt, Runner};
use crate::threads::failure::Failure;
use crate::threads::{JoinHandle, Sender, bounded, kernels, spawn};
use crate::update::flush::Verdict;
use crate::worker::last_verdict::Last;
use crate::worker::messages::{Asked, Command, Recorded, ReplySenders, Run, WorkerChannels};
use stageline_nn::after_step;
use stageline_nn::failed_layer;
use stageline_nn::kernels::{prepare_process, prepare_thread};

pub(crate) struct Started {
    /// The handle of the worker's thread. Joining it returns the runners of the worker's stages, which contain the
    /// modules.
    pub(crate) thread: JoinHandle<Vec<Box<dyn Runner>>>,
    /// Size in bytes of the matrix-product buffers that each of the worker's CPU threads keeps in host memory; 0 if the
    /// size is not measured.
    pub(crate) product_buffers: u64,
}

/// A worker: a thread that executes one list of instructions of the plan. It owns the stages that are placed on it, and
/// its channels to the caller.
pub(crate) struct Worker {
    pub(super) replica: Replica,
    /// Zero-based index of the worker within its data-parallel replica. It is also the index of the worker's list of
    /// instructions in the plan.
    pub(super) index: usize,
    /// The runners of the worker's stages. A runner contains a stage's module, and executes the instructions for this
    /// stage, such as a forward pass.
    pub(super) runners: Vec<Box<dyn Runner>>,
    pub(super) channels: WorkerChannels,
    pub(super) waits: Waits,
    pub(super) diary: Diary,
    pub(super) gauges: Gauges,
    /// Zero-based number of the worker's last training step, while it may still have to be rolled back because other
    /// stages may not have completed it. `None` if there is no such step.
    pub(super) uncommitted: Option<usize>,
    /// Whether the verdict on the worker's last training step (step the optimizers, or skip) is known, only assumed, or
    /// was mispredicted.
    pub(super) last: Last,
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        runners: Vec<Box<dyn Runner>>,
        channels: WorkerChannels,
        stop: Arc<Stop>,
        board: ProgressBoard,
    ) -> Self {
        let ReplicaStage { replica, stage } = place_of(&runners);
        let diary = Diary::new(replica, stage, board);
        Self {
            replica,
            index,
            runners,
            channels,
            waits: Waits::new(stop),
            diary,
            gauges: Gauges::new(),
            uncommitted: None,
            last: Last::Known,
        }
    }

    /// Starts the worker's thread, which is named after the worker's first stage. The thread also belongs to a new pool
    /// of `cores` threads that compute on the CPU for this worker. The thread ends when the caller drops the command
    /// channel, or when the pipeline stops. With a stage on this host's CPU, first changes the settings of the
    /// process's allocator (`prepare_process`).
    ///
    /// # Errors
    /// Returns [`BuildError::Spawn`] if the worker's thread cannot be started, and [`BuildError::Pool`] if its thread
    /// pool cannot be started.
    pub(crate) fn spawn(mut self, cores: usize) -> Result<Started, BuildError> {
        let worker = self.index;
        let name = match (self.diary.stage, self.replica) {
            (stage, Replica { of: 1, .. }) => format!("stage-{stage}"),
            (stage, Replica { index, .. }) => format!("stage-{stage}-r{index}"),
        };
        let (ready, is_ready) = bounded(1);
        let on_host = self.runners.iter().any(|runner| is_host(runner.device()));
        if on_host {
            prepare_process();
        }
        let thread = spawn(&name.clone(), move || {
            let meter = Meter::start();
            self.gauges.meter = meter;
            let prepare = move || {
                meter.into_iter().for_each(Meter::count_this_thread);
                // Buffers are allocated before the first step, so that they do not count as the memory of a step.
                if on_host {
                    prepare_thread();
                }
            };
            let held = || meter.map_or(0, Meter::held) as u64;
            let before = held();
            prepare();
            let product_buffers = held() - before;
            let pool = kernels(&name, cores, prepare);
            let built = pool.as_ref().map(|_| product_buffers).map_err(Clone::clone);
            if ready.send(built).is_ok() && pool.is_ok() {
                self.serve();
            }
            self.runners
        });
        let thread = thread.map_err(|cause| BuildError::Spawn { worker, cause })?;
        match is_ready.recv() {
            Ok(Ok(product_buffers)) => Ok(Started { thread, product_buffers }),
            Ok(Err(cause)) => Err(BuildError::Pool { worker, cores, cause }),
            Err(_) => Err(BuildError::Pool { worker, cores, cause: "its thread panicked".to_owned() }),
        }
    }

    /// Executes the caller's commands until the caller drops the command channel, the pipeline stops, or a stage fails.
    /// Finally makes the worker's last training step final if all stages have completed it; otherwise rolls it back.
    fn serve(&mut self) {
        // A tracing subscriber is the user's code and may panic while it logs a failure. The worker then still ends
        // here, with its last step committed or rolled back.
        let _ = catch_unwind(AssertUnwindSafe(|| self.execute_commands()));
        match self.uncommitted {
            Some(step) if step >= self.waits.committed() => {
                self.roll_back();
                after_step::forget_kept();
            }
            _ => self.commit_last(),
        }
    }

    /// Commits the worker's last training step when the worker ends. An update that a layer registered with
    /// `after_step` may panic here. The parameters are committed by then, so the panic is reported as a failure of the
    /// stage, and the stages are not lost with the thread.
    fn commit_last(&mut self) {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.commit())) {
                self.fail(Failure::of_panic(panic));
            }
        }));
    }

    /// Executes the caller's commands until the caller drops the command channel, the pipeline stops, or a stage fails.
    fn execute_commands(&mut self) {
        while let Ok(command) = self.waits.receive(&self.channels.commands) {
            match catch_unwind(AssertUnwindSafe(|| self.execute(command))) {
                Ok(Ok(())) => {}
                Ok(Err(Interrupt::Stopped)) => return,
                Ok(Err(Interrupt::Failed(error))) => return self.fail(Failure::Error(error)),
                Err(panic) => return self.fail(Failure::of_panic(panic)),
            }
        }
    }

    /// Stops all workers because of `failure`, an error or panic of one of this worker's stages. The stop signal is
    /// sent before the failure is logged, because logging may run the user's code (a tracing subscriber), which may
    /// panic.
    fn fail(&self, failure: Failure) {
        let Diary { replica, stage, activity, during, .. } = self.diary;
        // The layer is known only for a forward pass. A backward pass with recomputation runs layers too, but not as a
        // sequence of the whole stage, so their paths would be wrong.
        let is_forward =
            matches!(activity, Activity::Instruction(Instruction::Compute(Action { compute: Compute::Forward, .. })));
        let layer = failed_layer().filter(|_| is_forward);
        let failure = StageFailure { replica, stage, activity, layer, during, failure, elsewhere: Vec::new() };
        self.waits.raise(StepError::Stage(Box::new(failure)));
        tracing::error!(stage, replica = replica.index, %activity, %during, "a stage failed, so the pipeline stops");
    }

    fn execute(&mut self, command: Command) -> Result<(), Interrupt> {
        match command {
            Command::Run(run) => self.run(run)?,
            Command::Save { during, frozen_from } => {
                self.send_copies(during, |runner| runner.state(frozen_from), |replies| &replies.saved)?;
            }
            Command::Copy { during } => {
                let copy = |runner: &dyn Runner| (runner.stage(), runner.copy());
                self.send_copies(during, copy, |replies| &replies.copied)?;
            }
            Command::Settle { during } => {
                self.diary.open(during, Instant::now(), Vec::new());
                self.settle()?;
            }
        }
        // Until the next command, the worker waits for the caller.
        self.diary.enter(self.diary.stage, Activity::Idle);
        Ok(())
    }

    /// Commits the worker's last training step (makes it final), and sends the caller a copy of each of the worker's
    /// stages, for a checkpoint or snapshot. `copy` copies one stage, and `replies` selects the channel for the copies.
    fn send_copies<T>(
        &mut self,
        during: During,
        copy: impl Fn(&dyn Runner) -> T,
        replies: impl Fn(&ReplySenders) -> &Sender<T>,
    ) -> Result<(), Interrupt> {
        self.diary.open(during, Instant::now(), Vec::new());
        self.commit();
        for runner in &self.runners {
            // Each copy is a separate activity for the watchdog, so that making many copies does not look like a stall.
            self.diary.open(during, Instant::now(), Vec::new());
            self.diary.enter(runner.stage(), Activity::Save);
            let _entered = span(&self.diary).entered();
            self.waits.send(replies(&self.channels.replies), copy(&**runner))?;
        }
        Ok(())
    }

    /// Runs one step, evaluation or inference on this worker's stages: executes this worker's instructions of the plan,
    /// and in a training step also the optimizer step. If a training step began before the verdict on the previous step
    /// was known, and this verdict differs from the assumed one, the training step is discarded.
    fn run(&mut self, Run { asked, events }: Run) -> Result<(), Interrupt> {
        let Asked { during, plan, pass, clock, began, flush, behind } = asked;
        self.gauges.begin(clock, self.runners.iter().map(|runner| runner.device()));
        self.waits.take();
        self.diary.open(during, began, events);
        if !behind {
            // All stages have completed the last step: only a step that begins `behind` an unknown verdict is commanded
            // earlier.
            self.commit();
        }
        for runner in &mut self.runners {
            self.diary.enter(runner.stage(), Activity::Start);
            let _entered = span(&self.diary).entered();
            runner.begin(&pass, &self.waits)?;
            self.diary.leave(self.waits.take(), self.gauges.read(runner.device()));
        }
        for instruction in plan.instructions(self.index) {
            self.interpret(instruction)?;
        }
        if behind && !self.settle()? {
            return Ok(());
        }
        if let Pass::Train(context) = &pass {
            self.reduce(context.step)?;
        }
        let finite = self.finish()?;
        match pass {
            Pass::Train(context) => {
                self.flush(context.step, flush, finite)?;
                let recorded = Recorded { replica: self.replica, worker: self.index, events: self.diary.close() };
                self.waits.send(&self.channels.replies.recorded, recorded)?;
            }
            Pass::Inspect(context) => self.conclude(context.step, Verdict::Skip)?,
            Pass::Evaluate(_) | Pass::Infer(_) => after_step::skipped(),
        }
        Ok(())
    }

    /// Executes one instruction of the plan (a computation, a send or a receive) on the instruction's stage, and
    /// records its event and its tracing span.
    fn interpret(&mut self, instruction: Instruction) -> Result<(), Interrupt> {
        self.waits.check()?;
        self.poll_verdict()?;
        let stage = instruction.stage();
        self.diary.enter(stage, Activity::Instruction(instruction));
        let runner = self.runners.iter_mut().find(|runner| runner.stage() == stage);
        let runner = runner.expect("a checked plan keeps a stage on one worker");
        let micro_batch = instruction.micro_batch();
        let (action, during) = (tracing::field::display(instruction), tracing::field::display(self.diary.during));
        let (waited_us, waited_for) = (tracing::field::Empty, tracing::field::Empty);
        let replica = self.replica.index;
        let span = tracing::trace_span!("action", replica, stage, action, micro_batch, during, waited_us, waited_for);
        let _entered = span.enter();
        self.diary.sent = runner.run(instruction, &self.waits)?;
        let waited = self.waits.take();
        note_wait(&span, self.diary.activity, waited);
        self.diary.leave(waited, self.gauges.read(runner.device()));
        Ok(())
    }
}

/// Returns the replica and the stage index of a worker's first stage; `runners` are the worker's stages. Returns
/// replica 0 and stage 0 if there are none.
pub(crate) fn place_of(runners: &[Box<dyn Runner>]) -> ReplicaStage {
    let first = ReplicaStage { replica: Replica::default(), stage: 0 };
    runners.first().map_or(first, |runner| ReplicaStage { replica: runner.replica(), stage: runner.stage() })
}

/// Returns the largest number of events (timed computations, transfers and waits) that a worker records in one step,
/// for allocating their list. `worker` is the worker's index in `plan`, and `stages` is its number of stages.
pub(crate) fn events_of(plan: &Checked, worker: usize, stages: usize) -> usize {
    const AROUND_EACH_STAGE: usize = 5; // the activities start, reduction, finish, optimizer step and follow
    const VERDICTS: usize = 2; // the verdict on this step, and the verdict on the step before
    plan.instructions(worker).count() + AROUND_EACH_STAGE * stages + VERDICTS
}
