//! A complete chain of stages, to be put up in every replica.

use burn::tensor::Device;
use stageline_schedule::Checked;

use crate::build::assembly::Assembly;
use crate::build::ownership::Owners;
use crate::device::remote::Route;
use crate::failure::build_error::BuildError;
use crate::model::loss_weight::Weight;
use crate::model::payload::Payload;
use crate::model::replica::Replica;
use crate::pipeline::workers::BatchInput;
use crate::runner::Stages;
use crate::runner::stage::Source;
use crate::state::layout::Restored;
use crate::state::optimizer_state::Unfit;
use crate::threads::{Receiver, bounded};
use crate::transfer::replicas::Collective;
use crate::transfer::ties::{Ties, tie};
use crate::update::optimizer_step::Rollback;
use crate::update::precision::Precision;
use stageline_nn::autograd::recompute::Recompute;

/// Puts up all stages in a replica, from a batch's input; the last one also takes targets.
pub(crate) type LastWire<In, Target> = Box<dyn Fn(&mut Assembly, Source<In>, Receiver<Vec<Target>>)>;

/// What was joined: of every stage its device, in replica 0, and what it computes again; and how all are put up.
pub(crate) struct Joined<In, Target> {
    pub(crate) devices: Vec<Device>,
    pub(crate) recompute: Vec<Recompute>,
    pub(crate) owners: Owners,
    pub(crate) wire: LastWire<In, Target>,
    pub(crate) weight: fn(&Target) -> Weight,
}

/// All replicas, not yet started.
pub(crate) struct Assembled<In, Target> {
    /// Where the batches of each enter, and its stages.
    pub(crate) replicas: Vec<(BatchInput<In, Target>, Stages)>,
    /// What of a checkpoint their optimizers could not use.
    pub(crate) unfit: Vec<Unfit>,
}

impl<In: Payload, Target: Payload> Joined<In, Target> {
    /// The stages of every replica on its devices, with the channels between them.
    pub(crate) fn assemble(
        &self,
        plan: &Checked,
        devices: &[Vec<Device>],
        groups: usize,
        (precision, rollback): (Precision, Rollback),
        mut restored: Vec<Restored>,
    ) -> Result<Assembled<In, Target>, BuildError> {
        let (micro_batches, mut unfit) = (plan.plan().micro_batches(), Vec::new());
        let of_stage = |stage: usize| {
            let everywhere: Vec<_> = devices.iter().map(|devices| &devices[stage]).collect();
            Collective::of_stage(&self.owners.of_stage(stage), &everywhere).into_iter()
        };
        let mut collectives: Vec<_> = (0..self.devices.len()).map(of_stage).collect();
        let routes = devices.iter().map(|devices| Route::all(devices));
        let routes = routes.collect::<Result<Vec<_>, _>>().map_err(BuildError::Host)?;
        let assemble =
            devices.iter().zip(routes).zip(Replica::all(devices.len())).map(|((devices, routes), replica)| {
                let mut ties: Vec<Ties> = devices.iter().map(|_| Ties::default()).collect();
                for (stages, ids) in &self.owners.shared {
                    tie(&mut ties, devices, *stages, ids.clone(), micro_batches);
                }
                let mut site = Assembly {
                    replica,
                    capacity: plan.capacity(),
                    precision,
                    rollback,
                    per_group: replica.of * micro_batches / groups,
                    devices: devices.clone(),
                    routes,
                    ties,
                    collectives: collectives.iter_mut().filter_map(Iterator::next).collect(),
                    restored: std::mem::take(&mut restored),
                    unfit: std::mem::take(&mut unfit),
                    runners: Vec::new(),
                };
                let ((inputs, input_feed), (targets, target_feed)) = (bounded(1), bounded(1));
                (self.wire)(&mut site, Source::Batch(input_feed), target_feed);
                (restored, unfit) = (site.restored, site.unfit);
                (BatchInput { inputs, targets }, site.runners)
            });
        let replicas = assemble.collect();
        Ok(Assembled { replicas, unfit })
    }
}
