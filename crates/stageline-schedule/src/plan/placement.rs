//! The placement of a model's stages on workers. Stages are placed round-robin (stage s on worker s mod P), in a V (the
//! first and the last stage on one worker), or as a given plan places them.

use super::rows::Plan;

/// The placement of stages on workers: the index of the worker that runs each stage of the model. All indices count
/// from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    worker_of: Vec<usize>,
    stages_of: Vec<Vec<usize>>,
}

impl Placement {
    /// Makes a placement of stages on workers. Entry s of `worker_of` is the index of the worker that runs stage s. The
    /// number of workers is the largest of these indices plus 1, so a worker may have no stage. The placement takes
    /// memory linear in the largest index.
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

    /// Places `chunks` stages on each of `workers` workers round-robin, as in interleaved schedules: stage s is on
    /// worker s mod `workers`.
    pub fn in_turn(workers: usize, chunks: usize) -> Self {
        Self::new((0..workers * chunks).map(|stage| stage % workers).collect())
    }

    /// Places two stages on each of P = `workers` workers in a V: worker w (from 0) has the stages w and 2P-1-w.
    pub fn in_a_v(workers: usize) -> Self {
        Self::new((0..workers).chain((0..workers).rev()).collect())
    }

    /// Returns the index, from 0, of the worker that runs the stage with the index `stage`.
    ///
    /// # Panics
    /// Panics if the placement has no such stage.
    pub fn worker(&self, stage: usize) -> usize {
        self.worker_of[stage]
    }

    /// Returns the index of the network link between the workers of the stage `stage` and of the next stage. For a
    /// placement on P workers:
    ///
    /// - The link between the workers w and w+1 has the index w.
    /// - The link between the last and the first worker has the index P-1, if P > 2. Round-robin placements with
    ///   several stages per worker use this link.
    /// - The link between any other two workers has the larger of their two indices.
    ///
    /// There is no link if the next stage is on the same worker, or if `stage` is the last one. The result is then the
    /// index of the stage's own worker.
    ///
    /// # Panics
    /// Panics if the placement has no such stage.
    pub fn link_after(&self, stage: usize) -> usize {
        let from = self.worker(stage);
        let to = self.worker_of.get(stage + 1).copied().unwrap_or(from);
        if from.abs_diff(to) == 1 { from.min(to) } else { from.max(to) }
    }

    /// Returns the number of workers of the placement, including workers without stages.
    pub fn workers(&self) -> usize {
        self.stages_of.len()
    }

    /// Returns the number of stages that are placed on workers.
    pub fn stages(&self) -> usize {
        self.worker_of.len()
    }

    /// Returns one list for each worker: the indices of the stages that are placed on this worker, in ascending order.
    pub fn stages_of(&self) -> &[Vec<usize>] {
        &self.stages_of
    }
}

impl Plan {
    /// Returns the placement of the plan's stages on its workers; a stage without actions gets worker 0.
    ///
    /// The placement takes memory linear in the largest stage number, so call this only on a trusted plan, such as one
    /// that passed [`check`](crate::check()).
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
