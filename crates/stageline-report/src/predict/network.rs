//! The network links between workers that a prediction assumes, and the workers of each host.

use std::collections::BTreeMap;

use super::error::PredictError;
use crate::log::RunLog;
use crate::log::record::Link;

/// The hosts of a predicted training run: a list with the number of workers on each host. Workers are numbered host by
/// host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<usize>);

impl Hosts {
    /// Makes the list of hosts of a predicted training run from the number of workers on each host.
    ///
    /// # Errors
    /// Returns [`PredictError::Hosts`] if there are fewer than two hosts, or a host has no worker. Returns
    /// [`PredictError::TooManyWorkers`] if the number of all workers is too large for a `usize`.
    pub fn new(workers: Vec<usize>) -> Result<Self, PredictError> {
        if workers.len() < 2 || workers.contains(&0) {
            return Err(PredictError::Hosts(workers));
        }
        match workers.iter().try_fold(0_usize, |sum, more| sum.checked_add(*more)) {
            Some(_) => Ok(Self(workers)),
            None => Err(PredictError::TooManyWorkers(workers)),
        }
    }

    /// Returns a list with the number of workers on each host, from the host of the first stage to the host of the last
    /// stage.
    pub fn each(&self) -> &[usize] {
        &self.0
    }

    /// Returns the total number of workers (P) on all hosts of a predicted training run.
    pub fn workers(&self) -> usize {
        self.0.iter().sum()
    }

    /// Returns the zero-based index of the host that runs the worker with the index `worker`.
    pub(super) fn of(&self, worker: usize) -> usize {
        let ends = self.0.iter().scan(0, |end, workers| {
            *end += workers;
            Some(*end)
        });
        ends.take_while(|end| *end <= worker).count()
    }
}

/// The network links (with latency and bandwidth) that connect the workers of a predicted training run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Network {
    /// All workers of the predicted training run share the memory of one host. No network link connects them, and
    /// transfers between them take no time.
    Memory,
    /// Any two workers of the predicted training run are connected by a network link with the same latency and
    /// bandwidth, which the caller gives.
    Uniform(Link),
    /// Any two workers on different hosts are connected by a network link with the same latency and bandwidth, which
    /// the caller gives. Workers on one host share the host's memory.
    Hosts(Hosts, Link),
    /// The network links (latency and bandwidth) that the run measured. The keys are pairs of worker indices, with the
    /// smaller one first. A value is `None` if the two workers share a host's memory.
    Measured(BTreeMap<(usize, usize), Option<Link>>),
}

impl Network {
    /// Returns the network links between the workers of a run, from its log. Returns [`Network::Memory`] if the log has
    /// no link. Returns an error if a link is invalid, or if the log does not have one entry for each boundary between
    /// stages.
    pub(super) fn of(log: &RunLog) -> Result<Self, PredictError> {
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

    /// Returns the network link between two workers; `None` if the workers share a host's memory. Returns an error if
    /// the log of the run has no measured link between the two.
    pub(super) fn between(&self, from: usize, to: usize) -> Result<Option<Link>, PredictError> {
        match self {
            _ if from == to => Ok(None),
            Self::Memory => Ok(None),
            Self::Uniform(link) => Ok(Some(*link)),
            Self::Hosts(hosts, link) => Ok((hosts.of(from) != hosts.of(to)).then_some(*link)),
            Self::Measured(links) => links.get(&pair(from, to)).copied().ok_or(PredictError::Unlinked { from, to }),
        }
    }

    /// Returns the link between workers that takes the longest to transfer `bytes` bytes. Returns `None` if no workers
    /// are connected by a network link.
    pub(super) fn slowest(&self, bytes: f64) -> Option<Link> {
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

/// Returns the network link if it is valid, and [`PredictError::Link`] otherwise. The latency must be at least 0 s and
/// the bandwidth at least 1 byte per second, both finite.
pub(super) fn checked(link: Link) -> Result<Link, PredictError> {
    let Link { latency, bandwidth } = link;
    let sound = latency.is_finite() && latency >= 0.0 && bandwidth.is_finite() && bandwidth >= 1.0;
    if sound { Ok(link) } else { Err(PredictError::Link(link)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_numbered_host_by_host() {
        let hosts = Hosts::new(vec![1, 3, 2]).unwrap();
        assert_eq!((0..6).map(|worker| hosts.of(worker)).collect::<Vec<_>>(), [0, 1, 1, 1, 2, 2]);
        for none in [vec![], vec![4], vec![2, 0, 2]] {
            let error = Hosts::new(none.clone()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("hosts of {none:?} workers: give")), "{error}");
        }
        let error = Hosts::new(vec![usize::MAX, 2]).unwrap_err();
        assert!(matches!(&error, PredictError::TooManyWorkers(workers) if *workers == [usize::MAX, 2]), "{error}");
    }
}
