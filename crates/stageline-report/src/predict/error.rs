//! The errors of predictions from the log of a run: [`PredictError`].

use std::ops::Range;

use stageline_schedule::{BalanceError, CheckError, ScheduleError};

use crate::log::record::{Link, Unit};

/// The reason why a plan's performance cannot be predicted from the log of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The log of the run has no step that updated parameters since the run was last started or resumed. Log at least 3
    /// steps.
    #[error(
        "the log has no step that updated parameters since the run was last started or resumed; log at least 3 steps"
    )]
    NoSteps,
    /// A time or size that a prediction needs is not above 0 in the log. The field is the name of this time or size.
    #[error("{0} in the log is not above 0, and predictions need a value above 0; write a new log with `--log`")]
    NotAboveZero(&'static str),
    /// The log of the run does not list the layers of all stages in order. Log the run again with `--log`.
    #[error(
        "the log does not list the layers of all {stages} stages in order, so their costs cannot be predicted; log the run again \
         with `--log`"
    )]
    Layers {
        /// Number of stages of the logged run, whose layers the log does not list completely.
        stages: usize,
    },
    /// The costs of another micro-batch size cannot be computed from two runs. Give two runs of the same model with
    /// different micro-batch sizes, and request a size above 0.
    #[error(
        "the two runs cannot predict micro-batches of {size} {unit}: their models have {} and {} layers, and their micro-batches {} \
         and {} {unit}; give two runs of the same model with different micro-batch sizes, and ask for a size above 0",
        .layers[0], .layers[1], .of_runs[0], .of_runs[1]
    )]
    Size {
        /// Requested number of tokens or samples in a micro-batch, summed over the data-parallel replicas.
        size: f64,
        /// Unit in which the logs count the size of micro-batches: tokens or samples.
        unit: Unit,
        /// The micro-batch sizes of the two logged runs, in `unit`, each summed over the data-parallel replicas.
        of_runs: [f64; 2],
        /// The numbers of layers of the models of the two logged runs.
        layers: [usize; 2],
    },
    /// The larger micro-batches of two runs took no longer than the smaller ones, so the times of other sizes cannot be
    /// computed from these runs. Give two runs whose micro-batch sizes differ more.
    #[error(
        "micro-batches of {} {unit} took {:.3} ms, and those of {} {unit} {:.3} ms, so the times of other sizes cannot be predicted; \
         give two runs whose micro-batch sizes differ more",
        .of_runs[0].0, 1e3 * .of_runs[0].1, .of_runs[1].0, 1e3 * .of_runs[1].1
    )]
    NotSlower {
        /// Unit in which the logs count the size of micro-batches: tokens or samples.
        unit: Unit,
        /// The micro-batch size of each run in `unit`, and the time in seconds of its forward and backward pass.
        of_runs: [(f64, f64); 2],
    },
    /// The run did not measure its memory, so a memory limit cannot be checked. Log a run that measures memory, or
    /// leave the limit out.
    #[error(
        "the log does not say how much memory its workers used, so it is not known whether a training run fits; log a run of a \
         program with the counting allocator, or of GPUs with --synchronise-every 20, or leave the limit out"
    )]
    NoMemory,
    /// The log does not state how many bytes the stages send to each other. Log a run with at least 2 stages.
    #[error(
        "the log does not say how many bytes cross between stages; write a new log with `--log`, of 2 stages or more"
    )]
    Bytes,
    /// The number of network links in the log differs from the number of boundaries between the run's stages. Write a
    /// new log with `--log`.
    #[error("the log has links for {links} boundaries, but its run has {boundaries}; write a new log with `--log`")]
    Links {
        /// The number of network links between stages that the log lists.
        links: usize,
        /// The number of boundaries between the stages of the logged run.
        boundaries: usize,
    },
    /// A network link between workers has an invalid latency or bandwidth. Give a latency of at least 0 s, and a
    /// bandwidth of at least 1 byte per second.
    #[error(
        "a link of {} bytes per second and {} s is invalid; give at least 1 byte per second, and a latency of 0 s or more",
        .0.bandwidth, .0.latency
    )]
    Link(Link),
    /// The plan sends tensors between two workers that were not neighbours in the run, so the log has no measured
    /// network link between them. Give a link with `--bandwidth` and `--latency`.
    #[error(
        "the log has no link between workers {from} and {to}, which were not neighbours in the run; give the link between workers \
         with `--bandwidth` and `--latency`"
    )]
    Unlinked {
        /// Zero-based index of the worker that sends over the unmeasured network link in the predicted plan.
        from: usize,
        /// Zero-based index of the worker that receives over the unmeasured network link in the predicted plan.
        to: usize,
    },
    /// Fewer than two hosts are given, or one of them has no workers. The field is the number of workers of each host.
    #[error("hosts of {0:?} workers: give the number of workers, at least 1, of each of 2 hosts or more")]
    Hosts(Vec<usize>),
    /// All hosts together have more workers than a `usize` can count. The field is the number of workers of each host.
    #[error(
        "hosts of {0:?} workers: all together are too many to count; give as many workers as the model has layers, or fewer"
    )]
    TooManyWorkers(Vec<usize>),
    /// The layers of the run cannot be divided among the hosts. Hosts can be separated only at a stage boundary of the
    /// run, and a host needs at least one layer for each of its stages. Log a run of more stages, or give fewer
    /// workers.
    #[error(
        "hosts of {hosts:?} workers cannot be separated at boundaries of the run, which has {stages} stages of {layers} layers: a host \
         needs a layer for each of its stages; log a run of more stages, or give fewer workers"
    )]
    NoHostCut {
        /// The number of workers that the caller gave for each host.
        hosts: Vec<usize>,
        /// The number of stages of the logged run. Hosts can be separated only at the boundaries of these stages.
        stages: usize,
        /// The number of layers of the model, which is to be partitioned over the hosts.
        layers: usize,
    },
    /// There are too many ways to place the host boundaries at the run's stage boundaries, and each would have to be
    /// simulated. Log a run of fewer stages, or use a schedule without chunks.
    #[error(
        "there are more than {most} ways to choose {meetings} boundaries between hosts from the {boundaries} boundaries of the run; log \
         a run of fewer stages, or take a schedule without chunks"
    )]
    HostCuts {
        /// The number of boundaries between the stages of the logged run.
        boundaries: usize,
        /// The number of boundaries between hosts in the predicted plan, each between two consecutive stages on
        /// different hosts.
        meetings: usize,
        /// Maximum number of ways to choose the boundaries between hosts.
        most: usize,
    },
    /// The partition that the caller gives does not split all layers into contiguous stages.
    #[error(
        "{cut:?} is no partition of {layers} layers into {stages} stages; give each stage at least one layer, following those of the \
         stage before"
    )]
    Cut {
        /// The invalid partition that the caller gave: the range of layer indices of each stage.
        cut: Vec<Range<usize>>,
        /// The number of layers of the model whose partition is invalid.
        layers: usize,
        /// The predicted plan's number of stages, which the partition must have as well.
        stages: usize,
    },
    /// The plan has more stages than the logged run's model, which the user has cut into stages by hand. Such stages
    /// can be joined, but not divided. Give fewer workers or chunks, or log a run of more stages.
    #[error(
        "the model of the log is cut by hand into {own} stages, and the plan has {stages}: a prediction can join whole stages and divides \
         none; give numbers of workers and chunks with {own} stages or fewer, or log a run of more stages"
    )]
    CutByHand {
        /// The number of stages of the logged run's model, which the user has cut by hand.
        own: usize,
        /// The number of stages of the predicted plan.
        stages: usize,
    },
    /// The schedule is a single fixed plan, such as the logged run's, for another number of workers than requested.
    /// Request the plan's own number of workers, or name a schedule.
    #[error(
        "the plan is for {own} workers, and no schedule generates it for {workers}; predict its own number, or name a schedule"
    )]
    Workers {
        /// The number of workers of the schedule's single plan.
        own: usize,
        /// The requested number of workers.
        workers: usize,
    },
    /// The search for the smallest number of micro-batches whose bubble is within a limit would have to simulate too
    /// many plans, for minutes or longer. Allow at most `fewer` micro-batches.
    #[error("plans of {stages} stages for every M up to {most} are too many to simulate; give --most {fewer} or less")]
    TooManyPlans {
        /// The number of stages of each plan in a search for the smallest number of micro-batches.
        stages: usize,
        /// Maximum number of micro-batches that the caller allows in the search.
        most: usize,
        /// Largest maximum number of micro-batches that keeps the search short enough.
        fewer: usize,
    },
    /// The model has fewer layers than the plan has stages.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// The schedule has no plan for the requested numbers of stages and micro-batches.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The plan is not valid. For example, it deadlocks because a channel between two stages holds too few
    /// micro-batches. The field says what is wrong.
    #[error(transparent)]
    Check(#[from] CheckError),
}
