//! One thread: takes its list of instructions and interprets it. Nothing else knows threads.

pub(crate) mod messages;
mod spans;
mod speculate;

use crate::worker::spans::note_wait;
use crate::worker::spans::span;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use stageline_schedule::{Checked, Instruction};

use crate::device::location::is_host;
use crate::failure::activity::{Activity, During, StageFailure};
use crate::failure::build_error::BuildError;
use crate::failure::step_error::StepError;
use crate::failure::stop::{Stop, Stopped, Waits};
use crate::failure::watchdog::ProgressBoard;
use crate::model::replica::Replica;
use crate::recording::allocator::Meter;
use crate::recording::events::{Diary, Reading};
use crate::recording::gauges::Gauges;
use crate::runner::pass::Pass;
use crate::runner::{Interrupt, Runner};
use crate::threads::failure::Failure;
use crate::threads::{JoinHandle, bounded, kernels, spawn};
use crate::update::flush::{Flush, Verdict};
use crate::worker::messages::{Asked, Command, Recorded, Run, Stepped, WorkerChannels};
use stageline_nn::forward::after_step;
use stageline_nn::kernels::allocate_packing_buffer;

/// A worker's thread, which gives its stages back when it ends.
pub(crate) struct Started {
    pub(crate) thread: JoinHandle<Vec<Box<dyn Runner>>>,
    /// Bytes of the buffer for products that each of its kernel threads keeps.
    pub(crate) packing_buffer: u64,
}

/// The interpreter of one row of a plan.
pub(crate) struct Worker {
    pub(super) replica: Replica,
    pub(super) index: usize,
    pub(super) runners: Vec<Box<dyn Runner>>,
    pub(super) line: WorkerChannels,
    pub(super) waits: Waits,
    pub(super) diary: Diary,
    pub(super) gauges: Gauges,
    /// A step that its stages have made, when it is not yet known that all others have.
    pub(super) made: Option<usize>,
    pub(super) last: Last,
}

/// How the last step ended.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Last {
    /// With its verdict.
    Known,
    /// As if that were its verdict; the worker has not asked yet.
    Assumed(Verdict),
    /// Mispredicted than others took it to: what they have done since is void.
    Mispredicted(Verdict),
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        runners: Vec<Box<dyn Runner>>,
        line: WorkerChannels,
        stop: Arc<Stop>,
        post: ProgressBoard,
    ) -> Self {
        let (replica, stage) = place_of(&runners);
        let diary = Diary::new(replica, stage, post);
        Self {
            replica,
            index,
            runners,
            line,
            waits: Waits::new(stop),
            diary,
            gauges: Gauges::new(),
            made: None,
            last: Last::Known,
        }
    }

    /// Starts the thread, named after its first stage, with a pool of `cores` threads (itself one of them) for the
    /// kernels that run on it. It ends when the caller drops its command channel or the pipeline stops.
    pub(crate) fn spawn(mut self, cores: usize) -> Result<Started, BuildError> {
        let worker = self.index;
        let name = match (self.diary.stage, self.replica) {
            (stage, Replica { of: 1, .. }) => format!("stage-{stage}"),
            (stage, Replica { index, .. }) => format!("stage-{stage}-r{index}"),
        };
        let (ready, is_ready) = bounded(1);
        let thread = spawn(&name.clone(), move || {
            let meter = Meter::start();
            self.gauges.meter = meter;
            let on_host = self.runners.iter().any(|runner| is_host(runner.device()));
            let prepare = move || {
                meter.into_iter().for_each(Meter::count_this_thread);
                // Before the first step, so that no step is taken for the reason why it is there.
                if on_host {
                    allocate_packing_buffer();
                }
            };
            let held = || meter.map_or(0, Meter::held) as u64;
            let before = held();
            prepare();
            let packing_buffer = held() - before;
            let pool = kernels(&name, cores, prepare);
            let built = pool.as_ref().map(|_| packing_buffer).map_err(Clone::clone);
            if ready.send(built).is_ok() && pool.is_ok() {
                self.serve();
            }
            self.runners
        });
        let thread = thread.map_err(|cause| BuildError::Spawn { worker, cause })?;
        match is_ready.recv() {
            Ok(Ok(packing_buffer)) => Ok(Started { thread, packing_buffer }),
            Ok(Err(cause)) => Err(BuildError::Pool { worker, cores, cause }),
            Err(_) => Err(BuildError::Pool { worker, cores, cause: "its thread panicked".to_owned() }),
        }
    }

    fn serve(&mut self) {
        // A subscriber that panics while it is told of a failure ends the thread, and no more.
        let _ = catch_unwind(AssertUnwindSafe(|| self.obey()));
        match self.made {
            Some(step) if step >= self.waits.committed() => {
                self.roll_back();
                after_step::forget_kept();
            }
            _ => self.commit(),
        }
    }

    fn obey(&mut self) {
        while let Ok(command) = self.waits.receive(&self.line.commands) {
            match catch_unwind(AssertUnwindSafe(|| self.execute(command))) {
                Ok(Ok(())) => {}
                Ok(Err(Interrupt::Stopped)) => return,
                Ok(Err(Interrupt::Failed(error))) => return self.fail(Failure::Error(error)),
                Err(panic) => return self.fail(Failure::of_panic(panic)),
            }
        }
    }

    /// Stops all workers, before anything of the user's, such as a subscriber, runs again.
    fn fail(&self, failure: Failure) {
        let Diary { replica, stage, activity, during, .. } = self.diary;
        let failure = StageFailure { replica, stage, activity, during, failure, elsewhere: Vec::new() };
        self.waits.raise(StepError::Stage(Box::new(failure)));
        tracing::error!(stage, replica = replica.index, %activity, %during, "a stage failed: the pipeline stops");
    }

    fn execute(&mut self, command: Command) -> Result<(), Interrupt> {
        match command {
            Command::Run(run) => self.run(run)?,
            Command::Save { during } => self.save(during)?,
            Command::Settle { during } => {
                self.diary.open(during, Instant::now(), Vec::new());
                self.settle()?;
            }
        }
        // From here on it waits for the caller.
        self.diary.enter(self.diary.stage, Activity::Idle);
        Ok(())
    }

    fn save(&mut self, during: During) -> Result<(), Interrupt> {
        self.diary.open(during, Instant::now(), Vec::new());
        self.commit();
        for runner in &self.runners {
            self.diary.enter(runner.stage(), Activity::Save);
            let _entered = span(&self.diary).entered();
            self.waits.send(&self.line.replies.saved, runner.state())?;
        }
        Ok(())
    }

    fn run(&mut self, Run { asked, events }: Run) -> Result<(), Interrupt> {
        let Asked { during, plan, pass, clock, began, flush, behind } = asked;
        self.gauges.begin(clock, self.runners.iter().map(|runner| runner.device()));
        self.waits.take();
        self.diary.open(during, began, events);
        if !behind {
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
                self.waits.send(&self.line.replies.recorded, recorded)?;
            }
            Pass::Inspect(context) => self.conclude(context.step, Verdict::Skip)?,
            Pass::Evaluate(_) => after_step::skipped(),
        }
        Ok(())
    }

    fn interpret(&mut self, instruction: Instruction) -> Result<(), Interrupt> {
        self.waits.check()?;
        self.look_back()?;
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

    /// Ends a step, at once or when its verdict is there.
    fn flush(&mut self, step: usize, flush: Flush, finite: bool) -> Result<(), Stopped> {
        match flush {
            Flush::Ahead(assumed) if finite => {
                self.runners.iter_mut().for_each(|runner| runner.keep_sums());
                self.conclude(step, assumed)?;
                self.last = Last::Assumed(assumed);
            }
            Flush::Ahead(_) => {
                let verdict = self.verdict()?;
                // Other stages have made the step, and exchanged the values of their parameters.
                self.runners.iter_mut().try_for_each(|runner| runner.publish(&self.waits))?;
                self.runners.iter_mut().try_for_each(|runner| runner.ignore(&self.waits))?;
                self.conclude(step, verdict)?;
                self.last = Last::Mispredicted(verdict);
            }
            Flush::Together => {
                let verdict = self.verdict()?;
                self.conclude(step, verdict)?;
            }
        }
        Ok(())
    }

    /// Ends every stage's sum.
    fn reduce(&mut self, step: usize) -> Result<(), Stopped> {
        for runner in &mut self.runners {
            if self.replica.of == 1 {
                runner.reduce(step, &self.waits)?;
                continue;
            }
            self.diary.enter(runner.stage(), Activity::Reduce);
            let span = span(&self.diary).entered();
            runner.reduce(step, &self.waits)?;
            let waited = self.waits.take();
            note_wait(&span, Activity::Reduce, waited);
            self.diary.leave(waited, self.gauges.read(runner.device()));
        }
        Ok(())
    }

    /// Shows every stage's ledger to the caller; whether all that it has summed is finite.
    fn finish(&mut self) -> Result<bool, Stopped> {
        let mut finite = true;
        for runner in &mut self.runners {
            self.diary.enter(runner.stage(), Activity::Finish);
            let _entered = span(&self.diary).entered();
            let outcome = runner.finish();
            finite &= outcome.is_finite();
            // Before the others may go on because of it.
            self.diary.leave(self.waits.take(), self.gauges.read(runner.device()));
            self.waits.send(&self.line.replies.finished, outcome)?;
        }
        Ok(finite)
    }

    /// Waits until all stages are here.
    fn verdict(&mut self) -> Result<Verdict, Stopped> {
        self.diary.enter(self.diary.stage, Activity::Verdict);
        let span = span(&self.diary).entered();
        let verdict = self.waits.receive(&self.line.verdicts)?;
        let waited = self.waits.take();
        note_wait(&span, Activity::Verdict, waited);
        self.diary.leave(waited, Reading::default());
        Ok(verdict)
    }

    fn conclude(&mut self, step: usize, verdict: Verdict) -> Result<(), Stopped> {
        after_step::keep();
        self.conclude_as(step, verdict)
    }

    /// The same, of a step whose effects are kept.
    fn conclude_as(&mut self, step: usize, verdict: Verdict) -> Result<(), Stopped> {
        self.made = matches!(verdict, Verdict::Step { .. } | Verdict::Rehearse { .. }).then_some(step);
        let mut concluded = Vec::with_capacity(self.runners.len());
        for runner in &mut self.runners {
            let stage = runner.stage();
            self.diary.enter(stage, Activity::OptimizerStep);
            let conclusion = {
                let _entered = span(&self.diary).entered();
                runner.conclude(verdict, &self.waits)?
            };
            self.diary.leave(self.waits.take(), self.gauges.read(runner.device()));
            self.diary.enter(stage, Activity::Follow);
            let span = span(&self.diary).entered();
            runner.follow(verdict, &self.waits)?;
            let waited = self.waits.take();
            note_wait(&span, Activity::Follow, waited);
            self.diary.leave(waited, self.gauges.read(runner.device()));
            concluded.push(Stepped { replica: self.replica, stage, verdict, conclusion });
        }
        if !verdict.counts() {
            self.made = None;
            after_step::forget_kept();
        }
        concluded.into_iter().try_for_each(|stepped| self.waits.send(&self.line.replies.stepped, stepped))
    }
}

/// Where a worker's first stage is.
pub(crate) fn place_of(runners: &[Box<dyn Runner>]) -> (Replica, usize) {
    runners.first().map_or((Replica::default(), 0), |runner| (runner.replica(), runner.stage()))
}

/// How many events a worker of so many stages writes down in a step.
pub(crate) fn events_of(plan: &Checked, worker: usize, stages: usize) -> usize {
    const AROUND_EACH_STAGE: usize = 5; // start, reduction, finish, optimizer step, follow
    const VERDICTS: usize = 2; // its own, and that on the step before
    plan.instructions(worker).count() + AROUND_EACH_STAGE * stages + VERDICTS
}
