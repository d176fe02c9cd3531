//! Where a model is to be cut between hosts.
//!
//! What crosses is known at the boundaries of the run, so hosts meet at these; on each host layers are spread as evenly as they
//! go. All such cuts are simulated, with a link for each boundary between hosts, of which schedules with chunks have several.

use std::ops::Range;

use stageline_schedule::Schedule;

use crate::measured::Measured;
use crate::network::Hosts;
use crate::predict::{Cut, Prediction, Target};
use crate::predict_error::PredictError;
use crate::record::Link;

/// The most cuts that are simulated.
const MOST: usize = 10_000;

/// A cut between hosts, and what comes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCut {
    /// The stages of the run behind which another host goes on, in order.
    pub behind: Vec<usize>,
    /// What crosses there for a micro-batch, each way, in bytes.
    pub bytes: Vec<f64>,
    /// What the slowest worker computes for a micro-batch, forward and backward, in seconds.
    pub slowest: f64,
    /// The plan of this cut over the link.
    pub prediction: Prediction,
}

impl Measured {
    /// All cuts at whose boundaries between hosts the run had one, too, the least step first; of equal ones that over which
    /// fewer bytes cross.
    ///
    /// # Errors
    /// [`PredictError`] where there is none or there are too many, no such plan, or the log does not say what crosses.
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
        let meetings = meetings(&ends, &groups)?;
        if meetings.is_empty() {
            let (hosts, layers) = (hosts.each().to_vec(), ends.last().copied().unwrap_or(0));
            return Err(PredictError::NoHostCut { hosts, stages: ends.len(), layers });
        }
        let mut cuts = Vec::with_capacity(meetings.len());
        for behind in meetings {
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

    /// The most even cut of each group of consecutive stages, where groups meet behind these stages of the run.
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

/// All choices of stages, of which each ends before a layer, behind which groups of so many stages meet that have a layer each.
fn meetings(ends: &[usize], groups: &[usize]) -> Result<Vec<Vec<usize>>, PredictError> {
    let (boundaries, meetings) = (ends.len() - 1, groups.len() - 1);
    let layers = ends[boundaries];
    let mut chosen = vec![Vec::new()];
    for (group, stages) in groups[..meetings].iter().enumerate() {
        let behind_it: usize = groups[group + 1..].iter().sum();
        // So that there is a boundary left for each meeting to come, and all that is kept can be gone on with.
        let last = (boundaries + group + 1).saturating_sub(meetings);
        let mut longer = Vec::new();
        for before in &chosen {
            let (first, start) = before.last().map_or((0, 0), |&stage: &usize| (stage + 1, ends[stage]));
            let room = |stage: &usize| ends[*stage] >= start + stages && ends[*stage] + behind_it <= layers;
            longer.extend((first..last).filter(room).map(|stage| [before.as_slice(), &[stage]].concat()));
            if longer.len() > MOST {
                return Err(PredictError::HostCuts { boundaries, meetings, most: MOST });
            }
        }
        chosen = longer;
    }
    Ok(chosen)
}
