//! Why nothing can be predicted.

use std::ops::Range;

use stageline_schedule::{BalanceError, CheckError, ScheduleError};

use crate::record::Link;

/// Why nothing can be predicted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The log has no step.
    #[error("the log has no step that computed anything; let the run go on for at least 3 steps")]
    NoSteps,
    /// The log does not say which stage has which layers.
    #[error("the log does not give each of the {stages} stages its layers; write it anew with `--log`")]
    Layers {
        /// The stages of the run.
        stages: usize,
    },
    /// The log does not say what crosses between stages.
    #[error(
        "the log does not say how many bytes cross between stages; write it anew with `--log`, of 2 stages or more"
    )]
    Bytes,
    /// The log does not have one link, or none, for each boundary.
    #[error("the log has links for {links} boundaries, and its run {boundaries}; write it anew with `--log`")]
    Links {
        /// How many the log has.
        links: usize,
        /// How many boundaries there are between the stages of the run.
        boundaries: usize,
    },
    /// A link of which no times can be made.
    #[error(
        "a link of {} bytes a second and {} s: give at least 1 byte a second, and a latency from 0 s on",
        .0.bandwidth, .0.latency
    )]
    Link(Link),
    /// Workers over whose link the run sent nothing.
    #[error(
        "the log has links, but none between workers {from} and {to}, which the run did not have next to each other; say what \
         joins workers with `--bandwidth` and `--latency`"
    )]
    Unlinked {
        /// The one worker.
        from: usize,
        /// The other.
        to: usize,
    },
    /// Hosts that are too few, or have no workers.
    #[error("hosts of {0:?} workers: give how many workers each of 2 hosts or more has, at least 1")]
    Hosts(Vec<usize>),
    /// No boundary whose bytes are known leaves each host enough layers.
    #[error(
        "hosts of {hosts:?} workers cannot meet at boundaries of the run, which has {stages} stages of {layers} layers: each \
         needs a layer for every stage that it has; log a run of more stages, or give fewer workers"
    )]
    NoHostCut {
        /// The workers of each host.
        hosts: Vec<usize>,
        /// The stages of the run.
        stages: usize,
        /// Its layers.
        layers: usize,
    },
    /// There are more ways than can be tried.
    #[error(
        "{boundaries} boundaries of the run, of which hosts meet at {meetings}, can be chosen in more than {most} ways; log a run \
         of fewer stages, or take a schedule without chunks"
    )]
    HostCuts {
        /// Boundaries of the run.
        boundaries: usize,
        /// How many of them are to be chosen.
        meetings: usize,
        /// How many ways are tried at most.
        most: usize,
    },
    /// A cut that does not give every stage its layers.
    #[error(
        "the cut {cut:?} is none of {layers} layers into {stages} stages; give each stage the layers that follow on the one before"
    )]
    Cut {
        /// The layers of each stage.
        cut: Vec<Range<usize>>,
        /// The layers that there are.
        layers: usize,
        /// The stages that there are.
        stages: usize,
    },
    /// There are fewer layers than stages.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// The schedule has no such plan.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The plan cannot run.
    #[error(transparent)]
    Check(#[from] CheckError),
}
