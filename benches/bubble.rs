//! Measures the bubble and the throughput against M, for several P and schedules, beside theory and simulation. Prints
//! one line per measurement and writes CSV, JSON or an HTML page where flags ask for them.
//!
//! ```text
//! cargo bench --bench bubble -- --kind paced --stages 4,8 --schedules 1f1b,gpipe --html bubble.html
//! ```

use anyhow::Result;
use clap::Parser;
use stageline::CountingAllocator;
use stageline_workspace::bubble::{flags, measure, point, report};

use crate::flags::Flags;
use crate::point::Point;

/// Counts allocated bytes, for the peak memory of each worker.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() -> Result<()> {
    let flags = Flags::parse();
    println!("{}", report::HEADER);
    let mut points: Vec<Point> = Vec::new();
    for case in flags.cases()? {
        match measure::measure(&flags, &case) {
            Ok(point) => {
                println!("{point}");
                points.push(point);
            }
            Err(error) => println!("{case}: left out: {error:#}"),
        }
    }
    report::write(&flags, &points)
}
