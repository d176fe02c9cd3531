//! One thread: takes its list of instructions and interprets it. Nothing else knows threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rayon::ThreadPoolBuilder;
use stageline_schedule::{Checked, Instruction};

use crate::error::{Activity, Failure, StageFailure, StepError};
use crate::runner::{Interrupt, Outcome, Pass, Runner};
use crate::stop::{Stop, Stopped};

/// What the caller asks of every worker.
pub(crate) struct Command {
    pub(crate) step: usize,
    pub(crate) plan: Arc<Checked>,
    pub(crate) pass: Pass,
}

/// What a worker tells the caller of one of its stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) stage: usize,
    pub(crate) outcome: Outcome,
    /// Since the pass began.
    pub(crate) busy: Duration,
    /// Of the optimizer step, once it is done.
    pub(crate) learning_rate: f64,
}

/// The worker's ends of its channels with the caller.
pub(crate) struct Line {
    pub(crate) commands: Receiver<Command>,
    /// The go-ahead for the optimizer step.
    pub(crate) commits: Receiver<()>,
    pub(crate) reports: Sender<Report>,
    pub(crate) stop: Arc<Stop<StepError>>,
}

/// A stage with what it has done so far in this pass.
struct Seat {
    runner: Box<dyn Runner>,
    busy: Duration,
}

/// The interpreter of one row of a plan.
pub(crate) struct Worker {
    index: usize,
    seats: Vec<Seat>,
    line: Line,
    /// For the error, should one come: the step, the stage, and what it does.
    at: (usize, usize, Activity),
}

impl Worker {
    pub(crate) fn new(index: usize, runners: Vec<Box<dyn Runner>>, line: Line) -> Self {
        let first = runners.first().map_or(0, |runner| runner.stage());
        let seats = runners.into_iter().map(|runner| Seat { runner, busy: Duration::ZERO }).collect();
        Self { index, seats, line, at: (0, first, Activity::Start) }
    }

    /// Starts the thread, named after its first stage, with a pool of `cores` threads (itself one of them) for the
    /// kernels that run on it. It ends when the caller drops its command channel or the pipeline stops.
    pub(crate) fn spawn(mut self, cores: usize) -> std::io::Result<JoinHandle<Vec<Box<dyn Runner>>>> {
        let name = format!("stage-{}", self.at.1);
        thread::Builder::new().name(name.clone()).spawn(move || {
            let pool = ThreadPoolBuilder::new().num_threads(cores).use_current_thread();
            match pool.thread_name(move |core| format!("{name}-core-{core}")).build() {
                Ok(_pool) => self.serve(),
                Err(error) => self.fail(Failure::Error(Box::new(error))),
            }
            self.seats.into_iter().map(|seat| seat.runner).collect()
        })
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

    fn fail(&self, failure: Failure) {
        let (step, stage, activity) = self.at;
        let failure = StageFailure { stage, activity, step, failure };
        tracing::error!(%failure, "the pipeline stops");
        self.line.stop.raise(StepError::Stage(Box::new(failure)));
    }

    fn execute(&mut self, command: &Command) -> Result<(), Interrupt> {
        for seat in &mut self.seats {
            self.at = (command.step, seat.runner.stage(), Activity::Start);
            seat.busy = Duration::ZERO;
            seat.runner.begin(command.pass.clone(), &self.line.stop)?;
        }
        for &instruction in &command.plan.lowered().rows()[self.index] {
            self.interpret(command.step, instruction)?;
        }
        let mut reports = self.finish()?;
        if let Pass::Train(_) = command.pass {
            self.line.stop.receive(&self.line.commits)?;
            self.step(&mut reports)?;
        }
        Ok(())
    }

    fn interpret(&mut self, step: usize, instruction: Instruction) -> Result<(), Interrupt> {
        let stage = instruction.stage();
        self.at = (step, stage, Activity::Instruction(instruction));
        let seat = self.seats.iter_mut().find(|seat| seat.runner.stage() == stage);
        let seat = seat.expect("a checked plan keeps a stage on one worker");
        let span = tracing::trace_span!("action", step, stage, action = %instruction);
        let _entered = span.enter();
        let start = Instant::now();
        seat.runner.run(instruction, &self.line.stop)?;
        if let Instruction::Compute(_) = instruction {
            seat.busy += start.elapsed();
        }
        Ok(())
    }

    /// Shows every stage's ledger to the caller.
    fn finish(&mut self) -> Result<Vec<Report>, Stopped> {
        let Self { seats, line, at, .. } = self;
        let report = |seat: &mut Seat| {
            let stage = seat.runner.stage();
            *at = (at.0, stage, Activity::Finish);
            let start = Instant::now();
            let outcome = seat.runner.finish();
            seat.busy += start.elapsed();
            let report = Report { stage, outcome, busy: seat.busy, learning_rate: 0.0 };
            line.stop.send(&line.reports, report).map(|()| report)
        };
        seats.iter_mut().map(report).collect()
    }

    fn step(&mut self, reports: &mut [Report]) -> Result<(), Stopped> {
        for (seat, report) in self.seats.iter_mut().zip(reports) {
            self.at = (self.at.0, report.stage, Activity::OptimizerStep);
            let start = Instant::now();
            report.learning_rate = seat.runner.step();
            report.busy += start.elapsed();
            self.line.stop.send(&self.line.reports, *report)?;
        }
        Ok(())
    }
}
