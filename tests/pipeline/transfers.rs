//! Tests of ordered transfers: on the CPU, transfers between stages are issued in the order that the plan fixes, as
//! between GPUs.

use std::fmt::Debug;
use std::sync::Mutex;

use burn::tensor::Tensor;
use stageline::schedule::{
    Checked, EagerOneFOneB, GPipe, Instruction, Interleaved, LoopedBreadthFirst, OneFOneB, Schedule, Transfer, check,
};
use stageline::{Batch, Pipeline};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use crate::mlp::{Mlp, Target, config};

const WIDTH: usize = 4;

/// The transfers between stages that were issued so far, in order, as the library's tracing events report them.
static ISSUED: Mutex<Vec<Transfer>> = Mutex::new(Vec::new());

/// The lock that tests with ordered transfers hold. Only one such test may run at a time, because the recorded events
/// of transfers do not say to which pipeline they belong.
pub static ORDERED: Mutex<()> = Mutex::new(());

/// A tracing subscriber that receives only the events of issued transfers between stages.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.target() == "stageline::transfer::order"
    }
    fn event(&self, event: &Event) {
        event.record(&mut Issue);
    }
    fn new_span(&self, _: &span::Attributes) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A visitor that reads the transfer between two stages from the fields of a tracing event.
struct Issue;

impl Visit for Issue {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "transfer" {
            let Ok(Instruction::Send(transfer)) = format!("{value:?}").parse() else { panic!("{value:?} is no send") };
            ISSUED.lock().unwrap().push(transfer);
        }
    }
}

fn batch(rows: usize) -> Batch<Tensor<2>, Target> {
    let (input, target) = Mlp::batch(rows, WIDTH, false, 1);
    Batch::new(input, target)
}

/// Returns the given transfers grouped by communication stream (queue of transfers): each stream has its transfers in
/// the given order.
fn by_stream(transfers: &[Transfer], stream_of: &[Option<usize>], streams: usize) -> Vec<Vec<Transfer>> {
    let touches = |transfer: &&Transfer, stream| {
        [transfer.from, transfer.to()].map(|stage| stream_of[stage]).contains(&Some(stream))
    };
    (0..streams)
        .map(|stream| transfers.iter().filter(|transfer| touches(transfer, stream)).copied().collect())
        .collect()
}

/// Runs two steps and an evaluation of three rows, and asserts that each communication stream got its transfers in the
/// plan's order. Returns the bits of the model and the expected transfers of each stream.
fn run(schedule: impl Schedule + 'static, stages: usize, capacity: Option<usize>) -> (Vec<u32>, Vec<Vec<Transfer>>) {
    const MICRO_BATCHES: usize = 4;
    let mut builder = Mlp::new(stages - 1, WIDTH, 1).split(stages, &config()).micro_batches(MICRO_BATCHES);
    builder = builder.schedule(schedule).ordered_transfers();
    if let Some(capacity) = capacity {
        builder = builder.channel_capacity(capacity);
    }
    let mut pipeline: Pipeline<_, _, _> = builder.build().unwrap();
    let plan = check(pipeline.plan().clone(), capacity.unwrap_or(MICRO_BATCHES)).unwrap();
    let stream_of: Vec<_> = (0..stages).map(|stage| Some(plan.placement().worker(stage))).collect();
    pipeline.step(batch(8)).unwrap();
    pipeline.step(batch(8)).unwrap();
    pipeline.eval(batch(3)).unwrap();
    let streams = |plan: &Checked| plan.streams(&stream_of);
    let expected = streams(&plan).into_iter().zip(streams(&plan.forwards(3)));
    let expected =
        expected.map(|(training, evaluation)| [training.clone(), training, evaluation].concat()).collect::<Vec<_>>();
    let issued = std::mem::take(&mut *ISSUED.lock().unwrap());
    assert_eq!(by_stream(&issued, &stream_of, plan.plan().workers()), expected);
    (Mlp::join(pipeline.into_modules()).bits(), expected)
}

/// Tests that transfers between stages are issued in the plan's global order.
/// `crates/stageline-schedule/tests/schedule/streams.rs` proves that this order is free of deadlocks.
#[test]
fn the_link_issues_transfers_in_the_plans_order() {
    let _alone = ORDERED.lock();
    tracing::subscriber::set_global_default(Listener).unwrap();
    let mut transfers = 0;
    for stages in [2, 3, 4] {
        let plain = Mlp::new(stages - 1, WIDTH, 1);
        let plain = plain.train_plainly(4, &[Mlp::batch(8, WIDTH, false, 1), Mlp::batch(8, WIDTH, false, 1)]).bits();
        for capacity in [None, Some(1)] {
            let runs = [run(GPipe, stages, capacity), run(OneFOneB, stages, capacity)];
            for (bits, expected) in runs {
                assert_eq!(bits, plain, "the order changes nothing");
                transfers += expected.concat().len();
            }
        }
        run(EagerOneFOneB, stages, None);
    }
    for chunked in [run(Interleaved { chunks: 2 }, 4, None), run(LoopedBreadthFirst { chunks: 2 }, 4, None)] {
        transfers += chunked.1.concat().len();
    }
    assert!(transfers > 1000, "{transfers} is not much of a test");
}
