//! What it takes to write, check and simulate large plans: linear in the number of actions.
//!
//! ```text
//! cargo bench --bench plan
//! ```

#[path = "support/side_by_side.rs"]
#[allow(dead_code)] // nothing is compared here
mod side_by_side;

use clap::Parser;
use stageline::schedule::{Costs, check, schedule_named, simulate};

use crate::side_by_side::time;

/// Times plans of P stages and more and more micro-batches.
#[derive(Parser)]
struct Flags {
    /// P
    #[arg(long, default_value_t = 1024)]
    stages: usize,
    /// The greatest M; an eighth, a quarter and a half of it come first
    #[arg(long, default_value_t = 8192)]
    micro_batches: usize,
    /// The schedule
    #[arg(long, default_value = "1f1b")]
    schedule: String,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let schedule = schedule_named(&flags.schedule)?;
    println!("{} at P = {}, seconds, one core", flags.schedule, flags.stages);
    println!(
        "{:>6} {:>12} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "M", "actions", "write", "check", "simulate", "total", "ns/action"
    );
    for micro_batches in [8, 4, 2, 1].map(|part| flags.micro_batches / part) {
        let (mut plan, mut checked, mut timeline) = (None, None, None);
        let write = time(|| plan = schedule.plan(flags.stages, micro_batches).ok());
        let plan = plan.ok_or_else(|| anyhow::anyhow!("there is no such plan"))?;
        let actions: usize = plan.rows().iter().map(Vec::len).sum();
        let mut plan = Some(plan);
        let checking = time(|| checked = plan.take().map(|plan| check(plan, 1)));
        let checked = checked.ok_or_else(|| anyhow::anyhow!("nothing was checked"))??;
        let costs = Costs::uniform(flags.stages, 1.0, 2.0);
        let simulating = time(|| timeline = Some(simulate(&checked, &costs)));
        let bubble = timeline.ok_or_else(|| anyhow::anyhow!("nothing was simulated"))?.bubble();
        let total = (write + checking + simulating).as_secs_f64();
        let [write, checking, simulating] = [write, checking, simulating].map(|duration| duration.as_secs_f64());
        println!(
            "{micro_batches:>6} {actions:>12} {write:>8.2} {checking:>8.2} {simulating:>8.2} {total:>8.2} {:>9.0}   bubble {:.1}%",
            1e9 * total / actions as f64,
            100.0 * bubble,
        );
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find(|line| line.starts_with("VmHWM"));
        println!("{}", peak.unwrap_or("the system does not say the peak memory"));
    }
    Ok(())
}
