//! The command-line flags for the costs of stages ([`CostFlags`]) and for their memory ([`MemoryFlags`]), which several
//! subcommands share.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use clap::Args;
use stageline_schedule::{Costs, Memory, Placement, StageCost, StageMemory, Transfers};

/// The command-line flags for the costs of stages, such as forward times. Each cost is a comma-separated list for P
/// workers with V stages (chunks) each:
///
/// - One entry is each worker's total, which is divided evenly among the worker's stages.
/// - P x V entries are the costs of all stages, in order.
/// - P entries are the totals of groups of V consecutive stages. Each is divided evenly among its group.
///
/// Transfer times are not divided. In a list of P entries, `--transfer` has the latency of the tensors that each worker
/// sends, and `--bytes` and `--bandwidth` have the link from each worker to the next.
#[derive(Args)]
pub(crate) struct CostFlags {
    /// Time of the forward pass of one micro-batch on a worker, in ms, which is divided evenly among the worker's
    /// stages. A comma-separated list has one time for each stage, or P times, each the total of V consecutive stages
    #[arg(long, value_delimiter = ',', value_name = "MS", default_value = "1", value_parser = amount)]
    #[arg(allow_hyphen_values = true)]
    forward: Vec<f64>,
    /// Time of the input-gradient half of the backward pass of one micro-batch on a worker, in ms, or a list as for
    /// --forward [default: 1, or half of --backward]
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = amount)]
    #[arg(allow_hyphen_values = true)]
    input_grad: Vec<f64>,
    /// Time of the weight-gradient half of the backward pass of one micro-batch on a worker, in ms, or a list as for
    /// --forward [default: 1, or half of --backward]
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = amount)]
    #[arg(allow_hyphen_values = true)]
    weight_grad: Vec<f64>,
    /// Time of the whole backward pass of one micro-batch on a worker, in ms, or a list as for --forward [default: the
    /// sum of --input-grad and --weight-grad]
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = amount)]
    #[arg(allow_hyphen_values = true)]
    backward: Vec<f64>,
    /// Latency of each transfer from a stage to another worker, in ms; a list of P entries has one for each sending
    /// worker [default: 0]
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = amount)]
    #[arg(allow_hyphen_values = true)]
    transfer: Vec<f64>,
    /// Bytes that a stage sends to the next stage for one micro-batch, and receives back from it as a gradient; a list
    /// of P entries has one for each link, as for --bandwidth
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = amount, requires = "bandwidth")]
    #[arg(allow_hyphen_values = true)]
    bytes: Vec<f64>,
    /// Bandwidth of the network link between two workers, in GB/s for each direction; transfers in one direction run
    /// one after another. A list of P entries has the link from each worker to the next. The last entry is the link
    /// from the last of three or more workers back to the first, which is used if each worker has several stages in
    /// turn
    #[arg(long, value_delimiter = ',', value_name = "GB/S", value_parser = rate, requires = "bytes")]
    #[arg(allow_hyphen_values = true)]
    bandwidth: Vec<f64>,
    /// Time of the optimizer step of a worker, in ms, or a list as for --forward
    #[arg(long, value_delimiter = ',', value_name = "MS", default_value = "0", value_parser = amount)]
    #[arg(allow_hyphen_values = true)]
    optimizer: Vec<f64>,
    /// Serialises the transfers of each worker on one communication stream, instead of letting them overlap
    #[arg(long)]
    serialised: bool,
}

/// The command-line flags for the memory of stages, in bytes. The memory of a micro-batch is a comma-separated list for
/// P workers with V stages (chunks) each. It has one entry (each worker's total), P x V entries (one for each stage),
/// or P entries (totals of groups of V consecutive stages). Totals are divided evenly among the stages.
#[derive(Args)]
pub(crate) struct MemoryFlags {
    /// Bytes of activations that a worker retains for one micro-batch, from its forward pass to its backward pass, or a
    /// list as for --forward
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = amount)]
    #[arg(allow_hyphen_values = true)]
    memory_per_forward: Vec<f64>,
    /// Bytes of --memory-per-forward that a worker still retains for a micro-batch between its input gradient and its
    /// weight gradient, or a list as for --forward [default: all]
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = amount, requires = "memory_per_forward")]
    #[arg(allow_hyphen_values = true)]
    memory_per_input_grad: Vec<f64>,
    /// Memory limit of a worker, in bytes
    #[arg(long, value_name = "BYTES", value_parser = amount, requires = "memory_per_forward")]
    #[arg(allow_hyphen_values = true)]
    memory_limit: Option<f64>,
}

impl CostFlags {
    /// Converts the flags to the costs of the stages in `placement`, in ms: forward passes, backward passes, optimizer
    /// steps and transfers. Returns an error if a flag has a wrong number of entries, or if --backward is given with
    /// only one of --input-grad and --weight-grad.
    pub(crate) fn costs(&self, placement: &Placement) -> anyhow::Result<Costs> {
        let shared = |flag, list: &[f64]| spread(flag, list, placement, Entry::Stage);
        let forward = shared("--forward", &self.forward)?;
        let [input_gradient, weight_gradient] = match (&*self.input_grad, &*self.weight_grad, &*self.backward) {
            ([], [], backward @ [_, ..]) => {
                let halves: Vec<_> = shared("--backward", backward)?.iter().map(|whole| whole / 2.0).collect();
                [halves.clone(), halves]
            }
            ([], [..], [_, ..]) => {
                bail!("--weight-grad and --backward need --input-grad too, because a backward has both parts")
            }
            ([..], [], [_, ..]) => {
                bail!("--input-grad and --backward need --weight-grad too, because a backward has both parts")
            }
            (input, weight, _) => {
                let or_one = |list: &[f64]| if list.is_empty() { vec![1.0] } else { list.to_vec() };
                [shared("--input-grad", &or_one(input))?, shared("--weight-grad", &or_one(weight))?]
            }
        };
        let mut stages: Vec<_> = (0..placement.stages())
            .map(|stage| StageCost::new(forward[stage], input_gradient[stage], weight_gradient[stage]))
            .collect();
        if !self.backward.is_empty() {
            for (cost, backward) in stages.iter_mut().zip(shared("--backward", &self.backward)?) {
                cost.backward = backward;
            }
        }
        let costs = Costs::by_stage(stages).with_optimizer(shared("--optimizer", &self.optimizer)?);
        self.with_transfers(costs, placement)
    }

    /// Whether the user set the times of transfers between stages, with --transfer or --bytes.
    pub(crate) fn has_transfers(&self) -> bool {
        !self.transfer.is_empty() || !self.bytes.is_empty()
    }

    /// Applies the transfer flags to `costs`. If --transfer or --bytes is set, these flags and --bandwidth replace the
    /// times of transfers between stages (in ms). The flag --serialised decides whether a worker's transfers overlap.
    pub(crate) fn with_transfers(&self, costs: Costs, placement: &Placement) -> anyhow::Result<Costs> {
        let transfers = if self.serialised { Transfers::Serialised } else { Transfers::Asynchronous };
        let costs = costs.with_transfers(transfers);
        if !self.has_transfers() {
            return Ok(costs);
        }
        // Every stage sends tensors of the same size as a worker's only stage would, so transfer times are not divided.
        let latencies = match self.transfer.as_slice() {
            [] => vec![0.0; placement.stages()],
            list => spread("--transfer", list, placement, Entry::Sender)?,
        };
        Ok(costs.with_latencies(&latencies).with_links(self.links(placement)?))
    }

    /// Returns how long, in ms, one transfer from each stage to the next occupies the network link: bytes / bandwidth,
    /// or 0 if --bytes is unset.
    fn links(&self, placement: &Placement) -> anyhow::Result<Vec<f64>> {
        const BYTES_A_MS: f64 = 1e6; // the bytes that a link of 1 GB/s sends in 1 ms
        if self.bytes.is_empty() {
            return Ok(vec![0.0; placement.stages()]);
        }
        let bytes = spread("--bytes", &self.bytes, placement, Entry::Link)?;
        let bandwidth = spread("--bandwidth", &self.bandwidth, placement, Entry::Link)?;
        Ok(bytes.into_iter().zip(bandwidth).map(|(bytes, bandwidth)| bytes / (bandwidth * BYTES_A_MS)).collect())
    }
}

impl MemoryFlags {
    /// Converts the flags to the memory of one micro-batch on each stage in `placement`, and a worker's memory limit,
    /// both in bytes. The limit is infinite without --memory-limit. Returns `None` if --memory-per-forward is unset.
    pub(crate) fn memory(&self, placement: &Placement) -> anyhow::Result<Option<Memory>> {
        if self.memory_per_forward.is_empty() {
            return Ok(None);
        }
        let shared = |flag, list: &[f64]| spread(flag, list, placement, Entry::Stage);
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

/// How to apply a cost flag's list that has P entries, one for each worker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// Divide entry i, counted from 0, evenly among the i-th group of V consecutive stages, where V is the number of
    /// stages per worker. If the list has only one entry, this is each worker's total, which is divided evenly among
    /// the worker's stages.
    Stage,
    /// Use an entry, undivided, for all tensors that one worker sends to other workers.
    Sender,
    /// Use an entry, undivided, for the network link from one worker to the next, in both directions.
    Link,
}

/// Expands the `list` of the cost flag `flag` to one value per stage of `placement`. The list has one entry in total,
/// one per stage, or one per worker (if all workers have the same number of stages); `entry` says how the latter is
/// applied. Any other length is an error.
fn spread(flag: &str, list: &[f64], placement: &Placement, entry: Entry) -> anyhow::Result<Vec<f64>> {
    let (workers, stages) = (placement.workers(), placement.stages());
    let on = |worker: usize| placement.stages_of()[worker].len();
    let even = (0..workers).all(|worker| on(worker) * workers == stages);
    let lengths: BTreeSet<_> = [1, stages].into_iter().chain(even.then_some(workers)).collect();
    ensure!(
        lengths.contains(&list.len()),
        "{flag} has {} entries; for {workers} workers with {stages} stages in all, give a list of {}{}",
        list.len(),
        lengths.iter().map(usize::to_string).collect::<Vec<_>>().join(" or "),
        if even { "" } else { ", because a list of as many entries as workers needs equally many stages on each" }
    );
    let value = |stage: usize| {
        let worker = placement.worker(stage);
        let chunks = on(worker);
        match (list, entry) {
            ([all], Entry::Stage) => all / chunks as f64,
            ([all], _) => *all,
            (list, Entry::Sender) if list.len() == workers => list[worker],
            (list, Entry::Link) if list.len() == workers => list[placement.link_after(stage)],
            (list, _) if list.len() == stages => list[stage],
            (list, _) => list[stage / chunks] / chunks as f64,
        }
    };
    Ok((0..stages).map(value).collect())
}

/// Upper limit of the times (ms), sizes (bytes) and bandwidths (GB/s) that the command-line flags for costs accept.
/// Sums of such values over all stages and micro-batches then stay far below the largest f64.
const MOST: f64 = 1e15;

/// Parses a command-line bandwidth in GB/s: a number from 10^-15 to 10^15. Division by a smaller number could overflow.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    within(text, 1.0 / MOST)
}

/// Parses a command-line time or size: a number from 0 to 10^15.
pub(crate) fn amount(text: &str) -> Result<f64, String> {
    within(text, 0.0)
}

/// Parses a command-line number from `least` to 10^15. The error says which range is allowed.
fn within(text: &str, least: f64) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| "not a number".to_owned())?;
    if (least..=MOST).contains(&number) {
        Ok(number)
    } else {
        Err(format!("must be from {} to {MOST:e}", if least > 0.0 { format!("{least:e}") } else { "0".to_owned() }))
    }
}
