//! Measures the rate of actions (forward and backward passes of micro-batches) of a training run whose stages are on
//! server processes of this host, and compares it with stages on local threads. Also measures the CPU time per action
//! in the training run's own process. `scripts/remote-latency.py` measures the cost of a network with latency.
//!
//! ```text
//! cargo bench --bench remote
//! ```

mod servers;

use stageline_gpt::model;
use std::process::Command;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use clap::{Parser, Subcommand, ValueEnum};
use stageline::schedule::OneFOneB;
use stageline::{CountingAllocator, DeviceName, Pipeline};
use stageline_workspace::gpt;

use crate::gpt::Load;
use crate::model::{Bytes, Logits, Shape};
use crate::servers::{Servers, Transport};

/// The bench's allocator. It counts allocated bytes as in a training run, so the measured times include the cost of
/// counting.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Measures the rate of actions (forward and backward passes) in pipelines, with stages on server processes and on
/// local threads
#[derive(Parser)]
struct Flags {
    /// Seconds of timed training steps for each row of the printed table
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Ignored; accepted because `cargo bench` passes it to every bench
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The bench's subcommands, with which it starts its own program as a server, or in a fresh process for each row of the
/// table, because burn keeps connections to servers until a process ends.
#[derive(Clone, Copy, Subcommand)]
enum Part {
    /// Serves one of this host's CPU devices to the bench, as a server process
    #[command(hide = true)]
    Serve { transport: Transport },
    /// Measures and prints one row of the bench's table: the number of actions per second with stages on servers or on
    /// local threads
    #[command(hide = true)]
    Drive { place: Place, width: usize, stages: usize },
}

/// Where the pipeline's stages run: on threads of this process, or on server processes that are reached over a network
/// transport.
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
        "1F1B, M = {MICRO_BATCHES}: actions (2 M P a step) a second; the controller's CPU time per action, and while it is idle"
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

/// Runs the bench's own program in a new process with the given arguments, and waits until it ends.
fn alone(arguments: &[&str]) {
    let program = std::env::current_exe().expect("this program");
    let ended = Command::new(program).args(arguments).status().expect("this program");
    assert!(ended.success(), "{arguments:?}: {ended}");
}

const MICRO_BATCHES: usize = 32;

/// Measures the rate of actions (forward and backward passes) for `seconds` seconds and prints it as one row of the
/// table. The pipeline is a GPT of `stages` transformer blocks on as many stages, which run at `place`. The model is so
/// small that sending actions takes more time than their computation.
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
    let step = |pipeline: &mut Pipeline<Bytes, Logits, Bytes>| drop(pipeline.step(load.batch()).expect("a step"));
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

/// Runs a closure. Returns its duration and the CPU time that this process used during it, both in seconds. The CPU
/// time is NaN on systems other than Linux.
fn used(run: impl FnOnce()) -> (f64, f64) {
    let (start, before) = (Instant::now(), cpu_seconds());
    run();
    (start.elapsed().as_secs_f64(), cpu_seconds() - before)
}

/// Returns this process's total CPU time in seconds, with a resolution of 0.01 s; NaN on systems other than Linux.
fn cpu_seconds() -> f64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else { return f64::NAN };
    let behind_the_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |index| behind_the_name.split_whitespace().nth(index).and_then(|field| field.parse::<f64>().ok());
    ticks(11).zip(ticks(12)).map_or(f64::NAN, |(user, system)| (user + system) / 100.0)
}

/// Opens the remote devices `names`. Their servers require no secret token.
fn open(names: &[String]) -> Vec<Device> {
    let names: Vec<_> = names.iter().map(|name| name.parse::<DeviceName>().expect("a name")).collect();
    DeviceName::open_all(&names, None).expect("servers that answer")
}
