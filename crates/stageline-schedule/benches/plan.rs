//! Measures the time to generate, check and simulate large plans, which is linear in the number of actions.
//!
//! ```text
//! cargo bench --bench plan
//! ```

use std::error::Error;
use std::time::Instant;

use clap::Parser;
use stageline_schedule::{Costs, check, schedule_named, simulate};

/// Flags of the benchmark that times the generation, check and simulation of large plans
#[derive(Parser)]
struct Flags {
    /// Number of pipeline stages (P) of the measured plans
    #[arg(long, default_value_t = 1024)]
    stages: usize,
    /// Largest number of micro-batches (M) of a measured plan. Plans with M/8, M/4 and M/2 micro-batches are measured
    /// first
    #[arg(long, default_value_t = 8192)]
    micro_batches: usize,
    /// Name of the schedule of the measured plans, such as `1f1b`
    #[arg(long, default_value = "1f1b")]
    schedule: String,
    /// Channel capacity: number of micro-batches that a channel between two stages can store. If unset, it is all
    /// micro-batches of a step
    #[arg(long)]
    capacity: Option<usize>,
    /// Flag without effect, which `cargo bench` passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    let schedule = schedule_named(&flags.schedule)?;
    println!("{} at P = {}, seconds, one core", flags.schedule, flags.stages);
    println!(
        "{:>6} {:>12} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "M", "actions", "write", "check", "simulate", "total", "ns/action"
    );
    let costs = Costs::uniform(flags.stages, 1.0, 2.0);
    for micro_batches in [8, 4, 2, 1].map(|part| flags.micro_batches / part) {
        let (plan, write) = timed(|| schedule.plan(flags.stages, micro_batches));
        let plan = plan?;
        let actions: usize = plan.rows().iter().map(Vec::len).sum();
        let capacity = flags.capacity.unwrap_or(micro_batches);
        let (checked, checking) = timed(|| check(plan, capacity));
        let checked = checked?;
        let (timeline, simulating) = timed(|| simulate(&checked, &costs));
        let total = write + checking + simulating;
        println!(
            "{micro_batches:>6} {actions:>12} {write:>8.2} {checking:>8.2} {simulating:>8.2} {total:>8.2} {:>9.0}   bubble {:.1}%",
            1e9 * total / actions as f64,
            100.0 * timeline.bubble(),
        );
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find(|line| line.starts_with("VmHWM"));
        println!("{}", peak.unwrap_or("the system does not say the peak memory"));
    }
    Ok(())
}

fn timed<T>(run: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = run();
    (result, start.elapsed().as_secs_f64())
}
