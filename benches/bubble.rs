//! Measures the bubble (idle share of the worker time) and the throughput of pipelines as a function of the number of
//! micro-batches M, for several numbers of workers P and schedules. Prints them beside theory, simulation and
//! prediction, one line per measurement; `--output` writes tables and plots to a folder. Each case first runs warm-up
//! steps until the times of the last ones agree, so that a GPU has tuned its kernels before the measurement.
//!
//! ```text
//! cargo bench --bench bubble -- --kind paced --stages 4,8 --schedules 1f1b,gpipe --output bubble
//! ```

use anyhow::Result;
use clap::Parser;
use stageline::CountingAllocator;
use stageline_workspace::bubble::{files, flags, measure, point};

use crate::flags::Flags;
use crate::point::Point;

/// The bench's global allocator. It counts allocated host memory, from which the bench reports each worker's peak
/// memory.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() -> Result<()> {
    let flags = Flags::parse();
    println!("{}", files::HEADER);
    let cases = flags.cases()?;
    let mut points: Vec<Point> = Vec::new();
    for group in cases.chunk_by(|a, b| a.workers == b.workers) {
        for (case, measured) in group.iter().zip(measure::measure(&flags, group)) {
            match measured {
                Ok(point) => {
                    println!("{point}");
                    points.push(point);
                }
                Err(error) => println!("{case}: left out: {error:#}"),
            }
        }
    }
    if let Some(line) = point::unsettled(flags.warm_up(), &points) {
        println!("{line}");
    }
    files::write(&flags, &points)
}
