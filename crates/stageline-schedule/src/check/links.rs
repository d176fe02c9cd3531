//! The network links between workers in a simulated run of a plan.

use std::collections::HashMap;

use crate::costs::Costs;
use crate::plan::{Placement, Transfer};

/// The network links between workers in a simulated run of a plan. Two workers have one link with two independent
/// directions, however many of their stages exchange tensors.
pub(crate) struct Links {
    /// For each channel between two stages, the index in `free` of the link direction that its transfers use. The
    /// entries of channels within one worker are never read.
    direction_of: Vec<usize>,
    /// For each direction of each network link, the simulated time at which it is free for the next transfer.
    free: Vec<f64>,
}

impl Links {
    pub(crate) fn new(placement: &Placement) -> Self {
        let mut directions = HashMap::new();
        let mut direction = |from: usize, to: Option<usize>| {
            let workers = (placement.worker(from), to.map(|to| placement.worker(to)));
            let next = directions.len();
            *directions.entry(workers).or_insert(next)
        };
        let stages = placement.stages();
        let of_stage = |stage: usize| {
            let onwards = Some(stage + 1).filter(|above| *above < stages);
            [direction(stage, onwards), direction(stage, stage.checked_sub(1))]
        };
        let direction_of = (0..stages).flat_map(of_stage).collect();
        Self { direction_of, free: vec![0.0; directions.len()] }
    }

    /// Returns the simulated time, in the costs' time unit (such as ms), at which a transfer between two workers
    /// arrives. The transfer is sent at the time `sent`, and waits until earlier transfers in the same direction have
    /// left the link. It then occupies the link for its own time, and arrives one latency later.
    ///
    /// The transfers of a worker must be passed in ascending order of `sent`. Only one worker sends in each direction
    /// of a link, so the order in which the replay visits the workers does not matter.
    pub(crate) fn arrival(&mut self, costs: &Costs, transfer: Transfer, sent: f64) -> f64 {
        let free = &mut self.free[self.direction_of[transfer.channel()]];
        *free = sent.max(*free) + costs.occupies(transfer);
        *free + costs.latency(transfer)
    }
}
