//! Measures the cost of a checkpoint: the pause of the pipeline compared with a plain copy of the same bytes, and the
//! slowdown of a step while a checkpoint is written in the background.
//!
//! ```text
//! cargo bench --bench checkpoint
//! ```

use stageline_gpt::model;
use std::cell::RefCell;
use std::hint::black_box;
use std::num::NonZero;

use clap::Parser;
use stageline::checkpoint::{Checkpoint, Store, Tensor, Writer};
use stageline_workspace::{gpt, side_by_side};

use crate::gpt::Load;
use crate::model::Shape;
use crate::side_by_side::side_by_side;

/// Measures the cost of a checkpoint: the pause of the pipeline, and the slowdown of steps
#[derive(Parser)]
struct Flags {
    /// Number of pipeline stages (P)
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// Number of timed checkpoints
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Ignored; accepted because `cargo bench` passes it to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// Returns a checkpoint's tensors: the model's parameters and optimizer state.
fn tensors(checkpoint: &Checkpoint) -> impl Iterator<Item = &Tensor> {
    checkpoint.parameters.values().chain(checkpoint.optimizer.values())
}

fn main() {
    let flags = Flags::parse();
    let shape = Shape { layers: 8, width: 256, context: 128 };
    let load = Load { shape, micro_batches: 8, micro_batch_size: 1 };
    let mut pipeline = load.pipeline(flags.stages);
    pipeline.step(load.batch()).expect("a step");
    let folder = tempfile::tempdir().expect("a folder");
    let keep = NonZero::new(2).expect("2 is not 0");
    let mut writer = Store::open(folder.path(), keep).and_then(Writer::new).expect("a writer");

    let mut taken = pipeline.checkpoint().expect("a checkpoint");
    let bytes: usize = tensors(&taken).map(|tensor| tensor.bytes.len()).sum();
    println!("{load:?}, P = {}: {:.1} MB of parameters and optimizer state", flags.stages, bytes as f64 / 1e6);

    let copied = taken.clone();
    let copy = || drop(black_box(tensors(&copied).map(|tensor| tensor.bytes.to_vec()).collect::<Vec<_>>()));
    let pairs = side_by_side(flags.rounds, || taken = pipeline.checkpoint().expect("a checkpoint"), copy);
    let (pause, copy) = pairs.medians();
    println!(
        "  pause {:.1} ms, a plain copy on one core {:.1} ms; ratio, median of the pairs: {pairs}",
        1e3 * pause,
        1e3 * copy
    );

    let pipeline = RefCell::new(pipeline);
    let step = || drop(pipeline.borrow_mut().step(load.batch()).expect("a step"));
    let while_written = || {
        writer.write(taken.clone()).expect("a write");
        step();
    };
    let pairs = side_by_side(flags.rounds, while_written, step);
    let (beside, alone) = pairs.medians();
    println!(
        "  a step while one is written {:.1} ms, alone {:.1} ms; ratio, median of the pairs: {pairs}",
        1e3 * beside,
        1e3 * alone
    );
    writer.finish().expect("the last write");
}
