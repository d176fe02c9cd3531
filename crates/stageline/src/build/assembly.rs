//! The assembly of one data-parallel replica, stage by stage: [`Unplaced::place`] copies each stage's module to the
//! stage's device in that replica.

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use crate::build::fallbacks::fallbacks_of;
use crate::device::remote::Route;
use crate::model::replica::Replica;
use crate::model::stage::Stage;
use crate::runner::Stages;
use crate::runner::stage::StageSlot;
use crate::runner::warnings::warn_of_fallbacks;
use crate::state::layout::Restored;
use crate::state::optimizer_check::Unfit;
use crate::transfer::replicas::Collective;
use crate::transfer::ties::Ties;
use crate::update::optimizer_step::{Rollback, Trained};
use crate::update::precision::Precision;
use stageline_nn::params::{describe, fork, materialize, unify, unseeded};

/// A stage's module, optimizer and learning rate before they are copied to a device. Every data-parallel replica gets a
/// copy of them.
pub(crate) struct Unplaced<M> {
    stage: usize,
    pub(crate) module: M,
    pub(crate) optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

impl<S: Stage> Unplaced<S> {
    /// Creates a stage whose module is not yet copied to a device, from the stage's number, module, optimizer and
    /// learning rate. Initialises all parameters now, on the caller's thread: burn would initialise them lazily, and
    /// the order of random numbers must not depend on threads. Waits while another thread initialises a seeded module,
    /// because all threads draw from one random number generator.
    pub(crate) fn new(stage: usize, module: S, optimizer: ModuleOptimizer, learning_rate: ModuleLrScheduler) -> Self {
        unseeded(|| materialize(&module));
        // `valid` followed by `train` drops burn's own gradient checkpointing, whose graphs the stage's inputs could
        // not join.
        let module = module.valid().train();
        Self { stage, module, optimizer, learning_rate }
    }

    /// Copies the stage's module to the stage's device in the replica that is being assembled, with the parameter
    /// values of a checkpoint if training resumes from one. Logs a warning for each operation that Stageline's kernels do
    /// not compute on that device; those that are refused were found before (`validate_devices`). Returns the stage's
    /// slot (its device and its exchanges with other stages) and the copied module with its optimizer.
    pub(crate) fn place(&self, assembly: &mut Assembly) -> (StageSlot, Trained<S>) {
        let mut slot = assembly.slot(self.stage);
        let (operations, described) = (self.module.operations(), describe(&self.module));
        slot.fallbacks = fallbacks_of(&operations, &described, assembly.precision, &slot.device);
        warn_of_fallbacks(&slot.fallbacks, self.stage, slot.replica.index);
        let module = unify(fork(self.module.clone(), &slot.device));
        let mut trained = Trained::new(
            module,
            assembly.precision,
            self.optimizer.clone(),
            self.learning_rate.clone(),
            assembly.rollback,
        );
        match assembly.restored.get_mut(self.stage) {
            Some(restored) if slot.collective.is_root() => match trained.restore(restored) {
                // The rate of the first stage stands for that of the model.
                Ok(rate) => assembly.learning_rate = assembly.learning_rate.or(rate),
                Err(unfit) => assembly.unfit.extend(unfit),
            },
            Some(restored) => trained.restore_tensors(restored),
            None => {}
        }
        (slot, trained)
    }
}

/// The state of a data-parallel replica while it is being assembled: its settings, its devices, the connections that
/// have not yet been given to a stage, and the stages assembled so far.
pub(crate) struct Assembly {
    pub(crate) replica: Replica,
    /// The number of micro-batches that each channel between two neighbouring stages can buffer.
    pub(crate) capacity: usize,
    pub(crate) precision: Precision,
    pub(crate) rollback: Rollback,
    /// The number of consecutive micro-batches whose gradients are summed as one group, before the sums of all groups
    /// are added up.
    pub(crate) per_group: usize,
    /// The device of each stage in the replica that is being assembled.
    pub(crate) devices: Vec<Device>,
    /// The routes of activations and gradients (the devices or network connections to which they are sent), one for
    /// each pair of neighbouring stages of the replica, in the order of the stages.
    pub(crate) routes: Vec<Route>,
    /// The tied parameters of each stage: the ids of the parameters that the stage shares with other stages of this
    /// replica, and the channels by which these stages exchange gradients and values.
    pub(crate) ties: Vec<Ties>,
    /// The role of each stage (the owner, whose optimizer steps the parameters, or a holder of copies) in the exchange
    /// of gradients and parameter values with the same stage of other replicas.
    pub(crate) collectives: Vec<Collective>,
    /// The part of a checkpoint from which each stage resumes, in the order of the stages; empty if training does not
    /// resume from a checkpoint.
    pub(crate) restored: Vec<Restored>,
    /// The fields of a checkpoint's optimizer states that do not match the stages' optimizers: fields that an optimizer
    /// rejects, and fields that it requires but the checkpoint lacks.
    pub(crate) unfit: Vec<Unfit>,
    /// The learning rate of the first stage at the last optimizer step that the checkpoint contains, computed by the
    /// learning rate schedule of this pipeline. A warning compares it with the rate that the checkpoint records. `None`
    /// if training does not resume from a checkpoint, or if the checkpoint contains no optimizer step.
    pub(crate) learning_rate: Option<f64>,
    /// The stages of a data-parallel replica that have been assembled (copied to their devices and connected) so far.
    pub(crate) runners: Stages,
}

impl Assembly {
    /// Returns the slot of one stage: the record of its place in the pipeline (replica and index), its device, and the
    /// exchanges of gradients and parameter values in which it takes part. The exchanges are moved out of this assembly
    /// of the replica, so the method is called once for each stage.
    fn slot(&mut self, stage: usize) -> StageSlot {
        StageSlot {
            replica: self.replica,
            stage,
            device: self.devices[stage].clone(),
            ties: std::mem::take(&mut self.ties[stage]),
            collective: std::mem::take(&mut self.collectives[stage]),
            per_group: self.per_group,
            fallbacks: Vec::new(),
        }
    }
}
