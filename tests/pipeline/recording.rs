//! Tests of a step's recording: its events, the idle time of workers by cause, the clock, and the measured costs.

use std::any::type_name;
use std::thread::sleep;
use std::time::Duration;

use burn::module::Module;
use burn::optim::{AdamWState, Optimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
use stageline::schedule::{GPipe, Instruction, Interleaved, OneFOneB, Schedule, ZbH1};
use stageline::{
    Account, Activity, Batch, Clock, Event, LossStage, Payload, PayloadMapper, Pipeline, PipelineBuilder, Stage,
    StageConfig, StepReport, WaitCause, Weight,
};

use crate::mlp::{Error, Layer, Mlp, Target, config, device};

const WIDTH: usize = 4;

fn batch(rows: usize) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(rows, WIDTH, false, 1);
    Batch::new(input, target)
}

/// Returns the report of a pipeline's second step. By then the threads run and the memory is allocated.
fn step(builder: PipelineBuilder<Tensor<2>, Tensor<2>, Target>) -> StepReport {
    let mut pipeline = builder.build().unwrap();
    pipeline.step(batch(8)).unwrap();
    pipeline.step(batch(8)).unwrap()
}

/// Tests the ideal bubbles against the formulas of the papers, for a forward of 1, a backward of 2 and halves of 1.
#[test]
fn ideal_bubbles_are_those_of_the_papers() {
    let ideal = |stages: usize, micro_batches, schedule: &'static (dyn Schedule + Sync)| {
        let builder = Mlp::new(7, WIDTH, 1).split(stages, &config()).micro_batches(micro_batches).schedule(schedule);
        step(builder).ideal_bubble()
    };
    // Narayanan et al., 2021: (P-1)/(VM+P-1).
    for schedule in [&OneFOneB as &(dyn Schedule + Sync), &GPipe] {
        assert!((ideal(4, 8, schedule) - 3.0 / 11.0).abs() < 1e-12);
        assert!((ideal(1, 8, schedule)).abs() < 1e-12);
    }
    assert!((ideal(8, 8, &Interleaved { chunks: 2 }) - 3.0 / 19.0).abs() < 1e-12);
    // Qi et al., 2023: P-1 times (forward + input gradient - weight gradient) of idle time.
    assert!((ideal(4, 8, &ZbH1) - 3.0 / (3.0 * 8.0 + 3.0)).abs() < 1e-12);
}

#[test]
fn a_whole_backward_takes_the_time_of_its_halves() {
    let report = step(Mlp::new(3, WIDTH, 1).split(2, &config()).micro_batches(4).schedule(ZbH1));
    let costs = report.recording.costs();
    for (stage, micro_batch) in (0..2).flat_map(|stage| (0..4).map(move |micro_batch| (stage, micro_batch))) {
        let cost = costs.stage(stage, micro_batch);
        assert!(cost.input_gradient > 0.0 && cost.weight_gradient > 0.0, "{cost:?}");
        assert_eq!(cost.backward, cost.input_gradient + cost.weight_gradient);
    }
}

#[test]
fn every_action_of_the_plan_is_recorded_once_and_in_order() {
    let schedules: [(usize, Box<dyn Schedule>); 3] =
        [(3, Box::new(OneFOneB)), (2, Box::new(GPipe)), (4, Box::new(Interleaved { chunks: 2 }))];
    for (stages, schedule) in schedules {
        let report = step(Mlp::new(3, WIDTH, 1).split(stages, &config()).micro_batches(4).schedule(schedule));
        let recording = &report.recording;
        let plan = recording.plan();
        assert_eq!(recording.events().len(), plan.plan().workers());
        for (worker, events) in recording.events().iter().enumerate() {
            let instruction = |event: &Event| match event.activity {
                Activity::Instruction(instruction) => Some(instruction),
                _ => None,
            };
            let recorded: Vec<Instruction> = events.iter().filter_map(instruction).collect();
            assert_eq!(recorded, plan.instructions(worker).collect::<Vec<_>>());
            for pair in events.windows(2) {
                assert_eq!(pair[0].end, pair[1].start, "events follow each other without a gap");
            }
            assert!(events.iter().all(|event| event.start <= event.end && event.waited <= event.end - event.start));
            assert!(events.last().unwrap().end <= recording.took());
            for event in events {
                let cause = match event.activity {
                    Activity::Instruction(Instruction::Receive(transfer)) => Some(WaitCause::Stage(transfer.from)),
                    Activity::Verdict => Some(WaitCause::AllStages),
                    Activity::Start => Some(WaitCause::Caller),
                    // Nothing else waits: channels have room for all micro-batches, and no parameters are tied.
                    _ => None,
                };
                assert_eq!(event.waited_for(), cause.filter(|_| event.waited > Duration::ZERO), "{event:?}");
            }
            assert_eq!(events.iter().filter(|event| event.activity == Activity::Verdict).count(), 1);
        }
    }
}

#[test]
fn accounts_add_up_to_the_step() {
    for (stages, micro_batches) in [(1, 1), (1, 4), (2, 3), (4, 8)] {
        let report = step(Mlp::new(3, WIDTH, 2).split(stages, &config()).micro_batches(micro_batches));
        let recording = &report.recording;
        let took = recording.took().as_secs_f64();
        let accounts = recording.accounts();
        // A thread may be suspended between the end of its last action and the start of its wait for a message. This
        // time counts as work, and the simulation adds it although the message may have arrived in the meantime.
        let received = |event: &&Event| matches!(event.activity, Activity::Instruction(Instruction::Receive(_)));
        let worked = |event: &Event| (event.end - event.start - event.waited).as_secs_f64();
        let suspended: f64 = recording.events().iter().flatten().filter(received).map(worked).sum();
        for account in &accounts {
            assert!((account.busy + account.idle() - took).abs() < 1e-9 * took, "{account:?} of {took}");
            let Account { busy, fill, drain, imbalance, transfer, flush, asking, other } = *account;
            assert_eq!(asking, 0.0, "no stage is on another host");
            for part in [busy, fill, drain, imbalance, transfer, flush, other + suspended] {
                assert!(part >= -1e-9, "P={stages} M={micro_batches}: {account:?}");
            }
        }
        let busy: f64 = accounts.iter().map(|account| account.busy).sum();
        assert!((recording.bubble() - (1.0 - busy / took / accounts.len() as f64)).abs() < 1e-9);
        assert!((0.0..=1.0).contains(&recording.simulated_bubble()));
        assert!(
            recording.simulated_bubble() <= recording.bubble() + suspended / took + 1e-9,
            "a simulated step has no more idle time than the real one"
        );
        let stages: f64 = report.stages.iter().map(|stage| stage.busy.as_secs_f64()).sum();
        assert!((stages - busy).abs() < 1e-9);
    }
}

#[test]
fn synchronise_every_sets_the_clock_of_each_step() {
    let clocks = |every| {
        let builder = Mlp::new(1, WIDTH, 1).split(2, &config()).micro_batches(4).synchronise_every(every);
        let mut pipeline = builder.build().unwrap();
        (0..4).map(|_| pipeline.step(batch(8)).unwrap().recording.clock()).collect::<Vec<_>>()
    };
    use Clock::{Host, Synchronised};
    assert_eq!(clocks(0), [Host; 4]);
    assert_eq!(clocks(1), [Synchronised; 4]);
    assert_eq!(clocks(3), [Synchronised, Host, Host, Synchronised]);
}

#[test]
fn a_step_without_weight_has_no_events() {
    let (input, (wanted, mask)) = Mlp::batch(4, WIDTH, false, 1);
    let mut pipeline = Mlp::new(1, WIDTH, 3).split(2, &config()).micro_batches(2).build().unwrap();
    let report = pipeline.step(Batch::new(input, (wanted, mask * 0.0))).unwrap();
    assert!(report.recording.events().iter().all(Vec::is_empty));
    let took = report.recording.took().as_secs_f64();
    assert_eq!(report.recording.accounts(), [Account { other: took, ..Account::default() }; 2]);
}

/// The part that is made slow in a pipeline of three stages, for tests of step recordings: a stage's computation, a
/// send, a receive, or the flush (the optimizer step).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slow {
    Stage,
    Send,
    Receive,
    Flush,
}

/// The delay of the part of the pipeline that is made slow, far longer than all computation of the test's small stages.
const LONG: Duration = Duration::from_millis(25);

/// A payload for tests of step recordings: a tensor whose move to another device may take long.
#[derive(Clone)]
struct Moved {
    tensor: Tensor<2>,
    /// The number of moves to another device that the tensor makes before its slow move; `None` if no move is slow.
    slow_after: Option<usize>,
}

impl Payload for Moved {
    fn map<M: PayloadMapper>(self, mapper: &mut M) -> Self {
        let Self { tensor, mut slow_after } = self;
        if ["Departure", "Arrival"].iter().any(|mapper| type_name::<M>().contains(mapper)) {
            if slow_after == Some(0) {
                sleep(LONG);
            }
            slow_after = slow_after.and_then(|moves| moves.checked_sub(1));
        }
        Self { tensor: Payload::map(tensor, mapper), slow_after }
    }
}

/// The first of three stages in tests of step recordings. The value `slow` chooses the slow move of the stage's output
/// to another device: 1 for the first move, 2 for the second move, 0 for none.
#[derive(Module, Debug)]
struct Front {
    layer: Layer,
    slow: usize,
}

/// The second of three stages in tests of step recordings, whose forward takes long if `slow` is set.
#[derive(Module, Debug)]
struct Middle {
    layer: Layer,
    slow: bool,
}

/// The last of three stages in tests of step recordings, which computes the loss.
#[derive(Module, Debug)]
struct Back {
    error: Error,
}

impl Stage for Front {
    type Input = Tensor<2>;
    type Output = Moved;

    fn forward(&self, input: Tensor<2>) -> Moved {
        sleep(LONG / 5);
        Moved { tensor: self.layer.forward(input), slow_after: self.slow.checked_sub(1) }
    }
}

impl Stage for Middle {
    type Input = Moved;
    type Output = Moved;

    fn forward(&self, input: Moved) -> Moved {
        sleep(if self.slow { LONG } else { LONG / 5 });
        Moved { tensor: self.layer.forward(input.tensor), slow_after: None }
    }
}

impl Stage for Back {
    type Input = Moved;
    type Output = Tensor<2>;

    fn forward(&self, input: Moved) -> Tensor<2> {
        sleep(LONG / 5);
        self.error.forward(input.tensor)
    }
}

impl LossStage for Back {
    type Target = Target;

    fn loss(&self, output: Tensor<2>, target: Target) -> Tensor<1> {
        self.error.loss(output, target)
    }

    fn weight(&self, target: &Target) -> Weight {
        self.error.weight(target)
    }
}

/// An optimizer for tests of step recordings that sleeps at every parameter and changes no parameter.
#[derive(Clone)]
struct SlowOptimizer;

impl Optimizer for SlowOptimizer {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        _: f64,
        tensor: Tensor<D>,
        _: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        sleep(4 * LONG);
        (tensor, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
    }
}

/// Runs a pipeline of three stages that is slow in the part that `slow` names, and returns the report of a step.
fn report(slow: Slow) -> StepReport {
    let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 4);
    let front = Front {
        layer: layers.remove(0),
        slow: [Slow::Send, Slow::Receive].iter().position(|s| *s == slow).map_or(0, |at| at + 1),
    };
    let middle = Middle { layer: layers.remove(0), slow: slow == Slow::Stage };
    let plain = StageConfig::new(device(), SgdConfig::new().init(), 0.1);
    let middles = if slow == Slow::Flush { StageConfig::new(device(), SlowOptimizer, 0.1) } else { plain.clone() };
    let chain = Pipeline::builder().stage(front, plain.clone()).stage(middle, middles);
    step(chain.loss(Back { error }, plain).micro_batches(8))
}

/// Returns the name of the cause to which a step's report attributes most of the last worker's idle time.
fn main_cause(report: &StepReport) -> &'static str {
    let Account { fill, drain, imbalance, transfer, flush, other, .. } = report.recording.accounts()[2];
    let causes = [
        (fill + drain, "fill and drain"),
        (imbalance, "imbalance"),
        (transfer, "transfer"),
        (flush, "flush"),
        (other, "other"),
    ];
    causes.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1
}

#[test]
fn idle_time_is_attributed_to_the_slow_part() {
    for (slow, cause) in
        [(Slow::Stage, "imbalance"), (Slow::Send, "transfer"), (Slow::Receive, "transfer"), (Slow::Flush, "flush")]
    {
        let report = report(slow);
        assert_eq!(main_cause(&report), cause, "{slow:?}: {:?}", report.recording.accounts());
    }
}

/// Tests that the times of forwards in a step's recording are at least as long as the sleeps in the stages' forwards.
#[test]
fn measured_costs_match_the_planted_delays() {
    let report = report(Slow::Stage);
    let costs = report.recording.costs();
    for micro_batch in 0..8 {
        let [front, middle] = [0, 1].map(|stage| costs.stage(stage, micro_batch).forward);
        assert!(middle >= LONG.as_secs_f64() && front >= LONG.as_secs_f64() / 5.0, "{middle} {front}");
    }
}
