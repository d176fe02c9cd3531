//! Finds the best partitions of a model's layers over several hosts, and predicts the step time of each: [`HostCut`].
//!
//! The bytes of a transfer are known only at the run's stage boundaries, so only these are candidates for a boundary
//! between hosts. On each host, the layers are spread over the stages as evenly as possible. Every choice of boundaries
//! is simulated, with a network link at each boundary between hosts. With several stages (chunks) per worker, two hosts
//! meet at several boundaries.

use std::ops::Range;

use stageline_schedule::Schedule;

use super::error::PredictError;
use super::measured::Measured;
use super::network::Hosts;
use super::prediction::Prediction;
use super::target::{Cut, Target};
use crate::log::record::Link;

/// Maximum number of ways to choose the boundaries between hosts. More are an error, because each way must be
/// simulated.
const MOST: usize = 10_000;

/// A partition of the model's layers over several hosts, with its predicted performance. [`Measured::host_cuts`]
/// returns these, the fastest first.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCut {
    /// Boundaries between hosts, in ascending order, as zero-based indices of stages of the logged run. The next host
    /// begins after the last layer of such a stage.
    pub behind: Vec<usize>,
    /// Size in bytes of one micro-batch's activation at each boundary between hosts, in the order of `behind`. The
    /// gradient that comes back has the same size, and is not counted here.
    pub bytes: Vec<f64>,
    /// Seconds that the slowest worker takes for the forward and backward pass of one micro-batch on its layers.
    pub slowest: f64,
    /// Predicted step time, bubble, throughput and memory of this partition of the layers over the hosts, if hosts are
    /// connected by the network link that the caller gives.
    pub prediction: Prediction,
}

impl Measured {
    /// Returns partitions of the model's layers over `hosts`, each with its predicted performance. There is one for
    /// every way to choose the boundaries between hosts from the stage boundaries of the logged run. The partition with
    /// the shortest predicted step comes first; of equal steps, the one with fewer bytes between hosts.
    ///
    /// # Errors
    /// Returns [`PredictError`] in these cases:
    ///
    /// - There is no way to choose the boundaries between hosts, or more than 10,000 ways.
    /// - The schedule has no plan for these numbers of workers and micro-batches.
    /// - A network link is invalid, or the log lacks the bytes between stages.
    pub fn host_cuts(
        &self,
        hosts: &Hosts,
        link: Link,
        schedule: &dyn Schedule,
        micro_batches: usize,
    ) -> Result<Vec<HostCut>, PredictError> {
        let (linked, workers) = (self.clone().between(hosts.clone(), link)?, hosts.workers());
        let (stages, layers) = (schedule.stages_on(workers), self.layers());
        let no_cut = || PredictError::NoHostCut { hosts: hosts.each().to_vec(), stages: self.cut().len(), layers };
        if stages > layers {
            return Err(no_cut()); // rejected here, before a huge plan is generated
        }
        let placement = schedule.plan(stages, micro_batches)?.placement();
        let host_of: Vec<_> = (0..placement.stages()).map(|stage| hosts.of(placement.worker(stage))).collect();
        let groups: Vec<_> = host_of.chunk_by(|a, b| a == b).map(<[usize]>::len).collect();
        let ends: Vec<_> = self.cut().iter().map(|range| range.end).collect();
        let choices = choices(&ends, &groups)?;
        if choices.is_empty() {
            return Err(no_cut());
        }
        let mut cuts = Vec::with_capacity(choices.len());
        for behind in choices {
            let cut = self.spread(&behind, &groups)?;
            let computes = |stages: &Vec<usize>| stages.iter().map(|&stage| self.computes(cut[stage].clone())).sum();
            let slowest = placement.stages_of().iter().map(computes).fold(0.0, f64::max);
            let bytes = behind.iter().map(|&stage| self.bytes_at(ends[stage])).collect::<Result<_, _>>()?;
            let prediction = linked.predict(&Target { workers, micro_batches, schedule, cut: Cut::Given(cut) })?;
            cuts.push(HostCut { behind, bytes, slowest, prediction });
        }
        let bytes = |cut: &HostCut| cut.bytes.iter().sum::<f64>();
        cuts.sort_by(|a, b| a.prediction.step.total_cmp(&b.prediction.step).then(bytes(a).total_cmp(&bytes(b))));
        Ok(cuts)
    }

    /// Returns a partition of the model's layers into the stages of the predicted plan. Within each group of
    /// consecutive stages on one host, the layers are split as evenly as possible.
    ///
    /// - `behind` has the indices of the logged run's stages that a boundary between hosts follows.
    /// - `groups` has the number of stages in each group.
    fn spread(&self, behind: &[usize], groups: &[usize]) -> Result<Vec<Range<usize>>, PredictError> {
        let last = self.cut().last().map_or(0, |range| range.end);
        let ends = behind.iter().map(|&stage| self.cut()[stage].end).chain([last]);
        let (mut cut, mut start) = (Vec::new(), 0);
        for (end, &stages) in ends.zip(groups) {
            cut.extend(self.balanced_within(start..end, stages)?);
            start = end;
        }
        Ok(cut)
    }
}

/// Returns all ways to choose the boundaries between hosts from the stage boundaries of the logged run. Each way is a
/// list of the run's stage indices: a boundary between hosts follows each of these stages. Every host gets at least one
/// layer for each of its predicted stages. Returns [`PredictError::HostCuts`] if there are more than [`MOST`] ways.
///
/// - `ends` has the index after the last layer of each stage of the run.
/// - `groups` has the number of stages in each group of consecutive predicted stages on one host.
fn choices(ends: &[usize], groups: &[usize]) -> Result<Vec<Vec<usize>>, PredictError> {
    let (boundaries, meetings) = (ends.len() - 1, groups.len() - 1);
    let layers = ends[boundaries];
    let mut chosen = vec![Vec::new()];
    for (group, stages) in groups[..meetings].iter().enumerate() {
        let still_to_place: usize = groups[group + 1..].iter().sum();
        // Leaves a boundary for each remaining group, so that every partial choice can be completed.
        let last = (boundaries + group + 1).saturating_sub(meetings);
        let mut longer = Vec::new();
        for before in &chosen {
            let (first, start) = before.last().map_or((0, 0), |&stage: &usize| (stage + 1, ends[stage]));
            let fits = |stage: &usize| ends[*stage] >= start + stages && ends[*stage] + still_to_place <= layers;
            longer.extend((first..last).filter(fits).map(|stage| [before.as_slice(), &[stage]].concat()));
            if longer.len() > MOST {
                return Err(PredictError::HostCuts { boundaries, meetings, most: MOST });
            }
        }
        chosen = longer;
    }
    Ok(chosen)
}
