//! What the caller and its workers tell each other.

use std::sync::Arc;
use std::time::Instant;

use stageline_schedule::Checked;

use crate::failure::activity::During;
use crate::model::replica::Replica;
use crate::recording::Clock;
use crate::recording::events::Event;
use crate::runner::Conclusion;
use crate::runner::pass::Pass;
use crate::state::layout::StageState;
use crate::threads::{Receiver, Sender};
use crate::update::flush::{Flush, Outcome, Verdict};

/// What the caller asks of every worker.
pub(crate) enum Command {
    /// A pass over its list.
    Run(Run),
    /// What its stages keep from step to step.
    Save { during: During },
    /// The verdict on a step that was made ahead of it.
    Settle { during: During },
}

/// A pass over a worker's list.
pub(crate) struct Run {
    pub(crate) asked: Asked,
    /// Where to write down what is done; what there is no room for is left out.
    pub(crate) events: Vec<Event>,
}

/// The same for all workers.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) during: During,
    pub(crate) plan: Arc<Checked>,
    pub(crate) pass: Pass,
    pub(crate) clock: Clock,
    /// When the step began.
    pub(crate) began: Instant,
    pub(crate) flush: Flush,
    /// Whether the step before it may yet turn out to be another one.
    pub(crate) behind: bool,
}

/// What a stage tells when its step is over.
pub(crate) struct Stepped {
    pub(crate) replica: Replica,
    pub(crate) stage: usize,
    /// By which it is over.
    pub(crate) verdict: Verdict,
    pub(crate) conclusion: Conclusion,
}

/// What a worker did in a step.
pub(crate) struct Recorded {
    pub(crate) replica: Replica,
    pub(crate) worker: usize,
    pub(crate) events: Vec<Event>,
}

/// The worker's ends of its channels with the caller.
pub(crate) struct WorkerChannels {
    pub(crate) commands: Receiver<Command>,
    /// What all stages do at the end of a step.
    pub(crate) verdicts: Receiver<Verdict>,
    pub(crate) replies: ReplySenders,
}

/// Those that all workers send to.
#[derive(Clone)]
pub(crate) struct ReplySenders {
    pub(crate) finished: Sender<Outcome>,
    pub(crate) stepped: Sender<Stepped>,
    pub(crate) recorded: Sender<Recorded>,
    pub(crate) saved: Sender<StageState>,
}
