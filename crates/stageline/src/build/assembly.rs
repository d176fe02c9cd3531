//! Assembles one data-parallel replica, stage by stage: [`Unplaced::place`] copies each stage's module to the stage's
//! device in that replica.

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, FloatDType};

use crate::build::fallbacks::OfReplica;
use crate::device::remote::Route;
use crate::model::replica::Replica;
use crate::model::stage::Stage;
use crate::runner::Stages;
use crate::runner::stage::StageSlot;
use crate::runner::warnings::warn_of_fallbacks;
use crate::state::frozen::FrozenFrom;
use crate::state::layout::Restored;
use crate::state::optimizer_check::Unfit;
use crate::transfer::hand_over::off_other_hosts;
use crate::transfer::replicas::Collective;
use crate::transfer::ties::Ties;
use crate::update::optimizer_step::{Rollback, Trained};
use crate::update::precision::{self, Precision};
use stageline_nn::params::{fork, materialize, unify, unseeded};

/// A stage's module, optimizer and learning rate before they are copied to a device. Every data-parallel replica gets a
/// copy of them.
pub(crate) struct Unplaced<M> {
    stage: usize,
    pub(crate) module: M,
    pub(crate) optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

impl<S: Stage> Unplaced<S> {
    /// Creates a stage whose module is not yet copied to its device. Initialises all lazy parameters on the caller's
    /// thread, so that random numbers are drawn in a fixed order. Blocks while another thread initialises a module from
    /// a seed.
    pub(crate) fn new(stage: usize, module: S, optimizer: ModuleOptimizer, learning_rate: ModuleLrScheduler) -> Self {
        unseeded(|| materialize(&module));
        // `valid` followed by `train` turns off burn's own gradient checkpointing. With it, the stage's inputs could
        // not become part of the autodiff graphs.
        let module = module.valid().train();
        Self { stage, module, optimizer, learning_rate }
    }

    /// Copies the stage's module to its device in the replica under construction. If training resumes from a
    /// checkpoint, also sets the parameters and, in replica 0, the optimizer state and learning rate. Parts of the
    /// checkpoint that do not fit the stage are added to `assembly.unfit`. Logs a warning for each operation without a
    /// Stageline kernel on the device. Returns the stage's slot (its position, device and connections) and the copied
    /// module with its optimizer.
    pub(crate) fn place(&self, assembly: &mut Assembly) -> (StageSlot, Trained<S>) {
        let slot = assembly.slot(self.stage);
        let SharedSettings { precision, widened, rollback, frozen_from, .. } = assembly.settings;
        warn_of_fallbacks(&slot.fallbacks, self.stage, slot.replica.index);
        let module = off_other_hosts(self.module.clone(), &slot.device);
        let module = unify(fork(module, &slot.device));
        let module = widened.iter().fold(module, |module, narrow| precision::widened(module, *narrow));
        let (optimizer, learning_rate) = (self.optimizer.clone(), self.learning_rate.clone());
        let mut trained = Trained::new(module, precision, optimizer, learning_rate, rollback);
        match assembly.restored.get_mut(self.stage) {
            Some(restored) if slot.collective.is_root() => match trained.restore(restored, frozen_from) {
                // The first stage's learning rate stands for the whole model's.
                Ok(rate) => assembly.learning_rate = assembly.learning_rate.or(rate),
                Err(unfit) => assembly.unfit.extend(unfit),
            },
            Some(restored) => trained.restore_tensors(restored),
            None => {}
        }
        (slot, trained)
    }
}

/// Settings shared by all stages of all replicas, which each stage applies when its module is copied to its device.
#[derive(Clone, Copy)]
pub(crate) struct SharedSettings {
    pub(crate) precision: Precision,
    /// The low-precision dtype (such as bf16) whose frozen parameters the stages convert to f32, because the pipeline
    /// computes in another precision. `None` if nothing has to be converted.
    pub(crate) widened: Option<FloatDType>,
    pub(crate) rollback: Rollback,
    pub(crate) frozen_from: FrozenFrom,
    /// Whether a stage's first forward pass fails if one of its operations has no Stageline kernel. If false, it only
    /// logs a warning.
    pub(crate) refuses_fallbacks: bool,
}

/// A data-parallel replica under construction: its settings, its devices, the connections not yet given to a stage, and
/// the stages assembled so far.
pub(crate) struct Assembly {
    pub(crate) replica: Replica,
    /// The number of micro-batches that each channel between neighbouring stages can buffer.
    pub(crate) capacity: usize,
    pub(crate) settings: SharedSettings,
    /// The number of consecutive micro-batches in a gradient group. Each group's gradients are summed separately first.
    pub(crate) per_group: usize,
    pub(crate) devices: Vec<Device>,
    /// The declared operations (`Stage::operations`) of each stage that have no Stageline kernel on the stage's device.
    /// Undeclared operations without a kernel are found in the stage's first forward pass.
    pub(crate) fallbacks: OfReplica,
    /// The route of activations and gradients between each pair of neighbouring stages: directly to the other stage's
    /// device, or through sessions (connections) with that device's server.
    pub(crate) routes: Vec<Route>,
    /// The tied parameters that each stage shares with other stages of this replica, with the channels for their
    /// gradients and values.
    pub(crate) ties: Vec<Ties>,
    /// Each stage's role in the data-parallel gradient reduction and parameter exchange with the same stage of the
    /// other replicas.
    pub(crate) collectives: Vec<Collective>,
    /// The checkpoint state (tensors and optimizer state) that each stage resumes from, in stage order; empty without a
    /// checkpoint.
    pub(crate) restored: Vec<Restored>,
    pub(crate) unfit: Vec<Unfit>,
    pub(crate) learning_rate: Option<f64>,
    /// The stages of this data-parallel replica that are assembled so far.
    pub(crate) runners: Stages,
}

impl Assembly {
    /// Moves a stage's position, device, operations without a kernel, and channels for gradients and parameters out of
    /// this assembly. Must be called only once for each stage.
    fn slot(&mut self, stage: usize) -> StageSlot {
        StageSlot {
            replica: self.replica,
            stage,
            device: self.devices[stage].clone(),
            ties: std::mem::take(&mut self.ties[stage]),
            collective: std::mem::take(&mut self.collectives[stage]),
            per_group: self.per_group,
            fallbacks: std::mem::take(&mut self.fallbacks[stage]),
            refuses_fallbacks: self.settings.refuses_fallbacks,
        }
    }
}
