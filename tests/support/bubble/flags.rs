//! The flags of the bubble bench, and the measured cases, devices and ideal costs that follow from them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use stageline::DeviceName;
use stageline::schedule::{Costs, Schedule, StageCost, schedule_named};

use crate::bubble::warm_up::WarmUp;
use crate::paced::Pace;

/// Measures the bubble (idle share of the stage time) and the throughput of pipelines for every given schedule, P
/// (workers) and M (micro-batches)
#[derive(Parser)]
pub struct Flags {
    /// Values of P, the number of workers, to measure
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    pub stages: Vec<usize>,
    /// Values of M, the number of micro-batches, to measure
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    pub micro_batches: Vec<usize>,
    /// Names of published schedules to measure, such as zb-h1 or zb-v
    #[arg(long, value_delimiter = ',', default_value = "1f1b,gpipe,interleaved")]
    pub schedules: Vec<String>,
    /// Kind of stages in the measured pipelines: paced (they sleep instead of computing), cpu or cuda (a GPT on CPUs or
    /// GPUs)
    #[arg(long, value_enum, default_value_t = Kind::Paced)]
    pub kind: Kind,
    /// Milliseconds that a paced worker sleeps in the forwards of one micro-batch, summed over all chunks (stages) of
    /// the worker; with --batch, the milliseconds for one sample
    #[arg(long, allow_negative_numbers = true, default_value_t = 5.0)]
    pub forward_ms: f64,
    /// Milliseconds that a paced worker sleeps in the backwards of one micro-batch; half of this time is for the input
    /// gradients. With --batch, the milliseconds for one sample
    #[arg(long, allow_negative_numbers = true, default_value_t = 10.0)]
    pub backward_ms: f64,
    /// Number of consecutive steps whose times must agree before the warm-up of a measured pipeline ends
    #[arg(long, default_value_t = 3, value_name = "STEPS")]
    pub warm_up_steps: usize,
    /// Largest spread of step times, in percent, with which a warm-up ends. The spread says how much longer the longest
    /// of the last --warm-up-steps steps takes than the shortest
    #[arg(long, allow_negative_numbers = true, default_value_t = 10.0, value_name = "PERCENT")]
    pub warm_up_within: f64,
    /// Largest number of steps in the warm-up of a measured pipeline [default: 100 on GPUs, which tune kernels; 10
    /// otherwise]
    #[arg(long, value_name = "STEPS")]
    pub warm_up_most: Option<usize>,
    /// Number of measured steps of each pipeline, after the warm-up
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Overlaps steps: a stage begins the next step before the other stages have finished the current step
    #[arg(long)]
    pub overlap: bool,
    /// Number of transformer blocks of the GPT that stages of the kinds cpu and cuda run
    #[arg(long, default_value_t = 8)]
    pub layers: usize,
    /// Width of the GPT's activations
    #[arg(long, default_value_t = 256)]
    pub width: usize,
    /// Length of the GPT's samples, in bytes
    #[arg(long, default_value_t = 128)]
    pub context: usize,
    /// Number of samples in a micro-batch of the GPT, the same for every number of micro-batches M
    #[arg(long, default_value_t = 2)]
    pub micro_batch_size: usize,
    /// Number of samples in a batch, the same for every number of micro-batches M: a micro-batch has this number
    /// divided by M. Without this flag, the size of a micro-batch is the same for every M
    #[arg(long, conflicts_with = "micro_batch_size", value_name = "SAMPLES")]
    pub batch: Option<usize>,
    /// Devices for the stages with --kind cuda, separated by commas. The first stage takes the first device, and so on
    /// in turn
    #[arg(long, default_value = "cuda:0")]
    pub device: String,
    /// Folder to which the measurements are written: bubble.csv and bubble.json with the idle time by cause, bubble.md,
    /// the page bubble.html, and its pictures as SVG files
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Accepted and ignored, because `cargo bench` passes this flag to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// The kind of stages in the pipelines that the bubble bench measures: stages that sleep instead of computing, or a GPT
/// on CPUs or GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Stages that sleep for a given time instead of computing, and so use no CPU core
    Paced,
    /// Measures stages of a byte-level GPT, the model of the example gpt, on CPUs with one core for each worker
    Cpu,
    /// Measures stages of a byte-level GPT, the model of the example gpt, on NVIDIA GPUs
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

/// A case that the bubble bench measures: a combination of schedule, P (workers) and M (micro-batches).
#[derive(Clone, Copy)]
pub struct Case {
    pub schedule: &'static (dyn Schedule + Sync),
    pub workers: usize,
    pub micro_batches: usize,
    /// The number of samples in a micro-batch of the measured case; 1 if the stages sleep instead of computing and
    /// `--batch` is unset.
    pub micro_batch_size: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} P={} M={}", self.schedule.name(), self.workers, self.micro_batches)
    }
}

impl Case {
    /// Returns the number of stages of the measured case: P workers times the chunks (stages) per worker.
    pub fn stages(&self) -> usize {
        self.workers * self.schedule.chunks()
    }
}

impl Flags {
    /// Returns all cases to measure, which are the combinations of schedule, P and M: for each P the cases of every
    /// schedule, in ascending order of M.
    ///
    /// # Errors
    /// Returns an error if a flag is out of its range, the batch cannot be divided by an M, or a schedule's name is
    /// unknown.
    pub fn cases(&self) -> Result<Vec<Case>> {
        ensure!(self.rounds > 0, "--rounds 0: measure at least 1 step");
        for (flag, value) in [("--forward-ms", self.forward_ms), ("--backward-ms", self.backward_ms)] {
            ensure!((0.0..=60_000.0).contains(&value), "{flag} {value}: give 0 to 60000");
        }
        let WarmUp { agreeing, most, .. } = self.warm_up();
        ensure!(agreeing >= 2, "--warm-up-steps {agreeing}: give at least 2 steps, whose times can agree");
        ensure!(most >= agreeing, "--warm-up-most {most}: give at least {agreeing}, the steps that must agree");
        ensure!(self.warm_up_within >= 0.0, "--warm-up-within {}: give 0 or more", self.warm_up_within);
        let mut cases = Vec::new();
        for &workers in &self.stages {
            for name in &self.schedules {
                let schedule = schedule_named(name)?;
                for &micro_batches in &self.micro_batches {
                    let micro_batch_size = self.micro_batch_size(micro_batches)?;
                    cases.push(Case { schedule, workers, micro_batches, micro_batch_size });
                }
            }
        }
        Ok(cases)
    }

    /// Returns the criterion that ends the warm-up before the measured steps of a case.
    pub fn warm_up(&self) -> WarmUp {
        let most = self.warm_up_most.unwrap_or(if self.kind == Kind::Cuda { 100 } else { 10 });
        WarmUp { agreeing: self.warm_up_steps, within: self.warm_up_within / 100.0, most }
    }

    /// Returns the number of samples in each micro-batch of a step with `micro_batches` micro-batches. If `--batch` is
    /// given, it is the batch size divided by `micro_batches`; otherwise it does not depend on `micro_batches`.
    fn micro_batch_size(&self, micro_batches: usize) -> Result<usize> {
        let Some(batch) = self.batch else {
            return Ok(if self.kind == Kind::Paced { 1 } else { self.micro_batch_size });
        };
        ensure!(
            batch > 0 && micro_batches > 0 && batch % micro_batches == 0,
            "--batch {batch}: it cannot be divided into {micro_batches} equal micro-batches; give a multiple of every M"
        );
        Ok(batch / micro_batches)
    }

    /// Returns the times of the actions of one stage of a case whose stages sleep for a given time instead of
    /// computing.
    pub fn pace(&self, case: &Case) -> Pace {
        let share = case.micro_batch_size as f64 / case.schedule.chunks() as f64;
        let part = |milliseconds: f64| Duration::from_secs_f64(milliseconds / 1e3 * share);
        let half = part(self.backward_ms / 2.0);
        Pace { forward: part(self.forward_ms), input_gradient: half, weight_gradient: half }
    }

    /// Returns the costs of an ideal pipeline for a measured case, with equal stages and free transfers. For a GPT, a
    /// forward and each half of a backward (input gradient, weight gradient) cost 1.
    pub fn ideal(&self, case: &Case) -> Costs {
        let seconds = |time: Duration| time.as_secs_f64();
        let cost = match self.kind {
            Kind::Paced => {
                let Pace { forward, input_gradient, weight_gradient } = self.pace(case);
                StageCost::new(seconds(forward), seconds(input_gradient), seconds(weight_gradient))
            }
            Kind::Cpu | Kind::Cuda => StageCost::new(1.0, 1.0, 1.0),
        };
        Costs::equal(case.stages(), cost)
    }

    /// Opens the devices of the bubble bench: those of the flag `--device` for stages on GPUs, and otherwise the CPU.
    /// The stages take the devices in turn.
    ///
    /// # Errors
    /// Returns an error if `--device` has an invalid name, or if a device cannot be opened.
    pub fn devices(&self) -> Result<Vec<burn::tensor::Device>> {
        let names = if self.kind == Kind::Cuda { DeviceName::parse_list(&self.device)? } else { vec![DeviceName::Cpu] };
        Ok(names.into_iter().map(DeviceName::open).collect::<Result<_, _>>()?)
    }
}
