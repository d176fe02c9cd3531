//! Assembles a complete chain (all stages of a model in order, [`Joined`]) into data-parallel replicas ([`Assembled`]).
//! This copies the stages' modules to their devices, and connects the stages by channels.

use burn::tensor::Device;
use stageline_schedule::Checked;

use crate::build::assembly::{Assembly, SharedSettings};
use crate::build::fallbacks::OfReplica;
use crate::build::ownership::Owners;
use crate::device::remote::Route;
use crate::failure::build_error::BuildError;
use crate::model::payload::Payload;
use crate::model::replica::{Replica, ReplicaStage};
use crate::model::scoring::Scoring;
use crate::pipeline::workers::BatchChannels;
use crate::runner::Stages;
use crate::runner::input::{AnySource, FromBatch};
use crate::runner::output::CallerChannels;
use crate::state::layout::Restored;
use crate::state::optimizer_check::Unfit;
use crate::threads::bounded;
use crate::transfer::replicas::Collective;
use crate::transfer::ties::{Ties, tie};
use stageline_nn::{Operation, Recompute};

/// A function that assembles all stages of one data-parallel replica: it copies the modules to their devices and
/// connects the stages. Its arguments are the `Assembly` (the replica under construction, to which it adds the stages),
/// the source of the first stage's input, and the last stage's channels to the caller.
pub(crate) type LastWire<In, Out, Target> =
    Box<dyn Fn(&mut Assembly, AnySource<In>, CallerChannels<Out, Target>) + Send>;

/// A complete chain: all stages of a model in order, with the settings of each stage. Every data-parallel replica is
/// assembled from it.
pub(crate) struct Joined<In, Out, Target> {
    /// The device of each stage in the first data-parallel replica (replica 0), in stage order.
    pub(crate) devices: Vec<Device>,
    /// The stage index and the device of every module as the user passed it, before `build` copies the module to
    /// `devices`.
    pub(crate) sources: Vec<(usize, Device)>,
    /// The activation recomputation setting of each stage, in stage order.
    pub(crate) recompute: Vec<Recompute>,
    /// Each stage's declared operations (`Stage::operations`), in stage order. `build` checks them for missing kernels
    /// before it copies any module.
    pub(crate) operations: Vec<Vec<Operation>>,
    pub(crate) owners: Owners,
    pub(crate) wire: LastWire<In, Out, Target>,
    pub(crate) scoring: Scoring<Target>,
}

/// A pipeline whose modules are on their devices and whose stages are connected by channels. Its worker threads have
/// not started yet.
pub(crate) struct Assembled<In, Out, Target> {
    /// The data-parallel replicas, each with its assembled stages and the caller's ends of its batch channels.
    pub(crate) replicas: Vec<(BatchChannels<In, Out, Target>, Stages)>,
    /// The checkpoint entries that the stages cannot load; empty if all fit. An entry is a missing or rejected field of
    /// optimizer state, or a frozen tensor whose values differ from the model's.
    pub(crate) unfit: Vec<Unfit>,
    /// The learning rate that this pipeline's schedule gives the first stage at the checkpoint's last optimizer step. A
    /// resumed run warns if it differs from the rate stored in the checkpoint. `None` without a checkpoint, or if the
    /// checkpoint was taken before the first optimizer step.
    pub(crate) learning_rate: Option<f64>,
}

impl<In: Payload, Out: Payload, Target: Payload> Joined<In, Out, Target> {
    /// Returns every device that `build` copies a module from or to, paired with the stage, for liveness checks of the
    /// devices' hosts. These are the target devices of all replicas, and the source devices, which are listed for
    /// replica 0. `devices[r][s]` is the device of stage `s` in replica `r`.
    pub(crate) fn places(&self, devices: &[Vec<Device>]) -> Vec<(ReplicaStage, Device)> {
        let copied = |(replica, devices): (Replica, &Vec<Device>)| {
            let own = self.sources.iter().filter(|_| replica.is_first()).cloned();
            let stages = devices.iter().cloned().enumerate().chain(own);
            stages.map(|(stage, device)| (ReplicaStage { replica, stage }, device)).collect::<Vec<_>>()
        };
        Replica::all(devices.len()).zip(devices).flat_map(copied).collect()
    }

    /// Assembles every data-parallel replica: copies each stage's module to its device, and connects neighbouring
    /// stages. `devices[r][s]` is the device of stage `s` in replica `r`. `fallbacks` lists each replica's operations
    /// without a Stageline kernel. `groups` is the number of groups of micro-batches whose gradients are summed
    /// separately. `restored` has each stage's state from a checkpoint, and is empty without one. Checkpoint entries
    /// that do not fit the stages cause no error here; the result lists them in `unfit`.
    ///
    /// # Errors
    /// Returns [`BuildError::Host`] if a session (a connection to a device of another host) cannot be opened.
    pub(crate) fn assemble(
        &self,
        plan: &Checked,
        devices: &[Vec<Device>],
        fallbacks: Vec<OfReplica>,
        groups: usize,
        settings: SharedSettings,
        mut restored: Vec<Restored>,
    ) -> Result<Assembled<In, Out, Target>, BuildError> {
        let (micro_batches, mut unfit, mut learning_rate) = (plan.plan().micro_batches(), Vec::new(), None);
        let roles = |stage: usize| {
            let everywhere: Vec<_> = devices.iter().map(|devices| &devices[stage]).collect();
            Collective::of_stage(&self.owners.of_stage(stage), &everywhere).into_iter()
        };
        let mut collectives: Vec<_> = (0..self.devices.len()).map(roles).collect();
        let routes = devices.iter().map(|devices| Route::all(devices));
        let routes = routes.collect::<Result<Vec<_>, _>>().map_err(BuildError::Host)?;
        let known = devices.iter().zip(routes).zip(fallbacks).zip(Replica::all(devices.len()));
        let assemble = known.map(|(((devices, routes), fallbacks), replica)| {
            let mut ties: Vec<Ties> = devices.iter().map(|_| Ties::default()).collect();
            for (stages, ids) in &self.owners.shared {
                tie(&mut ties, devices, *stages, ids.clone(), micro_batches);
            }
            let mut assembly = Assembly {
                replica,
                capacity: plan.capacity(),
                settings,
                per_group: replica.of * micro_batches / groups,
                devices: devices.clone(),
                fallbacks,
                routes,
                ties,
                collectives: collectives.iter_mut().filter_map(Iterator::next).collect(),
                restored: std::mem::take(&mut restored),
                unfit: std::mem::take(&mut unfit),
                learning_rate,
                runners: Vec::new(),
            };
            let (inputs, input_feed) = bounded(1);
            let ((targets, target_feed), (output_feed, outputs)) = (bounded(1), bounded(1));
            let channels = CallerChannels { targets: target_feed, outputs: output_feed };
            (self.wire)(&mut assembly, Box::new(FromBatch::new(input_feed)), channels);
            (restored, unfit, learning_rate) = (assembly.restored, assembly.unfit, assembly.learning_rate);
            (BatchChannels { inputs, targets, outputs }, assembly.runners)
        });
        let replicas = assemble.collect();
        Ok(Assembled { replicas, unfit, learning_rate })
    }
}
