//! How its threads start.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use stageline_schedule::Checked;

use crate::failure::activity::During;
use crate::failure::build_error::BuildError;
use crate::failure::stop::Stop;
use crate::failure::watchdog::ProgressBoard;
use crate::memory::rehearsal::Parameters;
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::pipeline::{Pipeline, Stepping, WorkerHandle};
use crate::runner::Stages;
use crate::state::layout::Layout;
use crate::threads::cores::Cores;
use crate::threads::{Sender, bounded};
use crate::transfer::order::Turns;
use crate::worker::messages::{Replies, WorkerChannels};
use crate::worker::{Started, Worker, events_of, place_of};

/// Where a replica's part of a batch enters.
pub(crate) struct BatchInput<In, Target> {
    pub(crate) inputs: Sender<Vec<In>>,
    pub(crate) targets: Sender<Vec<Target>>,
}

/// A replica that is put up, and not yet started.
pub(crate) struct Prepared<In, Target> {
    pub(crate) door: BatchInput<In, Target>,
    pub(crate) runners: Stages,
    /// The communication stream of each stage's device, where transfers are ordered.
    pub(crate) streams: Vec<Option<usize>>,
    pub(crate) stages: Vec<(Device, Parameters)>,
}

/// What replicas have in common.
pub(crate) struct Common<Target> {
    pub(crate) plan: Arc<Checked>,
    pub(crate) weight: fn(&Target) -> Weight,
    /// In how many groups gradients are summed.
    pub(crate) groups: usize,
    pub(crate) cores: Cores,
    pub(crate) stepping: Stepping,
    pub(crate) layout: Layout,
}

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    pub(crate) fn start(prepared: Vec<Prepared<In, Target>>, common: Common<Target>) -> Result<Self, BuildError> {
        let Common { plan, weight, groups, cores, stepping, layout } = common;
        let all_stages = prepared.len() * plan.plan().stages();
        let workers = prepared.len() * plan.plan().workers();
        let (finished_sender, finished) = bounded(all_stages);
        let (stepped_sender, stepped) = bounded(all_stages);
        let (recorded_sender, recorded) = bounded(workers);
        let (saved_sender, saved) = bounded(plan.plan().stages());
        let lines = Replies {
            finished: finished_sender,
            stepped: stepped_sender,
            recorded: recorded_sender,
            saved: saved_sender,
        };
        let mut pipeline = Self {
            doors: Vec::new(),
            weight,
            workers: Vec::new(),
            finished,
            stepped,
            recorded,
            saved,
            stop: Arc::new(Stop::new()),
            stepping,
            turns: Turns::of_replicas(prepared.iter().map(|replica| (&*plan, &replica.streams))),
            streams: Vec::new(),
            longest: Duration::ZERO,
            steps: 0,
            optimizer_steps: 0,
            last_checkpoint: None,
            is_in_flight: false,
            unsaid: None,
            last_end: Instant::now(),
            as_assumed: true,
            layout,
            stages: Vec::new(),
            groups,
            cores,
            warned: Cell::new(false),
            asked: Cell::new(0),
            during: During::Step(0),
            began: Instant::now(),
            ended: Vec::new(),
            out_of_reach: Vec::new(),
            plan,
        };
        for replica in prepared {
            pipeline.open(replica, &lines, cores.of_one(workers))?;
        }
        Ok(pipeline)
    }

    /// Starts the workers of a replica.
    fn open(&mut self, prepared: Prepared<In, Target>, lines: &Replies, cores: usize) -> Result<(), BuildError> {
        let mut unseated: Vec<_> = prepared.runners.into_iter().map(Some).collect();
        for (index, stages) in self.plan.placement().stages_of().iter().enumerate() {
            let runners: Vec<_> = stages.iter().filter_map(|&stage| unseated[stage].take()).collect();
            let (commands, command_receiver) = bounded(1);
            let (verdicts, verdict_receiver) = bounded(1);
            let line = WorkerChannels { commands: command_receiver, verdicts: verdict_receiver, lines: lines.clone() };
            let (replica, stage) = place_of(&runners);
            let post = ProgressBoard::new(replica, stage);
            let worker = Worker::new(index, runners, line, Arc::clone(&self.stop), post.clone());
            let Started { thread, packing_buffer } = worker.spawn(cores)?;
            let room = |plan: &Checked| events_of(plan, index, stages.len());
            let events = room(&self.plan).max(room(&self.plan.rehearsal()));
            self.workers.push(WorkerHandle { replica, commands, verdicts, thread, post, events, packing_buffer });
        }
        self.doors.push(prepared.door);
        self.streams.push(prepared.streams);
        self.stages.push(prepared.stages);
        Ok(())
    }
}
