//! Tests a GPU that a server lends to a training (`stageline serve`): it computes by the same kernels as a GPU of this
//! host.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use burn::tensor::FloatDType;
use serde_json::Value;
use stageline_workspace::programs::program;
use stageline_workspace::runs::{Place, steps_in, wait_for_lines};

use crate::counters::of_first_halves;
use crate::{assert_near, gpu_name, killed, open};

/// A running process of `stageline serve` that lends the tests' GPU. Dropping this value kills the process.
struct Server {
    process: Child,
    /// The name of the GPU as the flag `--device` takes it.
    device: String,
}

impl Server {
    /// Starts a server process, and waits until it has printed the name of its GPU.
    fn start() -> Self {
        let flags = "serve --transport websocket --allow-anyone --port 0 --device";
        let mut command = program("stageline");
        command.args(flags.split(' ')).arg(gpu_name());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let named = lines.map(|line| line.unwrap()).find_map(|line| Some(line.strip_prefix("--device ")?.to_owned()));
        Self { process, device: named.unwrap() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Trains the GPT example for a few steps with the given flags. Returns the losses, and what the program printed.
fn trained(flags: &str) -> (Vec<f64>, String) {
    let place = Place::new();
    let mut command = place.command(&format!("--steps 4 --log @log {flags}"));
    // The message at the level DEBUG names the weight gradients that are not left to second halves of backwards.
    command.env("RUST_LOG", "warn,burn_remote=error,stageline=info,stageline_train=info,stageline::runner=debug");
    let output = command.output().unwrap();
    let said = place.shown(&output) + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{flags}: {said}");
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    (lines.filter(|line| line["step"].is_u64()).map(|line| line["loss"].as_f64().unwrap()).collect(), said)
}

/// Tests that training on a lent GPU of a server gives the same losses as training on the same GPU directly. The cases
/// are whole and split backwards, recomputation, and heads too large for the FlashAttention kernels. The run's first
/// lines name the kernels and say that they are compiled. Every layer uses the kernels, and splits its backward if the
/// schedule does.
#[test]
fn a_lent_gpu_trains_by_the_kernels_of_a_gpu() {
    let server = Server::start();
    let here = open("gpu").remove(0);
    let half = [("bf16", FloatDType::BF16), ("f16", FloatDType::F16)];
    let half = half.into_iter().filter(|(_, dtype)| here.supports_dtype(*dtype)).map(|(name, _)| name);
    let types = match half.collect::<Vec<_>>().join(" and ") {
        none if none.is_empty() => "f32".to_owned(),
        both if both.contains("and") => format!("f32, {both}"),
        one => format!("f32 and {one}"),
    };
    for flags in ["", "--schedule zb-h1", "--recompute full", "--width 257"] {
        let (expected, _) = trained(&format!("--device {} {flags}", gpu_name()));
        let (found, said) = trained(&format!("--device {} {flags}", server.device));
        assert_near(&found, &expected, flags);
        let kernels = format!("`{}` computes by Stageline's kernels for GPUs, in {types}; attention ", server.device);
        assert!(said.contains(&kernels), "{said}");
        let compiling = format!("compiling kernels for {} ...\n", server.device);
        assert!(said.contains(&compiling) && said.contains("the kernels are ready after "), "{said}");
        for fallback in ["burn's own operations", "is not split"] {
            assert!(!said.contains(fallback), "{flags}: {said}");
        }
        let of_first_halves = of_first_halves(&said);
        assert_eq!(of_first_halves.is_empty(), !flags.contains("zb-h1"), "{flags}: {said}");
        // Only the table of positions is a parameter without a layer that splits its backward.
        for stage in of_first_halves {
            assert!(stage.ends_with(": 0 ()") || stage.contains(": 1 (") && stage.ends_with("positions)"), "{stage}");
        }
        assert_eq!(said.contains("stores its scores"), flags.contains("--width"), "{flags}: {said}");
    }
}

/// Tests a training that loses a lent GPU, because the process that lends it is killed. The error names the GPU's host
/// and stage. The training resumes on the CPU with the losses of a training on the CPU.
#[test]
fn training_resumes_on_the_cpu_after_a_lent_gpu_was_lost() {
    const KEEPING: &str = "--checkpoint @kept --every 1 --watchdog 5 --log @log";
    let (place, mut server) = (Place::new(), Server::start());
    let mut command = place.command(&format!("--device cpu,{} --steps 400 {KEEPING}", server.device));
    let mut training = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_lines(&place.path("log"), 4, &mut training);
    server.process.kill().unwrap();
    let output = training.wait_with_output().unwrap();
    let said = place.shown(&output);
    assert!(!output.status.success(), "{said}");
    let host = server.device.strip_suffix("/0").unwrap();
    assert!(said.contains(&format!("Error: the host of stage 1 (`{host}`) is lost: ")), "{said}");

    let steps = steps_in(&place.path("log")) + 2;
    let resumed = place.said(&format!("--device cpu --resume latest --steps {steps} {KEEPING}"));
    let whole = Place::new().said(&format!("--device cpu --steps {steps} --schedule-steps 400"));
    killed::assert_near(killed::last_loss(&resumed), killed::last_loss(&whole));
}
