//! Stages on server processes of this host: how many actions a second one controller drives, beside local threads; and what a network
//! with a latency costs, by schedule.
//!
//! ```text
//! cargo bench --bench remote
//! ```

#[path = "../examples/gpt/cut.rs"]
#[allow(dead_code)] // the bench joins nothing
mod cut;
#[path = "remote/delay.rs"]
mod delay;
#[path = "support/gpt.rs"]
#[allow(dead_code)] // the bench has no plain loop
mod gpt;
#[path = "../examples/gpt/model.rs"]
#[allow(dead_code)] // the bench samples no text
mod model;
#[path = "remote/servers.rs"]
mod servers;
#[path = "support/side_by_side.rs"]
mod side_by_side;

use std::time::{Duration, Instant};

use burn::tensor::Device;
use clap::Parser;
use stageline::schedule::{Costs, EagerOneFOneB, OneFOneB, Schedule, StageCost, check, simulate};
use stageline::{CountingAllocator, DeviceName, Pipeline};

use crate::cut::Bytes;
use crate::gpt::Load;
use crate::model::Shape;
use crate::servers::Servers;
use crate::side_by_side::side_by_side;

/// Counts what stages hold, as in programs that ask for it.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Times stages on servers.
#[derive(Parser)]
struct Flags {
    /// Seconds of timed steps for each number of stages
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// The latency that is put before every message of the second part, in ms
    #[arg(long, default_value_t = 20)]
    delay: u64,
    /// Pairs of steps of the second part
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Serves, as a process of its own does
    #[arg(long, hide = true)]
    serve: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let flags = Flags::parse();
    if flags.serve {
        return servers::serve();
    }
    actions_a_second(flags.seconds);
    println!();
    latency(&flags);
}

/// Two sizes of stages: of so little that only driving it counts, and of one block.
fn actions_a_second(seconds: f64) {
    println!(
        "actions a second of all stages under 1F1B, M = 32: 2 M P / step time; and the controller's CPU time an action"
    );
    println!(
        "{:>5} {:>3} {:>12} {:>12} {:>15} {:>15}",
        "width", "P", "threads", "servers", "threads, us", "servers, us"
    );
    for (width, context) in [(8, 4), (64, 64)] {
        for stages in [1, 2, 4, 8] {
            let load = Load { shape: Shape { layers: stages, width, context }, micro_batches: 32, micro_batch_size: 1 };
            let servers = Servers::start(stages, Duration::ZERO);
            let [threads, remote] = [vec![Device::flex(); stages], servers.devices()]
                .map(|devices| rate(&load, &mut load.on(&devices, &OneFOneB), stages, seconds));
            print!("{width:>5} {stages:>3} {:>12.0} {:>12.0}", threads.actions_a_second, remote.actions_a_second);
            println!(" {:>15.1} {:>15.1}", threads.cpu_us_an_action, remote.cpu_us_an_action);
        }
    }
}

struct Rate {
    actions_a_second: f64,
    /// NaN where the system does not tell.
    cpu_us_an_action: f64,
}

fn rate(load: &Load, pipeline: &mut Pipeline<Bytes, Bytes>, stages: usize, seconds: f64) -> Rate {
    pipeline.step(load.batch()).expect("a step");
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let mut actions = 0;
    while start.elapsed().as_secs_f64() < seconds {
        pipeline.step(load.batch()).expect("a step");
        actions += 2 * load.micro_batches * stages;
    }
    let (took, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let actions = actions as f64;
    Rate { actions_a_second: actions / took, cpu_us_an_action: 1e6 * cpu / actions }
}

/// Of this process until now: Linux counts it in hundredths of a second.
fn cpu_seconds() -> f64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else { return f64::NAN };
    let behind_the_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |index| behind_the_name.split_whitespace().nth(index).and_then(|field| field.parse::<f64>().ok());
    ticks(11).zip(ticks(12)).map_or(f64::NAN, |(user, system)| (user + system) / 100.0)
}

/// Two stages, each on a server, behind a latency.
fn latency(flags: &Flags) {
    const STAGES: usize = 2;
    let load = Load { shape: Shape { layers: 2, width: 128, context: 128 }, micro_batches: 8, micro_batch_size: 4 };
    let delay = Duration::from_millis(flags.delay);
    let step = |pipeline: &mut Pipeline<Bytes, Bytes>| drop(pipeline.step(load.batch()).expect("a step"));
    println!("{load:?}, P = {STAGES}, a server each; step times in ms, medians");
    println!("{:>7} {:>9} {:>9} {:>29} {:>11}", "latency", "1f1b", "eager", "1f1b/eager, of the pairs", "simulated");
    for delay in [Duration::ZERO, delay] {
        let servers = Servers::start(STAGES, delay);
        let [mut plain, mut eager] = [&OneFOneB as &'static (dyn Schedule + Sync), &EagerOneFOneB]
            .map(|schedule| load.on(&servers.devices(), schedule));
        let pairs = side_by_side(flags.pairs, || step(&mut plain), || step(&mut eager));
        let (of_plain, of_eager) = pairs.medians();
        let costs = costs(&load);
        let [simulated_plain, simulated_eager] = [&OneFOneB as &(dyn Schedule + Sync), &EagerOneFOneB]
            .map(|schedule| simulated(schedule, &load, costs, delay));
        print!("{:>4} ms {:>9.1} {:>9.1}", delay.as_millis(), 1e3 * of_plain, 1e3 * of_eager);
        println!(" {:>29} {:>11.3}", pairs.to_string(), simulated_plain / simulated_eager);
    }
}

/// Of a stage's forward and backward, in seconds, as local threads take them.
fn costs(load: &Load) -> (f64, f64) {
    let mut pipeline = load.pipeline(1);
    let mut fastest = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        pipeline.step(load.batch()).expect("a step");
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    let a_stage = fastest / load.micro_batches as f64 / 2.0;
    (a_stage / 3.0, 2.0 * a_stage / 3.0)
}

/// The step of a plan whose transfers take this long.
fn simulated(schedule: &dyn Schedule, load: &Load, (forward, backward): (f64, f64), delay: Duration) -> f64 {
    let plan = schedule.plan(2, load.micro_batches).expect("a plan");
    let checked = check(plan, load.micro_batches).expect("a plan that can run");
    let cost = StageCost::new(forward, backward, 0.0).with_latency(delay.as_secs_f64());
    simulate(&checked, &Costs::by_stage(vec![cost; 2])).step()
}

/// The devices of servers that anyone here may use.
fn open(names: &[String]) -> Vec<Device> {
    let names: Vec<_> = names.iter().map(|name| name.parse::<DeviceName>().expect("a name")).collect();
    DeviceName::open_all(&names, None).expect("servers that answer")
}
