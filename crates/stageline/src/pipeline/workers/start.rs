//! Starts a thread for each worker of each replica, and creates the channels between the workers and the caller.

use std::sync::Arc;

use burn::tensor::Device;
use stageline_schedule::Checked;

use super::watch::Watch;
use super::{Replies, WorkerHandle, Workers};
use crate::failure::build_error::BuildError;
use crate::failure::stop::Stop;
use crate::failure::watchdog::{ProgressBoard, Watchdog};
use crate::memory::rehearsal::Parameters;
use crate::model::replica::ReplicaStage;
use crate::runner::Stages;
use crate::threads::{Receiver, Sender, bounded};
use crate::worker::messages::{ReplySenders, WorkerChannels};
use crate::worker::{Started, Worker, events_of, place_of};

/// The caller's ends of a replica's batch channels: for inputs to the first stage, targets to the last stage, and
/// inference outputs from the last stage.
pub(crate) struct BatchChannels<In, Out, Target> {
    pub(crate) inputs: Sender<Vec<In>>,
    pub(crate) targets: Sender<Vec<Target>>,
    pub(crate) outputs: Receiver<Vec<Out>>,
}

/// An assembled data-parallel replica, whose workers have not started yet.
pub(crate) struct Prepared<In, Out, Target> {
    pub(crate) channels: BatchChannels<In, Out, Target>,
    pub(crate) runners: Stages,
    /// The index of the queue of GPU transfers (communication stream) on each stage's device; `None` for a device whose
    /// transfers need no order.
    pub(crate) streams: Vec<Option<usize>>,
    /// The device and the parameter sizes of each stage of this replica.
    pub(crate) stages: Vec<(Device, Parameters)>,
}

/// The stages and devices of one data-parallel replica, with its channels to the caller.
pub(crate) struct Replicated<In, Out, Target> {
    pub(crate) channels: BatchChannels<In, Out, Target>,
    pub(crate) runners: Stages,
    pub(crate) devices: Vec<Device>,
}

impl<In, Out, Target> Workers<In, Out, Target> {
    /// Starts the workers of all data-parallel replicas, each worker with a pool of `cores` CPU threads for its
    /// kernels.
    ///
    /// # Errors
    /// Returns [`BuildError`] if a worker's thread or its thread pool cannot be started; threads that have already
    /// started are joined.
    pub(crate) fn start(
        replicas: Vec<Replicated<In, Out, Target>>,
        plan: &Checked,
        cores: usize,
        watchdog: Option<Watchdog>,
    ) -> Result<Self, BuildError> {
        let stages = plan.plan().stages();
        let (all_stages, all_workers) = (replicas.len() * stages, replicas.len() * plan.plan().workers());
        let (finished_sender, finished) = bounded(all_stages);
        let (stepped_sender, stepped) = bounded(all_stages);
        let (recorded_sender, recorded) = bounded(all_workers);
        let (saved_sender, saved) = bounded(stages);
        let (copied_sender, copied) = bounded(stages);
        let senders = ReplySenders {
            finished: finished_sender,
            stepped: stepped_sender,
            recorded: recorded_sender,
            saved: saved_sender,
            copied: copied_sender,
        };
        let mut workers = Self {
            batches: Vec::new(),
            handles: Vec::new(),
            replies: Replies { finished, stepped, recorded, saved, copied },
            stop: Arc::new(Stop::new()),
            watch: Watch::new(watchdog),
            devices: Vec::new(),
            stages,
            ended: Vec::new(),
            out_of_reach: Vec::new(),
        };
        for replica in replicas {
            if let Err(error) = workers.start_replica(replica, plan, &senders, cores) {
                workers.join(None);
                return Err(error);
            }
        }
        Ok(workers)
    }

    /// Starts the workers of one replica, and distributes the replica's stages among them as the plan (each worker's
    /// list of actions) says.
    fn start_replica(
        &mut self,
        replica: Replicated<In, Out, Target>,
        plan: &Checked,
        senders: &ReplySenders,
        cores: usize,
    ) -> Result<(), BuildError> {
        let mut unassigned: Vec<_> = replica.runners.into_iter().map(Some).collect();
        for (index, stages) in plan.placement().stages_of().iter().enumerate() {
            let runners: Vec<_> = stages.iter().filter_map(|&stage| unassigned[stage].take()).collect();
            let (commands, command_receiver) = bounded(1);
            let (verdicts, verdict_receiver) = bounded(1);
            let channels =
                WorkerChannels { commands: command_receiver, verdicts: verdict_receiver, replies: senders.clone() };
            let ReplicaStage { replica, stage } = place_of(&runners);
            let progress = ProgressBoard::new(replica, stage);
            let worker = Worker::new(index, runners, channels, Arc::clone(&self.stop), progress.clone());
            let Started { thread, product_buffers } = worker.spawn(cores)?;
            let count = |plan: &Checked| events_of(plan, index, stages.len());
            let events = count(plan).max(count(&plan.rehearsal()));
            self.handles.push(WorkerHandle { replica, commands, verdicts, thread, progress, events, product_buffers });
        }
        self.batches.push(replica.channels);
        self.devices.push(replica.devices);
        Ok(())
    }
}
