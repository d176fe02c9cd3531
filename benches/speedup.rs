//! Measures a pipeline's speedup: how much faster a step is on P stages of one core each than on one stage of one core.
//!
//! ```text
//! cargo bench --bench speedup -- --stages 2 --micro-batches 8
//! ```

use stageline_gpt::model;
use std::thread;

use clap::Parser;
use stageline::Pipeline;
use stageline::schedule::{Schedule, schedule_named};
use stageline_workspace::{gpt, side_by_side};

use crate::gpt::Load;
use crate::model::{Bytes, Logits, Shape};
use crate::side_by_side::{Pairs, median, side_by_side};

/// Times steps of the same model on P stages and on one stage, alternately
#[derive(Parser)]
struct Flags {
    /// Number of pipeline stages (P)
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// Schedule of the pipeline with P stages
    #[arg(long, default_value = "1f1b", value_parser = schedule_named)]
    schedule: &'static (dyn Schedule + Sync),
    /// Number of micro-batches in a step (M)
    #[arg(long, default_value_t = 8)]
    micro_batches: usize,
    /// Number of samples in a micro-batch
    #[arg(long, default_value_t = 2)]
    micro_batch_size: usize,
    /// Number of transformer blocks in the GPT
    #[arg(long, default_value_t = 8)]
    layers: usize,
    /// Width of the GPT
    #[arg(long, default_value_t = 256)]
    width: usize,
    /// Length of a training sample, in bytes
    #[arg(long, default_value_t = 128)]
    context: usize,
    /// Number of timed steps for each of the two pipelines: the one with P stages, and the one with a single stage
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Ignored; accepted because `cargo bench` passes it to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let flags = Flags::parse();
    let load = Load {
        shape: Shape { layers: flags.layers, width: flags.width, context: flags.context },
        micro_batches: flags.micro_batches,
        micro_batch_size: flags.micro_batch_size,
    };
    let (mut one, mut cut) = (load.pipeline(1), load.scheduled(flags.stages, flags.schedule));
    let (mut bubbles, mut imbalances) = (Vec::new(), Vec::new());
    let pairs = side_by_side(
        flags.rounds,
        || drop(one.step(load.batch()).expect("a step")),
        || {
            let report = cut.step(load.batch()).expect("a step");
            let busy = || report.stages.iter().map(|stage| stage.busy.as_secs_f64());
            imbalances.push(busy().fold(0.0, f64::max) * flags.stages as f64 / busy().sum::<f64>());
            bubbles.push(report.bubble());
        },
    );
    let (p, m) = (flags.stages as f64, flags.micro_batches as f64);
    let (seconds_one, seconds_cut) = pairs.medians();
    println!("{load:?}, {}, one core a stage, {} pairs of steps in turn", flags.schedule.name(), flags.rounds);
    println!("P=1: {seconds_one:.3} s a step; P={p}: {seconds_cut:.3} s a step");
    println!("speedup, median of the pairs: {pairs}; ideal {:.3}", m * p / (m + p - 1.0));
    println!(
        "bubble {:.1}% of the total stage time, ideal {:.1}%; dearest stage {:.3} of the mean",
        100.0 * median(bubbles.into_iter()),
        100.0 * (p - 1.0) / (m + p - 1.0),
        median(imbalances.into_iter()),
    );
    println!("the machine: {} such P=1 pipelines at once take {} times as long as one", p, crowding(&load, &flags));
}

/// Times steps of P independent one-stage pipelines running concurrently, and of one running alone. The ratio shows how
/// much busy cores slow each other down through shared caches, memory and clock rates.
fn crowding(load: &Load, flags: &Flags) -> Pairs {
    let mut pipelines: Vec<_> = (0..flags.stages).map(|_| load.pipeline(1)).collect();
    let mut alone = load.pipeline(1);
    let step = |pipeline: &mut Pipeline<Bytes, Logits, Bytes>| drop(pipeline.step(load.batch()).expect("a step"));
    let at_once = || {
        thread::scope(|scope| {
            for pipeline in &mut pipelines {
                scope.spawn(|| step(pipeline));
            }
        });
    };
    side_by_side(flags.rounds.div_ceil(3), at_once, || step(&mut alone))
}
