//! One thread: takes its list of instructions and interprets it. Nothing else knows threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use rayon::ThreadPoolBuilder;
use stageline_schedule::{Checked, Instruction};

use crate::effects;
use crate::error::{BuildError, StepError};
use crate::failure::{Activity, During, Failure, StageFailure};
use crate::flush::Verdict;
use crate::runner::{Conclusion, Interrupt, Outcome, Pass, Runner};
use crate::stop::{Stop, Stopped};

/// What the caller asks of every worker.
pub(crate) struct Command {
    pub(crate) during: During,
    pub(crate) plan: Arc<Checked>,
    pub(crate) pass: Pass,
}

/// What a stage shows when its list is done.
pub(crate) struct Finished {
    pub(crate) stage: usize,
    pub(crate) outcome: Outcome,
}

/// What a stage tells when its step is over.
pub(crate) struct Stepped {
    pub(crate) stage: usize,
    /// Since the pass began.
    pub(crate) busy: Duration,
    pub(crate) conclusion: Conclusion,
}

/// The worker's ends of its channels with the caller.
pub(crate) struct Line {
    pub(crate) commands: Receiver<Command>,
    pub(crate) finished: Sender<Finished>,
    /// What all stages do at the end of a step.
    pub(crate) verdicts: Receiver<Verdict>,
    pub(crate) stepped: Sender<Stepped>,
    pub(crate) stop: Arc<Stop>,
}

/// A stage, and how long it has computed in this pass.
struct Seat {
    runner: Box<dyn Runner>,
    busy: Duration,
}

/// Where a worker is, for the error, should one come.
#[derive(Clone, Copy)]
struct Position {
    stage: usize,
    activity: Activity,
    during: During,
}

/// The interpreter of one row of a plan.
pub(crate) struct Worker {
    index: usize,
    seats: Vec<Seat>,
    line: Line,
    at: Position,
}

impl Worker {
    pub(crate) fn new(index: usize, runners: Vec<Box<dyn Runner>>, line: Line) -> Self {
        let stage = runners.first().map_or(0, |runner| runner.stage());
        let at = Position { stage, activity: Activity::Start, during: During::Step(0) };
        let seats = runners.into_iter().map(|runner| Seat { runner, busy: Duration::ZERO }).collect();
        Self { index, seats, line, at }
    }

    /// Starts the thread, named after its first stage, with a pool of `cores` threads (itself one of them) for the
    /// kernels that run on it. It ends when the caller drops its command channel or the pipeline stops.
    pub(crate) fn spawn(mut self, cores: usize) -> Result<JoinHandle<Vec<Box<dyn Runner>>>, BuildError> {
        let (worker, name) = (self.index, format!("stage-{}", self.at.stage));
        let (ready, is_ready) = bounded(1);
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            let pool = ThreadPoolBuilder::new().num_threads(cores).use_current_thread();
            let pool = pool.thread_name(move |core| format!("{name}-core-{core}")).build();
            let built = pool.as_ref().map(|_| ()).map_err(ToString::to_string);
            if ready.send(built).is_ok() && pool.is_ok() {
                self.serve();
            }
            self.seats.into_iter().map(|seat| seat.runner).collect()
        });
        let thread = thread.map_err(|cause| BuildError::Spawn { worker, cause })?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(thread),
            Ok(Err(cause)) => Err(BuildError::Pool { worker, cores, cause }),
            Err(_) => Err(BuildError::Pool { worker, cores, cause: "its thread panicked".to_owned() }),
        }
    }

    fn serve(&mut self) {
        while let Ok(command) = self.line.stop.receive(&self.line.commands) {
            match catch_unwind(AssertUnwindSafe(|| self.execute(&command))) {
                Ok(Ok(())) => {}
                Ok(Err(Interrupt::Stopped)) => return,
                Ok(Err(Interrupt::Failed(error))) => return self.fail(Failure::Error(error)),
                Err(panic) => return self.fail(Failure::of_panic(panic)),
            }
        }
    }

    /// Stops all workers, before anything of the user's, such as a subscriber, runs again.
    fn fail(&self, failure: Failure) {
        let Position { stage, activity, during } = self.at;
        let failure = StageFailure { stage, activity, during, failure };
        self.line.stop.raise(StepError::Stage(Box::new(failure)));
        tracing::error!(stage, %activity, %during, "a stage failed: the pipeline stops");
    }

    fn execute(&mut self, command: &Command) -> Result<(), Interrupt> {
        for seat in &mut self.seats {
            self.at = Position { stage: seat.runner.stage(), activity: Activity::Start, during: command.during };
            seat.busy = Duration::ZERO;
            seat.runner.begin(&command.pass, &self.line.stop)?;
        }
        for instruction in command.plan.instructions(self.index) {
            self.interpret(instruction)?;
        }
        self.finish()?;
        match command.pass {
            Pass::Train(_) => self.conclude(self.line.stop.receive(&self.line.verdicts)?)?,
            Pass::Inspect(_) => self.conclude(Verdict::Skip)?,
            Pass::Evaluate(_) => effects::skipped(),
        }
        Ok(())
    }

    fn interpret(&mut self, instruction: Instruction) -> Result<(), Interrupt> {
        self.line.stop.check()?;
        let stage = instruction.stage();
        self.at = Position { stage, activity: Activity::Instruction(instruction), ..self.at };
        let seat = self.seats.iter_mut().find(|seat| seat.runner.stage() == stage);
        let seat = seat.expect("a checked plan keeps a stage on one worker");
        let span = tracing::trace_span!("action", stage, action = %instruction, during = %self.at.during);
        let _entered = span.enter();
        let start = Instant::now();
        seat.runner.run(instruction, &self.line.stop)?;
        if let Instruction::Compute(_) = instruction {
            seat.busy += start.elapsed();
        }
        Ok(())
    }

    /// Shows every stage's ledger to the caller.
    fn finish(&mut self) -> Result<(), Stopped> {
        for seat in &mut self.seats {
            let stage = seat.runner.stage();
            self.at = Position { stage, activity: Activity::Finish, ..self.at };
            let start = Instant::now();
            let outcome = seat.runner.finish();
            seat.busy += start.elapsed();
            self.line.stop.send(&self.line.finished, Finished { stage, outcome })?;
        }
        Ok(())
    }

    fn conclude(&mut self, verdict: Verdict) -> Result<(), Stopped> {
        let mut concluded = Vec::with_capacity(self.seats.len());
        for seat in &mut self.seats {
            let stage = seat.runner.stage();
            self.at = Position { stage, activity: Activity::OptimizerStep, ..self.at };
            let start = Instant::now();
            let conclusion = seat.runner.conclude(verdict, &self.line.stop)?;
            seat.busy += start.elapsed();
            seat.runner.follow(verdict, &self.line.stop)?;
            concluded.push(Stepped { stage, busy: seat.busy, conclusion });
        }
        match verdict {
            Verdict::Step { .. } => effects::stepped(),
            Verdict::Show { .. } | Verdict::Skip => effects::skipped(),
        }
        concluded.into_iter().try_for_each(|stepped| self.line.stop.send(&self.line.stepped, stepped))
    }
}
