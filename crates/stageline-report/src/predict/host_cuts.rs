//! Finds the best partitions of a model over several hosts.
//!
//! The bytes of a transfer are known only at the boundaries of the run, so these are the candidates for a boundary between hosts. On
//! each host the layers are spread as evenly as possible over its stages. Every choice of boundaries is simulated, with a link at each
//! boundary between hosts; schedules with chunks have several of these.

use std::ops::Range;

use stageline_schedule::Schedule;

use super::error::PredictError;
use super::measured::Measured;
use super::network::Hosts;
use super::prediction::{Cut, Prediction, Target};
use crate::log::record::Link;

/// The largest number of choices that are simulated.
const MOST: usize = 10_000;

/// A partition of the layers over hosts, and the prediction for it.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCut {
    /// The stages of the run after which the host changes, in order.
    pub behind: Vec<usize>,
    /// The bytes of a micro-batch at each of these boundaries, in each direction.
    pub bytes: Vec<f64>,
    /// The seconds in which the slowest worker computes a micro-batch, forward and backward.
    pub slowest: f64,
    /// The prediction for this partition over the link.
    pub prediction: Prediction,
}

impl Measured {
    /// Returns all partitions in which hosts are separated at boundaries of the run. The one with the shortest step comes first; of
    /// equal steps, the one with fewer bytes between hosts.
    ///
    /// # Errors
    /// [`PredictError`] if there is no such partition or more than 10,000 of them, the schedule has no such plan, the link is invalid,
    /// or the log does not give the bytes between stages.
    pub fn host_cuts(
        &self,
        hosts: &Hosts,
        link: Link,
        schedule: &dyn Schedule,
        micro_batches: usize,
    ) -> Result<Vec<HostCut>, PredictError> {
        let (linked, workers) = (self.clone().between(hosts.clone(), link)?, hosts.workers());
        let placement = schedule.plan(workers * schedule.chunks(), micro_batches)?.placement();
        let host_of: Vec<_> = (0..placement.stages()).map(|stage| hosts.of(placement.worker(stage))).collect();
        let groups: Vec<_> = host_of.chunk_by(|a, b| a == b).map(<[usize]>::len).collect();
        let ends: Vec<_> = self.cut().iter().map(|range| range.end).collect();
        let choices = choices(&ends, &groups)?;
        if choices.is_empty() {
            let (hosts, layers) = (hosts.each().to_vec(), ends.last().copied().unwrap_or(0));
            return Err(PredictError::NoHostCut { hosts, stages: ends.len(), layers });
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

    /// Returns the most even partition of each group of consecutive stages, with groups separated after these stages of the run.
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

/// Returns all choices of stages of the run that leave each group at least one layer for each of its stages. `ends` is the last layer of
/// each stage of the run plus one, `groups` the number of stages of each group.
fn choices(ends: &[usize], groups: &[usize]) -> Result<Vec<Vec<usize>>, PredictError> {
    let (boundaries, meetings) = (ends.len() - 1, groups.len() - 1);
    let layers = ends[boundaries];
    let mut chosen = vec![Vec::new()];
    for (group, stages) in groups[..meetings].iter().enumerate() {
        let still_to_place: usize = groups[group + 1..].iter().sum();
        // Leaves a boundary for each group that follows, so that every kept choice can be completed.
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
