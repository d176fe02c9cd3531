//! What is measured.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use stageline::DeviceName;
use stageline::schedule::{Costs, Schedule, StageCost, schedule_named};

use crate::paced::Pace;

/// Measures the bubble and the throughput for every schedule, P and M.
#[derive(Parser)]
pub struct Flags {
    /// P: numbers of workers
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    pub stages: Vec<usize>,
    /// M: numbers of micro-batches
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    pub micro_batches: Vec<usize>,
    /// Any of the published ones, such as zb-h1 or zb-v
    #[arg(long, value_delimiter = ',', default_value = "1f1b,gpipe,interleaved")]
    pub schedules: Vec<String>,
    /// What the stages do
    #[arg(long, value_enum, default_value_t = Kind::Paced)]
    pub kind: Kind,
    /// Of a worker's paced stages together, for one micro-batch
    #[arg(long, allow_negative_numbers = true, default_value_t = 5.0)]
    pub forward_ms: f64,
    /// The same, for the backward, whose halves take the same
    #[arg(long, allow_negative_numbers = true, default_value_t = 10.0)]
    pub backward_ms: f64,
    /// Steps that are measured, after one that is not
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Steps that overlap: a stage that is done with one begins the next
    #[arg(long)]
    pub overlap: bool,
    /// Transformer blocks of the GPT, for `cpu` and `cuda`
    #[arg(long, default_value_t = 8)]
    pub layers: usize,
    /// The size of its activations
    #[arg(long, default_value_t = 256)]
    pub width: usize,
    /// The length of its samples, in bytes
    #[arg(long, default_value_t = 128)]
    pub context: usize,
    /// Its samples in a micro-batch
    #[arg(long, default_value_t = 2)]
    pub micro_batch_size: usize,
    /// For `cuda`: where its stages are, in turn
    #[arg(long, default_value = "cuda:0")]
    pub device: String,
    /// Writes a line a measurement
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Writes a list of objects
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes a page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// What the stages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Each action waits for its time and takes no core
    Paced,
    /// The example's GPT, one core a worker
    Cpu,
    /// The same on NVIDIA GPUs
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

/// One point of the measurement.
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

    /// What one of a worker's chunks takes.
    pub fn pace(&self, chunks: usize) -> Pace {
        let part = |milliseconds: f64| Duration::from_secs_f64(milliseconds / 1e3 / chunks as f64);
        let half = part(self.backward_ms / 2.0);
        Pace { forward: part(self.forward_ms), input_gradient: half, weight_gradient: half }
    }

    /// Equal stages and free transfers; a GPT's forward and the halves of its backward take the same.
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

    pub fn devices(&self) -> Result<Vec<burn::tensor::Device>> {
        let names = if self.kind == Kind::Cuda { DeviceName::parse_list(&self.device)? } else { vec![DeviceName::Cpu] };
        Ok(names.into_iter().map(DeviceName::open).collect::<Result<_, _>>()?)
    }
}
