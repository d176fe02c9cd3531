//! The bubble and the throughput against M, for numbers of stages and schedules: measured, in theory, and simulated.
//!
//! ```text
//! cargo bench --bench bubble -- --kind paced --stages 4,8 --schedules 1f1b,gpipe --html bubble.html
//! ```

#[path = "../examples/gpt/cut.rs"]
#[allow(dead_code)] // the bench joins nothing
mod cut;
#[path = "bubble/flags.rs"]
mod flags;
#[path = "support/gpt.rs"]
#[allow(dead_code)] // the bench has no plain loop
mod gpt;
#[path = "bubble/measure.rs"]
mod measure;
#[path = "../examples/gpt/model.rs"]
#[allow(dead_code)] // the bench samples no text
mod model;
#[path = "support/paced.rs"]
mod paced;
#[path = "bubble/point.rs"]
mod point;
#[path = "bubble/report.rs"]
mod report;
#[path = "support/side_by_side.rs"]
#[allow(dead_code)] // the bench compares with theory
mod side_by_side;

use anyhow::Result;
use clap::Parser;
use stageline::CountingAllocator;

use crate::flags::Flags;
use crate::point::Point;

/// Counts what stages hold.
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
