//! Stages on server processes of this host: how many actions a second one controller drives, beside local threads. What a network with
//! a latency costs is measured by `scripts/remote-latency.py`.
//!
//! ```text
//! cargo bench --bench remote
//! ```

#[path = "../examples/gpt/cut.rs"]
#[allow(dead_code)] // the bench joins nothing
mod cut;
#[path = "support/gpt.rs"]
#[allow(dead_code)] // the bench has no plain loop
mod gpt;
#[path = "../examples/gpt/model.rs"]
#[allow(dead_code)] // the bench samples no text
mod model;
#[path = "remote/servers.rs"]
mod servers;

use std::process::Command;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use clap::{Parser, Subcommand, ValueEnum};
use stageline::schedule::OneFOneB;
use stageline::{CountingAllocator, DeviceName, Pipeline};

use crate::cut::Bytes;
use crate::gpt::Load;
use crate::model::Shape;
use crate::servers::{Servers, Transport};

/// Counts what stages hold, as in programs that ask for it.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Times stages on servers.
#[derive(Parser)]
struct Flags {
    /// Seconds of timed steps for each row
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
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
    /// Prints one row
    #[command(hide = true)]
    Drive { place: Place, width: usize, stages: usize },
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
    let served = |transport| Servers::start(stages, transport);
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
    let (start, before) = (Instant::now(), cpu_seconds());
    run();
    (start.elapsed().as_secs_f64(), cpu_seconds() - before)
}

/// Of this process until now: Linux counts it in hundredths of a second.
fn cpu_seconds() -> f64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else { return f64::NAN };
    let behind_the_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |index| behind_the_name.split_whitespace().nth(index).and_then(|field| field.parse::<f64>().ok());
    ticks(11).zip(ticks(12)).map_or(f64::NAN, |(user, system)| (user + system) / 100.0)
}

/// The devices of servers that anyone here may use.
fn open(names: &[String]) -> Vec<Device> {
    let names: Vec<_> = names.iter().map(|name| name.parse::<DeviceName>().expect("a name")).collect();
    DeviceName::open_all(&names, None).expect("servers that answer")
}
