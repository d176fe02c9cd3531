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

use std::process::Command;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use clap::{Parser, Subcommand, ValueEnum};
use stageline::remote::link_speeds;
use stageline::schedule::{Costs, EagerOneFOneB, OneFOneB, Schedule, StageCost, check, simulate};
use stageline::{CountingAllocator, DeviceName, Pipeline};

use crate::cut::Bytes;
use crate::gpt::Load;
use crate::model::Shape;
use crate::servers::{Servers, Transport};
use crate::side_by_side::{side_by_side, time};

/// Counts what stages hold, as in programs that ask for it.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Times stages on servers.
#[derive(Parser)]
struct Flags {
    /// Seconds of timed steps for each row of the first part
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// The latency that is put before every message of the second part, in ms
    #[arg(long, default_value_t = 20)]
    delay: u64,
    /// Pairs of steps of the second part
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What is done in a process of its own: burn keeps sessions, and the thread of each, for the life of a process.
#[derive(Clone, Copy, Subcommand)]
enum Part {
    /// Serves
    #[command(hide = true)]
    Serve { transport: Transport },
    /// Prints one row of the first part
    #[command(hide = true)]
    Drive { place: Place, width: usize, stages: usize },
    /// Prints one row of the second part
    #[command(hide = true)]
    Wait { delay: u64 },
}

/// Where stages are.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Place {
    Threads,
    Websocket,
    Iroh,
}

fn main() {
    let flags = Flags::parse();
    match flags.part {
        Some(Part::Serve { transport }) => return servers::serve(transport),
        Some(Part::Drive { place, width, stages }) => return drive(place, width, stages, flags.seconds),
        Some(Part::Wait { delay }) => return wait(Duration::from_millis(delay), flags.pairs),
        None => {}
    }
    println!(
        "1F1B, M = {MICRO_BATCHES}: actions (2 M P a step) a second; the controller's CPU time an action, and while nothing is done"
    );
    println!(
        "{:>5} {:>3} {:>10} {:>10} {:>10} {:>16}",
        "width", "P", "place", "actions/s", "us/action", "idle, % of a core"
    );
    for width in ["8", "64"] {
        for stages in ["1", "2", "4", "8"] {
            for place in ["threads", "websocket", "iroh"] {
                alone(&["--seconds", &flags.seconds.to_string(), "drive", place, width, stages]);
            }
        }
    }
    println!(
        "\n{:?}, P = {WAITING_STAGES}, a server each; step times in ms, medians; the network as it was measured",
        waiting_load()
    );
    println!(
        "{:>8} {:>19} {:>8} {:>8} {:>40} {:>10}",
        "latency", "to the next stage", "1f1b", "eager", "1f1b/eager, of the pairs", "simulated"
    );
    for delay in ["0", &flags.delay.to_string()] {
        alone(&["--pairs", &flags.pairs.to_string(), "wait", delay]);
    }
}

/// Runs this program once more.
fn alone(arguments: &[&str]) {
    let program = std::env::current_exe().expect("this program");
    let ended = Command::new(program).args(arguments).status().expect("this program");
    assert!(ended.success(), "{arguments:?}: {ended}");
}

const MICRO_BATCHES: usize = 32;

/// Stages of so little that only driving them counts, or of one block.
fn drive(place: Place, width: usize, stages: usize, seconds: f64) {
    let shape = Shape { layers: stages, width, context: width.min(64) };
    let load = Load { shape, micro_batches: MICRO_BATCHES, micro_batch_size: 1 };
    let served = |transport| Servers::start(stages, transport, Duration::ZERO);
    let servers = match place {
        Place::Threads => None,
        Place::Websocket => Some(served(Transport::Websocket)),
        Place::Iroh => Some(served(Transport::Iroh)),
    };
    let devices = servers.as_ref().map_or_else(|| vec![Device::flex(); stages], Servers::devices);
    let mut pipeline = load.on(&devices, &OneFOneB);
    let step = |pipeline: &mut Pipeline<Bytes, Bytes>| drop(pipeline.step(load.batch()).expect("a step"));
    step(&mut pipeline);
    let mut steps = 0;
    let (took, cpu) = used(|| {
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < seconds {
            step(&mut pipeline);
            steps += 1;
        }
    });
    let (idle_for, idle) = used(|| std::thread::sleep(Duration::from_secs_f64(seconds / 2.0)));
    let actions = (steps * 2 * MICRO_BATCHES * stages) as f64;
    print!("{width:>5} {stages:>3} {:>10} {:>10.0}", format!("{place:?}").to_lowercase(), actions / took);
    println!(" {:>10.1} {:>16.1}", 1e6 * cpu / actions, 100.0 * idle / idle_for);
}

/// The seconds that something took, and this process' CPU time meanwhile: NaN where the system does not tell.
fn used(run: impl FnOnce()) -> (f64, f64) {
    let before = cpu_seconds();
    let took = time(run).as_secs_f64();
    (took, cpu_seconds() - before)
}

/// Of this process until now: Linux counts it in hundredths of a second.
fn cpu_seconds() -> f64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else { return f64::NAN };
    let behind_the_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |index| behind_the_name.split_whitespace().nth(index).and_then(|field| field.parse::<f64>().ok());
    ticks(11).zip(ticks(12)).map_or(f64::NAN, |(user, system)| (user + system) / 100.0)
}

const WAITING_STAGES: usize = 2;

fn waiting_load() -> Load {
    Load { shape: Shape { layers: 2, width: 128, context: 128 }, micro_batches: 8, micro_batch_size: 4 }
}

/// Two stages, each on a server, behind a latency.
fn wait(delay: Duration, pairs: usize) {
    let load = waiting_load();
    let costs = costs(&load);
    let servers = Servers::start(WAITING_STAGES, Transport::Websocket, delay);
    let devices = servers.devices();
    let link = link_speeds(&devices).expect("a network")[0].expect("two servers");
    let schedules: [&'static (dyn Schedule + Sync); 2] = [&OneFOneB, &EagerOneFOneB];
    let [mut plain, mut eager] = schedules.map(|schedule| load.on(&devices, schedule));
    let step = |pipeline: &mut Pipeline<Bytes, Bytes>| drop(pipeline.step(load.batch()).expect("a step"));
    let pairs = side_by_side(pairs, || step(&mut plain), || step(&mut eager));
    let (of_plain, of_eager) = pairs.medians();
    let [simulated_plain, simulated_eager] = schedules.map(|schedule| simulated(schedule, &load, costs, link.latency));
    print!("{:>5} ms {:>16.1} ms", delay.as_millis(), 1e3 * link.latency.as_secs_f64());
    print!(" {:>8.1} {:>8.1}", 1e3 * of_plain, 1e3 * of_eager);
    println!(" {:>40} {:>10.3}", pairs.to_string(), simulated_plain / simulated_eager);
}

/// Of a stage's forward and backward, in seconds, as a local thread takes them.
fn costs(load: &Load) -> (f64, f64) {
    let mut pipeline = load.pipeline(1);
    let mut step = || drop(pipeline.step(load.batch()).expect("a step"));
    step();
    let fastest = (0..5).map(|_| time(&mut step)).min().expect("five").as_secs_f64();
    let a_stage = fastest / (load.micro_batches * WAITING_STAGES) as f64;
    (a_stage / 3.0, 2.0 * a_stage / 3.0)
}

/// The step of a plan whose transfers take this long.
fn simulated(schedule: &dyn Schedule, load: &Load, (forward, backward): (f64, f64), latency: Duration) -> f64 {
    let plan = schedule.plan(WAITING_STAGES, load.micro_batches).expect("a plan");
    let checked = check(plan, load.micro_batches).expect("a plan that can run");
    let cost = StageCost::new(forward, backward, 0.0).with_latency(latency.as_secs_f64());
    simulate(&checked, &Costs::by_stage(vec![cost; WAITING_STAGES])).step()
}

/// The devices of servers that anyone here may use.
fn open(names: &[String]) -> Vec<Device> {
    let names: Vec<_> = names.iter().map(|name| name.parse::<DeviceName>().expect("a name")).collect();
    DeviceName::open_all(&names, None).expect("servers that answer")
}
