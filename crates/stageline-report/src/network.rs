//! What joins the workers of a prediction.

use std::collections::BTreeMap;

use crate::predict_error::PredictError;
use crate::record::Link;
use crate::run_log::RunLog;

/// How many workers each host has, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<usize>);

impl Hosts {
    /// # Errors
    /// [`PredictError::Hosts`] where there are fewer than two, or one has no worker.
    pub fn new(workers: Vec<usize>) -> Result<Self, PredictError> {
        if workers.len() < 2 || workers.contains(&0) { Err(PredictError::Hosts(workers)) } else { Ok(Self(workers)) }
    }

    /// How many workers each has.
    pub fn each(&self) -> &[usize] {
        &self.0
    }

    /// P: all workers.
    pub fn workers(&self) -> usize {
        self.0.iter().sum()
    }

    /// The host of a worker.
    pub(crate) fn of(&self, worker: usize) -> usize {
        let ends = self.0.iter().scan(0, |end, workers| {
            *end += workers;
            Some(*end)
        });
        ends.take_while(|end| *end <= worker).count()
    }
}

/// What joins workers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Network {
    /// The memory of the one host on which they all are.
    Memory,
    /// A link between any two.
    Uniform(Link),
    /// A link between any two that are on different hosts.
    Hosts(Hosts, Link),
    /// What the run measured, by pairs of workers, the smaller one first; `None` where they share a host's memory.
    Measured(BTreeMap<(usize, usize), Option<Link>>),
}

impl Network {
    /// That of a run.
    pub(crate) fn of(log: &RunLog) -> Result<Self, PredictError> {
        let (links, boundaries) = (&log.run.links, log.plan.stages() - 1);
        links.iter().flatten().try_for_each(|link| checked(*link).map(drop))?;
        if links.iter().all(Option::is_none) {
            return Ok(Self::Memory);
        }
        if links.len() != boundaries {
            return Err(PredictError::Links { links: links.len(), boundaries });
        }
        let placement = log.plan.placement();
        let workers = |stage: usize| pair(placement.worker(stage), placement.worker(stage + 1));
        Ok(Self::Measured(links.iter().enumerate().map(|(stage, link)| (workers(stage), *link)).collect()))
    }

    /// The link between two workers; `None` where they share a host's memory.
    pub(crate) fn between(&self, from: usize, to: usize) -> Result<Option<Link>, PredictError> {
        match self {
            _ if from == to => Ok(None),
            Self::Memory => Ok(None),
            Self::Uniform(link) => Ok(Some(*link)),
            Self::Hosts(hosts, link) => Ok((hosts.of(from) != hosts.of(to)).then_some(*link)),
            Self::Measured(links) => links.get(&pair(from, to)).copied().ok_or(PredictError::Unlinked { from, to }),
        }
    }

    /// The link that takes the longest for so many bytes; `None` where there is no link.
    pub(crate) fn slowest(&self, bytes: f64) -> Option<Link> {
        match self {
            Self::Memory => None,
            Self::Uniform(link) | Self::Hosts(_, link) => Some(*link),
            Self::Measured(links) => {
                let links = links.values().flatten().copied();
                links.max_by(|a, b| a.takes(bytes).total_cmp(&b.takes(bytes)))
            }
        }
    }
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// A link of which times can be made.
pub(crate) fn checked(link: Link) -> Result<Link, PredictError> {
    let Link { latency, bandwidth } = link;
    let sound = latency.is_finite() && latency >= 0.0 && bandwidth.is_finite() && bandwidth >= 1.0;
    if sound { Ok(link) } else { Err(PredictError::Link(link)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_dealt_out_to_hosts_in_order() {
        let hosts = Hosts::new(vec![1, 3, 2]).unwrap();
        assert_eq!((0..6).map(|worker| hosts.of(worker)).collect::<Vec<_>>(), [0, 1, 1, 1, 2, 2]);
        for none in [vec![], vec![4], vec![2, 0, 2]] {
            let error = Hosts::new(none.clone()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("hosts of {none:?} workers: give")), "{error}");
        }
    }
}
