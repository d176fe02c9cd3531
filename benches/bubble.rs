//! Measures the bubble and the throughput against M, for several P and schedules, beside theory and simulation. Prints
//! one line per measurement and writes CSV, JSON or an HTML page where flags ask for them.
//!
//! ```text
//! cargo bench --bench bubble -- --kind paced --stages 4,8 --schedules 1f1b,gpipe --html bubble.html
//! ```

#[path = "bubble/flags.rs"]
mod flags;
#[path = "support/gpt.rs"]
#[allow(dead_code)] // the bench has no plain loop
mod gpt;
#[path = "bubble/measure.rs"]
mod measure;
#[path = "support/paced.rs"]
mod paced;
#[path = "bubble/point.rs"]
mod point;
#[path = "bubble/report.rs"]
mod report;
#[path = "support/side_by_side.rs"]
#[allow(dead_code)] // the bench uses only the median
mod side_by_side;

use anyhow::Result;
use clap::Parser;
use example_gpt::model;
use stageline::CountingAllocator;

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
