//! Errors of predictions.

use std::ops::Range;

use stageline_schedule::{BalanceError, CheckError, ScheduleError};

use crate::log::record::Link;

/// The reason why a prediction cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The log has no step that updated parameters.
    #[error("the log has no step that updated parameters; log a run of at least 3 steps")]
    NoSteps,
    /// The log does not give every stage its layers.
    #[error("the log does not give each of the {stages} stages its layers; write a new log with `--log`")]
    Layers {
        /// The number of stages of the run.
        stages: usize,
    },
    /// The log does not give the bytes that stages send to each other.
    #[error(
        "the log does not say how many bytes cross between stages; write a new log with `--log`, of 2 stages or more"
    )]
    Bytes,
    /// The log does not have an entry for the link of each boundary.
    #[error("the log has links for {links} boundaries, but its run has {boundaries}; write a new log with `--log`")]
    Links {
        /// The number of entries in the log.
        links: usize,
        /// The number of boundaries between stages of the run.
        boundaries: usize,
    },
    /// A link has a latency or bandwidth from which no times can be computed.
    #[error(
        "a link of {} bytes a second and {} s is invalid; give at least 1 byte a second, and a latency of 0 s or more",
        .0.bandwidth, .0.latency
    )]
    Link(Link),
    /// The plan sends between two workers whose link the run did not measure.
    #[error(
        "the log has no link between workers {from} and {to}, which were not neighbours in the run; give the link between workers \
         with `--bandwidth` and `--latency`"
    )]
    Unlinked {
        /// The sending worker.
        from: usize,
        /// The receiving worker.
        to: usize,
    },
    /// There are fewer than two hosts, or a host has no workers.
    #[error("hosts of {0:?} workers: give the number of workers, at least 1, of each of 2 hosts or more")]
    Hosts(Vec<usize>),
    /// No choice of boundaries of the run leaves each host enough layers.
    #[error(
        "hosts of {hosts:?} workers cannot be separated at boundaries of the run, which has {stages} stages of {layers} layers: a host \
         needs a layer for each of its stages; log a run of more stages, or give fewer workers"
    )]
    NoHostCut {
        /// The number of workers of each host.
        hosts: Vec<usize>,
        /// The number of stages of the run.
        stages: usize,
        /// The number of layers of the model.
        layers: usize,
    },
    /// There are too many choices of boundaries to simulate them all.
    #[error(
        "there are more than {most} ways to choose {meetings} boundaries between hosts from the {boundaries} boundaries of the run; log \
         a run of fewer stages, or take a schedule without chunks"
    )]
    HostCuts {
        /// The number of boundaries of the run.
        boundaries: usize,
        /// The number of boundaries between hosts.
        meetings: usize,
        /// The largest number of choices that are simulated.
        most: usize,
    },
    /// A given partition does not split all layers into contiguous stages.
    #[error(
        "{cut:?} is no partition of {layers} layers into {stages} stages; give each stage at least one layer, following those of the \
         stage before"
    )]
    Cut {
        /// The layers of each stage.
        cut: Vec<Range<usize>>,
        /// The number of layers of the model.
        layers: usize,
        /// The number of stages of the plan.
        stages: usize,
    },
    /// There are fewer layers than stages.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// The schedule has no plan of this size.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The plan cannot run at the channel capacity of the run.
    #[error(transparent)]
    Check(#[from] CheckError),
}
