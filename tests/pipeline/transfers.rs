//! Transfers that are issued in the plan's order, as between GPUs, on the CPU.

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

/// What was issued, as the library tells it, in order.
static ISSUED: Mutex<Vec<Transfer>> = Mutex::new(Vec::new());

/// Of those who issue transfers in order one at a time: what is issued does not say by which pipeline.
pub static ORDERED: Mutex<()> = Mutex::new(());

/// Listens to that, and to nothing else.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.target() == "stageline::turns"
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

/// What each stream sees of transfers, of which every worker has one.
fn by_stream(transfers: &[Transfer], of_stage: &[Option<usize>], streams: usize) -> Vec<Vec<Transfer>> {
    let touches = |transfer: &&Transfer, stream| {
        [transfer.from, transfer.to()].map(|stage| of_stage[stage]).contains(&Some(stream))
    };
    (0..streams)
        .map(|stream| transfers.iter().filter(|transfer| touches(transfer, stream)).copied().collect())
        .collect()
}

/// Two steps and an evaluation of three rows; and of the plans of these what was to be issued.
fn run(schedule: impl Schedule + 'static, stages: usize, capacity: Option<usize>) -> (Vec<u32>, Vec<Vec<Transfer>>) {
    const MICRO_BATCHES: usize = 4;
    let mut builder = Mlp::new(stages - 1, WIDTH, 1).split(stages, &config()).micro_batches(MICRO_BATCHES);
    builder = builder.schedule(schedule).ordered_transfers();
    if let Some(capacity) = capacity {
        builder = builder.channel_capacity(capacity);
    }
    let mut pipeline: Pipeline<_, _> = builder.build().unwrap();
    let plan = check(pipeline.plan().clone(), capacity.unwrap_or(MICRO_BATCHES)).unwrap();
    let of_stage: Vec<_> = (0..stages).map(|stage| Some(plan.placement().worker(stage))).collect();
    pipeline.step(batch(8)).unwrap();
    pipeline.step(batch(8)).unwrap();
    pipeline.eval(batch(3)).unwrap();
    let streams = |plan: &Checked| plan.streams(&of_stage);
    let expected = streams(&plan).into_iter().zip(streams(&plan.forwards(3)));
    let expected =
        expected.map(|(training, evaluation)| [training.clone(), training, evaluation].concat()).collect::<Vec<_>>();
    let issued = std::mem::take(&mut *ISSUED.lock().unwrap());
    assert_eq!(by_stream(&issued, &of_stage, plan.plan().workers()), expected);
    (Mlp::join(pipeline.into_modules()).bits(), expected)
}

/// The order that `crates/stageline-schedule/tests/schedule/streams.rs` proves free of deadlocks.
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
