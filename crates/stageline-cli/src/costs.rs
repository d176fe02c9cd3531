//! The flags for the costs of stages ([`CostFlags`]) and for their memory ([`MemoryFlags`]), which several subcommands
//! share.

use std::collections::BTreeSet;

use anyhow::ensure;
use clap::Args;
use stageline_schedule::{Costs, Memory, StageCost, StageMemory, Transfers};

/// The flags for the costs of stages. Each cost is a comma-separated list: one entry for all stages, one for each of P
/// stages, or one for each of P x V chunks (the V parts of every stage). Times of a whole stage are divided evenly
/// among its chunks. Latencies, bytes and bandwidths are not divided.
#[derive(Args)]
pub(crate) struct CostFlags {
    /// Time of a stage's forward of one micro-batch, in ms; a comma-separated list gives each stage its own
    #[arg(long, value_delimiter = ',', value_name = "MS", default_value = "1", value_parser = amount)]
    forward: Vec<f64>,
    /// Time of the input-gradient half of a stage's backward of one micro-batch, in ms
    #[arg(long, value_delimiter = ',', value_name = "MS", default_value = "1", value_parser = amount)]
    input_grad: Vec<f64>,
    /// Time of the weight-gradient half of a stage's backward of one micro-batch, in ms
    #[arg(long, value_delimiter = ',', value_name = "MS", default_value = "1", value_parser = amount)]
    weight_grad: Vec<f64>,
    /// Time of a stage's whole backward of one micro-batch, in ms [default: the sum of --input-grad and --weight-grad]
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = amount)]
    backward: Vec<f64>,
    /// Latency of each transfer from a stage to another worker, in ms [default: 0]
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = amount)]
    transfer: Vec<f64>,
    /// Bytes that a stage sends to the next stage for one micro-batch, and receives back from it as a gradient
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = amount, requires = "bandwidth")]
    bytes: Vec<f64>,
    /// Bandwidth of the network link to the next stage, in GB/s for each direction; transfers in one direction run one
    /// after another
    #[arg(long, value_delimiter = ',', value_name = "GB/S", value_parser = rate, requires = "bytes")]
    bandwidth: Vec<f64>,
    /// Time of a stage's optimizer step, in ms
    #[arg(long, value_delimiter = ',', value_name = "MS", default_value = "0", value_parser = amount)]
    optimizer: Vec<f64>,
    /// Serialises the transfers of each worker on one communication stream, instead of letting them overlap
    #[arg(long)]
    serialised: bool,
}

/// The flags for the memory of stages, in bytes. The memory of a micro-batch is a comma-separated list: one entry for
/// all stages, one for each of P stages, or one for each of P x V chunks (the V parts of every stage). The memory of a
/// whole stage is divided evenly among its chunks.
#[derive(Args)]
pub(crate) struct MemoryFlags {
    /// Bytes of activations that a stage keeps for one micro-batch, from its forward to its backward
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = amount)]
    memory_per_forward: Vec<f64>,
    /// Bytes of --memory-per-forward that a stage still keeps for a micro-batch between its input gradient and its
    /// weight gradient [default: all]
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = amount, requires = "memory_per_forward")]
    memory_per_input_grad: Vec<f64>,
    /// Memory limit of a worker, in bytes
    #[arg(long, value_name = "BYTES", value_parser = amount, requires = "memory_per_forward")]
    memory_limit: Option<f64>,
}

impl CostFlags {
    /// Returns the costs of `workers` x `chunks` stages, in ms, as the flags give them: forwards, backwards, optimizer
    /// steps and transfers. A flag with a wrong number of entries is an error.
    pub(crate) fn costs(&self, workers: usize, chunks: usize) -> anyhow::Result<Costs> {
        let shared = |flag, list: &[f64]| spread(flag, list, workers, chunks, chunks as f64);
        let forward = shared("--forward", &self.forward)?;
        let input_gradient = shared("--input-grad", &self.input_grad)?;
        let weight_gradient = shared("--weight-grad", &self.weight_grad)?;
        let mut stages: Vec<_> = (0..workers * chunks)
            .map(|stage| StageCost::new(forward[stage], input_gradient[stage], weight_gradient[stage]))
            .collect();
        if !self.backward.is_empty() {
            for (cost, backward) in stages.iter_mut().zip(shared("--backward", &self.backward)?) {
                cost.backward = backward;
            }
        }
        let costs = Costs::by_stage(stages).with_optimizer(shared("--optimizer", &self.optimizer)?);
        self.with_transfers(costs, workers, chunks)
    }

    /// Whether the user gave a command-line flag for the times of transfers between stages.
    pub(crate) fn has_transfers(&self) -> bool {
        !self.transfer.is_empty() || !self.bytes.is_empty()
    }

    /// Returns the costs of stages `costs`, with the times of transfers between stages that the flags --transfer,
    /// --bytes and --bandwidth give, in ms. If none of these flags is set, the times of transfers stay the same. In
    /// both cases, the flag --serialised decides whether the transfers of a worker overlap.
    pub(crate) fn with_transfers(&self, costs: Costs, workers: usize, chunks: usize) -> anyhow::Result<Costs> {
        let transfers = if self.serialised { Transfers::Serialised } else { Transfers::Asynchronous };
        let costs = costs.with_transfers(transfers);
        if !self.has_transfers() {
            return Ok(costs);
        }
        // A chunk sends as much as a whole stage, so these are not divided.
        let latencies = match self.transfer.as_slice() {
            [] => vec![0.0; workers * chunks],
            list => spread("--transfer", list, workers, chunks, 1.0)?,
        };
        Ok(costs.with_latencies(&latencies).with_links(self.links(workers, chunks)?))
    }

    /// Returns the time in ms for which one transfer occupies the network link from each stage to the next: its bytes
    /// divided by the bandwidth, or 0 if --bytes is unset.
    fn links(&self, workers: usize, chunks: usize) -> anyhow::Result<Vec<f64>> {
        const BYTES_A_MS: f64 = 1e6; // at 1 GB/s
        if self.bytes.is_empty() {
            return Ok(vec![0.0; workers * chunks]);
        }
        let bytes = spread("--bytes", &self.bytes, workers, chunks, 1.0)?;
        let bandwidth = spread("--bandwidth", &self.bandwidth, workers, chunks, 1.0)?;
        Ok(bytes.into_iter().zip(bandwidth).map(|(bytes, bandwidth)| bytes / (bandwidth * BYTES_A_MS)).collect())
    }
}

impl MemoryFlags {
    /// Returns the memory that the flags give: the bytes of activations that a micro-batch occupies on each of
    /// `workers` x `chunks` stages, and the memory limit of a worker in bytes. Returns `None` if --memory-per-forward
    /// is unset.
    pub(crate) fn memory(&self, workers: usize, chunks: usize) -> anyhow::Result<Option<Memory>> {
        if self.memory_per_forward.is_empty() {
            return Ok(None);
        }
        let shared = |flag, list: &[f64]| spread(flag, list, workers, chunks, chunks as f64);
        let forward = shared("--memory-per-forward", &self.memory_per_forward)?;
        let input_gradient = match self.memory_per_input_grad.as_slice() {
            [] => forward.clone(),
            list => shared("--memory-per-input-grad", list)?,
        };
        let pairs = forward.into_iter().zip(input_gradient);
        let stages = pairs.map(|(forward, input_gradient)| StageMemory { forward, input_gradient }).collect();
        Ok(Some(Memory { stages, limit: self.memory_limit.unwrap_or(f64::INFINITY) }))
    }
}

/// Returns the value of a cost flag for each of `workers` x `chunks` stages. The flag's `list` has one entry for all
/// stages, one for each worker, or one for each stage. Another length is an error.
///
/// An entry for all stages or for a worker is divided by `share`. That is the number of chunks if the entry is the
/// total of a worker's stages, and 1 if it is the value of a single stage.
fn spread(flag: &str, list: &[f64], workers: usize, chunks: usize, share: f64) -> anyhow::Result<Vec<f64>> {
    let stages = workers * chunks;
    let lengths = BTreeSet::from([1, workers, stages]);
    ensure!(
        lengths.contains(&list.len()),
        "{flag} has {} entries; for {workers} stages in {chunks} chunks each give a list of {}",
        list.len(),
        lengths.iter().map(usize::to_string).collect::<Vec<_>>().join(" or ")
    );
    let entry = |stage: usize| match list {
        [all] => all / share,
        list if list.len() == workers => list[stage / chunks] / share,
        list => list[stage],
    };
    Ok((0..stages).map(entry).collect())
}

/// The largest time or size that a command-line flag for costs accepts, so that sums of many such numbers stay exact.
const MOST: f64 = 1e15;

/// Parses the value of a command-line flag for a bandwidth in GB/s: a number from 10^-15 to 10^15. A division by a
/// smaller number could overflow.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let number = amount(text)?;
    if number >= 1.0 / MOST { Ok(number) } else { Err(format!("must be at least {:e}", 1.0 / MOST)) }
}

/// Parses the value of a command-line flag for a time or a size: a number from 0 to 10^15.
pub(crate) fn amount(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=MOST).contains(&number) { Ok(number) } else { Err(format!("must be from 0 to {MOST:e}")) }
}
