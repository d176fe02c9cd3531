//! The flags of the bubble bench, and the cases, devices and ideal costs that follow from them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use stageline::DeviceName;
use stageline::schedule::{Costs, Schedule, StageCost, schedule_named};

use crate::paced::Pace;

/// Measures the bubble and the throughput for every schedule, P and M
#[derive(Parser)]
pub struct Flags {
    /// Values of P, the number of workers
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    pub stages: Vec<usize>,
    /// Values of M, the number of micro-batches
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    pub micro_batches: Vec<usize>,
    /// Names of published schedules, such as zb-h1 or zb-v
    #[arg(long, value_delimiter = ',', default_value = "1f1b,gpipe,interleaved")]
    pub schedules: Vec<String>,
    /// The kind of stages
    #[arg(long, value_enum, default_value_t = Kind::Paced)]
    pub kind: Kind,
    /// Milliseconds that a paced worker spends on the forwards of one micro-batch, all its chunks together
    #[arg(long, allow_negative_numbers = true, default_value_t = 5.0)]
    pub forward_ms: f64,
    /// Milliseconds that a paced worker spends on the backwards of one micro-batch, half of it for input gradients
    #[arg(long, allow_negative_numbers = true, default_value_t = 10.0)]
    pub backward_ms: f64,
    /// Measured steps of each case, after one step of warm-up
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Overlaps steps: a stage begins the next step before the others have finished this one
    #[arg(long)]
    pub overlap: bool,
    /// Transformer blocks of the GPT, for `cpu` and `cuda`
    #[arg(long, default_value_t = 8)]
    pub layers: usize,
    /// The width of the GPT's activations
    #[arg(long, default_value_t = 256)]
    pub width: usize,
    /// The length of the GPT's samples, in bytes
    #[arg(long, default_value_t = 128)]
    pub context: usize,
    /// Samples of a micro-batch of the GPT
    #[arg(long, default_value_t = 2)]
    pub micro_batch_size: usize,
    /// Devices of the stages for `cuda`, in turn
    #[arg(long, default_value = "cuda:0")]
    pub device: String,
    /// Writes a CSV file with one line per measurement
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Writes a JSON file with one object per measurement
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes an HTML page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Ignored: `cargo bench` passes it
    #[arg(long, hide = true)]
    bench: bool,
}

/// The stages that the bench runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Stages whose actions wait for a given time and take no core
    Paced,
    /// The example's GPT, one core a worker
    Cpu,
    /// The example's GPT on NVIDIA GPUs
    Cuda,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paced => "paced",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        })
    }
}

/// One combination of schedule, P and M to measure.
pub struct Case {
    pub schedule: &'static (dyn Schedule + Sync),
    pub workers: usize,
    pub micro_batches: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} P={} M={}", self.schedule.name(), self.workers, self.micro_batches)
    }
}

impl Flags {
    /// Returns every combination of schedule, P and M.
    ///
    /// # Errors
    ///
    /// A flag is out of its range, or a schedule's name is unknown.
    pub fn cases(&self) -> Result<Vec<Case>> {
        ensure!(self.rounds > 0, "--rounds 0: measure at least 1 step");
        for (flag, value) in [("--forward-ms", self.forward_ms), ("--backward-ms", self.backward_ms)] {
            ensure!((0.0..=60_000.0).contains(&value), "{flag} {value}: give 0 to 60000");
        }
        let mut cases = Vec::new();
        for name in &self.schedules {
            let schedule = schedule_named(name)?;
            for &workers in &self.stages {
                for &micro_batches in &self.micro_batches {
                    cases.push(Case { schedule, workers, micro_batches });
                }
            }
        }
        Ok(cases)
    }

    /// Returns the times of one stage, where a worker has `chunks` of them.
    pub fn pace(&self, chunks: usize) -> Pace {
        let part = |milliseconds: f64| Duration::from_secs_f64(milliseconds / 1e3 / chunks as f64);
        let half = part(self.backward_ms / 2.0);
        Pace { forward: part(self.forward_ms), input_gradient: half, weight_gradient: half }
    }

    /// Returns the costs of an ideal pipeline: equal stages and free transfers. For a GPT a forward and each half of a
    /// backward cost 1.
    pub fn ideal(&self, chunks: usize, stages: usize) -> Costs {
        let seconds = |time: Duration| time.as_secs_f64();
        let cost = match self.kind {
            Kind::Paced => {
                let Pace { forward, input_gradient, weight_gradient } = self.pace(chunks);
                StageCost::new(seconds(forward), seconds(input_gradient), seconds(weight_gradient))
            }
            Kind::Cpu | Kind::Cuda => StageCost::new(1.0, 1.0, 1.0),
        };
        Costs::equal(stages, cost)
    }

    /// Opens the devices of the stages, which they take in turn.
    ///
    /// # Errors
    ///
    /// A name in `--device` is no device, or the device cannot be opened.
    pub fn devices(&self) -> Result<Vec<burn::tensor::Device>> {
        let names = if self.kind == Kind::Cuda { DeviceName::parse_list(&self.device)? } else { vec![DeviceName::Cpu] };
        Ok(names.into_iter().map(DeviceName::open).collect::<Result<_, _>>()?)
    }
}
