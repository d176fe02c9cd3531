//! Divides the costs of one stage per worker into those of several smaller stages (chunks) per worker.

use super::{Costs, StageCost};
use crate::plan::Placement;

impl StageCost {
    /// Returns the costs of one chunk if the stage is divided into `parts` equal chunks. Compute times are divided by
    /// `parts`; transfer latencies stay the same.
    fn part(self, parts: f64) -> Self {
        Self {
            forward: self.forward / parts,
            input_gradient: self.input_gradient / parts,
            weight_gradient: self.weight_gradient / parts,
            backward: self.backward / parts,
            ..self
        }
    }

    /// Returns the latency of a transfer from the worker `from` to the worker `to`. `self` has the costs of the stage
    /// that `from` had before stages were divided into chunks. The result is this stage's activation latency if `to` is
    /// the next worker, and its gradient latency if `to` is the previous worker.
    ///
    /// The workers form a ring. So if the two workers are not neighbours and `to` has the smaller index, `to` is the
    /// next worker.
    fn latency_between(&self, from: usize, to: usize) -> f64 {
        let next = (to > from) == (to.abs_diff(from) == 1);
        if next { self.send_activation } else { self.send_gradient }
    }
}

impl Costs {
    /// Returns the costs of the same model with every stage divided into equal chunks, each a stage of its own, for
    /// schedules with several stages per worker. The original costs must have one stage for each worker, in order.
    /// `placement` assigns each new stage to a worker.
    ///
    /// Compute times and optimizer steps are divided by the number of stages per worker. Transfer times are not
    /// divided. They depend on the two workers of a transfer:
    ///
    /// - A transfer occupies the link between two workers as long as a transfer between their original stages did. On
    ///   the link from the last worker back to the first, it takes the last original stage's time.
    /// - A tensor that a worker sends to the next worker has the activation latency (`send_activation`) of the worker's
    ///   original stage. A tensor to the previous worker has this stage's gradient latency (`send_gradient`). The
    ///   worker after the last one is the first.
    ///
    /// # Panics
    /// Panics unless the placement has as many workers as these costs have stages, and a multiple of that many stages.
    pub fn cut(&self, placement: &Placement) -> Self {
        let (workers, stages) = (self.stages(), placement.stages());
        assert_eq!(placement.workers(), workers, "give the costs of one stage for each worker of the placement");
        assert!(stages.is_multiple_of(workers.max(1)), "{stages} stages are not a multiple of {workers} workers");
        let parts = stages.checked_div(workers).unwrap_or(1);
        let costs = |stage: usize| {
            let (whole, worker) = (stage / parts, placement.worker(stage));
            let entries = self.stages[whole].len().max(self.stages[worker].len());
            let part = |micro_batch| {
                let sent = self.stage(worker, micro_batch);
                let onwards = (stage + 1 < stages).then(|| placement.worker(stage + 1));
                let back = stage.checked_sub(1).map(|below| placement.worker(below));
                StageCost {
                    send_activation: onwards.map_or(sent.send_activation, |to| sent.latency_between(worker, to)),
                    send_gradient: back.map_or(sent.send_gradient, |to| sent.latency_between(worker, to)),
                    ..self.stage(whole, micro_batch).part(parts as f64)
                }
            };
            (0..entries).map(part).collect()
        };
        Self {
            stages: (0..stages).map(costs).collect(),
            optimizer: (0..stages).map(|stage| self.optimizer[stage / parts] / parts as f64).collect(),
            links: (0..stages).map(|stage| self.links[placement.link_after(stage)]).collect(),
            transfers: self.transfers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the costs of three workers after each worker's stage is divided into two. The link between the workers 1
    /// and 2 is slow.
    #[test]
    fn transfers_keep_the_times_of_their_workers_when_stages_are_divided() {
        let cost = |activation, gradient| StageCost {
            send_activation: activation,
            send_gradient: gradient,
            ..StageCost::new(2.0, 4.0, 6.0)
        };
        let whole = Costs::by_stage(vec![cost(1.0, 2.0), cost(3.0, 4.0), cost(5.0, 6.0)]);
        let whole = whole.with_links(vec![0.5, 9.0, 0.25]).with_optimizer(vec![2.0; 3]);
        let sends = |costs: &Costs| -> Vec<_> {
            let of = |stage| (costs.stage(stage, 0).send_activation, costs.stage(stage, 0).send_gradient);
            (0..6).map(of).collect()
        };
        // In a V, the stages 3, 4 and 5 are on the workers 2, 1 and 0. Stages 2 and 3 share a worker.
        let v = whole.cut(&Placement::in_a_v(3));
        assert_eq!([0, 1, 3, 4].map(|stage| v.links[stage]), [0.5, 9.0, 9.0, 0.5]);
        let v = sends(&v);
        assert_eq!([v[0].0, v[1].0, v[3].0, v[4].0], [1.0, 3.0, 6.0, 4.0]);
        assert_eq!([v[1].1, v[2].1, v[4].1, v[5].1], [4.0, 6.0, 3.0, 1.0]);
        // In a round-robin placement, stage 3 is on worker 0 again, so the last worker sends to the first.
        let turns = whole.cut(&Placement::in_turn(3, 2));
        assert_eq!(turns.links[..5], [0.5, 9.0, 0.25, 0.5, 9.0]);
        assert_eq!(sends(&turns)[..5].iter().map(|sends| sends.0).collect::<Vec<_>>(), [1.0, 3.0, 5.0, 1.0, 3.0]);
        assert_eq!(sends(&turns)[1..].iter().map(|sends| sends.1).collect::<Vec<_>>(), [4.0, 6.0, 2.0, 4.0, 6.0]);
        assert_eq!((turns.stage(5, 0).forward, turns.optimizer(5)), (1.0, 1.0));
        assert_eq!(whole.cut(&Placement::in_turn(3, 1)), whole);
    }
}
