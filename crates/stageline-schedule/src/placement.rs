//! Which worker has which stage.

use crate::plan::Plan;

/// The worker of every stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    worker_of: Vec<usize>,
    stages_of: Vec<Vec<usize>>,
}

impl Placement {
    /// A worker for each stage, by stage. It takes memory by the number of workers.
    pub fn new(worker_of: Vec<usize>) -> Self {
        let workers = worker_of.iter().max().map_or(0, |last| last + 1);
        Self::with_workers(worker_of, workers)
    }

    fn with_workers(worker_of: Vec<usize>, workers: usize) -> Self {
        let mut stages_of = vec![Vec::new(); workers];
        for (stage, &worker) in worker_of.iter().enumerate() {
            stages_of[worker].push(stage);
        }
        Self { worker_of, stages_of }
    }

    /// Stages dealt out in turn: stage s on worker s mod P, `chunks` stages a worker.
    pub fn in_turn(workers: usize, chunks: usize) -> Self {
        Self::new((0..workers * chunks).map(|stage| stage % workers).collect())
    }

    /// Two stages a worker, down and up again: worker w has stages w and 2P-1-w.
    pub fn in_a_v(workers: usize) -> Self {
        Self::new((0..workers).chain((0..workers).rev()).collect())
    }

    /// The worker of a stage.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn worker(&self, stage: usize) -> usize {
        self.worker_of[stage]
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.stages_of.len()
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.worker_of.len()
    }

    /// Each worker's stages, in order.
    pub fn stages_of(&self) -> &[Vec<usize>] {
        &self.stages_of
    }
}

impl Plan {
    /// The worker that has each stage's actions; worker 0 for stages without any. It takes memory by the number of stages,
    /// so it is for plans whose numbers have been checked.
    pub fn placement(&self) -> Placement {
        let mut worker_of = vec![0; self.stages()];
        for (worker, row) in self.rows().iter().enumerate() {
            for action in row {
                worker_of[action.stage] = worker;
            }
        }
        Placement::with_workers(worker_of, self.workers())
    }
}
