//! The assembly of one data-parallel replica, stage by stage: [`Unplaced::place`] copies each stage's module to the
//! stage's device in that replica.

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
    /// Creates a stage whose module is not yet copied to a device. All parameters are initialised now, on the caller's
    /// thread, because random numbers must be drawn in a fixed order. Waits while another thread initialises a module
    /// from a seed.
    pub(crate) fn new(stage: usize, module: S, optimizer: ModuleOptimizer, learning_rate: ModuleLrScheduler) -> Self {
        unseeded(|| materialize(&module));
        // `valid` followed by `train` drops burn's own gradient checkpointing, whose graphs the stage's inputs could
        // not join.
        let module = module.valid().train();
        Self { stage, module, optimizer, learning_rate }
    }

    /// Copies the stage's module to its device in the replica that is being assembled, with the parameters of a
    /// checkpoint if training resumes from one. In replica 0, optimizer state and learning rate are restored too. Parts
    /// of the checkpoint that do not fit are added to the assembly's list `unfit`. Logs a warning for each operation
    /// that Stageline's kernels do not compute on the device. Returns the stage's slot (its place in the pipeline) and
    /// the copied module with its optimizer.
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

/// The settings that all stages of all replicas share, and that a stage needs when it is assembled.
#[derive(Clone, Copy)]
pub(crate) struct SharedSettings {
    pub(crate) precision: Precision,
    /// The type of frozen parameters that stages keep in f32 instead, because they do not compute in this type.
    pub(crate) widened: Option<FloatDType>,
    pub(crate) rollback: Rollback,
    pub(crate) frozen_from: FrozenFrom,
    /// Whether a stage's first forward fails if Stageline's own kernels do not compute one of its operations, instead
    /// of logging a warning.
    pub(crate) refuses_fallbacks: bool,
}

/// A data-parallel replica that is being assembled: its settings, its devices, its unused connections, and the stages
/// so far.
pub(crate) struct Assembly {
    pub(crate) replica: Replica,
    /// The number of micro-batches that each channel between neighbouring stages can buffer.
    pub(crate) capacity: usize,
    pub(crate) settings: SharedSettings,
    /// The number of consecutive micro-batches whose gradients are summed as one group.
    pub(crate) per_group: usize,
    pub(crate) devices: Vec<Device>,
    /// The listed operations of each stage (`Stage::operations`) that Stageline's kernels do not compute on the stage's
    /// device. The first forward pass of a stage finds operations that the stage does not list.
    pub(crate) fallbacks: OfReplica,
    /// The routes of activations and gradients between neighbouring stages, one for each pair of stages.
    pub(crate) routes: Vec<Route>,
    /// The tied parameters that each stage shares with other stages of this replica, with the channels for their
    /// gradients and values.
    pub(crate) ties: Vec<Ties>,
    /// The role of each stage in the exchange of gradients and parameters with the same stage of other replicas.
    pub(crate) collectives: Vec<Collective>,
    /// The part of a checkpoint from which each stage resumes, in stage order; empty without a checkpoint.
    pub(crate) restored: Vec<Restored>,
    pub(crate) unfit: Vec<Unfit>,
    pub(crate) learning_rate: Option<f64>,
    /// The stages of this data-parallel replica that are assembled so far.
    pub(crate) runners: Stages,
}

impl Assembly {
    /// Returns the slot of a stage: its place in the pipeline, its device, its operations without a kernel, and its
    /// channels for gradients and parameters. These operations and channels are moved out of this assembly, so this is
    /// called once for each stage.
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
