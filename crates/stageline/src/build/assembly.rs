//! A replica, put up stage by stage: every module once more, on its device there.

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use crate::device::remote::Route;
use crate::model::replica::Replica;
use crate::runner::Stages;
use crate::runner::stage::StageSlot;
use crate::state::layout::Restored;
use crate::state::optimizer_state::Unfit;
use crate::transfer::replicas::Collective;
use crate::transfer::ties::Ties;
use crate::update::optimizer_step::{Rollback, Trained};
use crate::update::precision::Precision;
use stageline_nn::params::fork::fork;
use stageline_nn::params::seed::materialize;
use stageline_nn::params::shared::unify;

/// A module and its configuration, until it is placed.
pub(crate) struct Unplaced<M> {
    stage: usize,
    pub(crate) module: M,
    pub(crate) optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

impl<M: Module> Unplaced<M> {
    /// The parameters exist, before any thread starts.
    pub(crate) fn new(
        stage: usize,
        module: M,
        (optimizer, learning_rate): (ModuleOptimizer, ModuleLrScheduler),
    ) -> Self {
        materialize(&module);
        // By way of `valid`, which drops burn's gradient checkpointing: inputs could not join such a graph.
        let module = module.valid().train();
        Self { stage, module, optimizer, learning_rate }
    }

    /// In a replica, on its device there.
    pub(crate) fn place(&self, site: &mut Assembly) -> (StageSlot, Trained<M>) {
        let seat = site.seat(self.stage);
        let module = unify(fork(self.module.clone(), &seat.device));
        let mut trained =
            Trained::new(module, site.precision, (self.optimizer.clone(), self.learning_rate.clone()), site.rollback);
        match site.restored.get_mut(self.stage) {
            Some(restored) if seat.collective.is_root() => {
                site.unfit.extend(trained.restore(restored).err().unwrap_or_default());
            }
            Some(restored) => trained.restore_tensors(restored),
            None => {}
        }
        (seat, trained)
    }
}

/// Where the stages of a replica are put up.
pub(crate) struct Assembly {
    pub(crate) replica: Replica,
    pub(crate) capacity: usize,
    pub(crate) precision: Precision,
    pub(crate) rollback: Rollback,
    pub(crate) per_group: usize,
    pub(crate) devices: Vec<Device>,
    /// From each stage to the next.
    pub(crate) routes: Vec<Route>,
    /// What each stage shares with others,
    pub(crate) ties: Vec<Ties>,
    /// and with its like in other replicas.
    pub(crate) collectives: Vec<Collective>,
    /// What each stage goes on from, if it does.
    pub(crate) restored: Vec<Restored>,
    /// What optimizers could not use of it.
    pub(crate) unfit: Vec<Unfit>,
    pub(crate) runners: Stages,
}

impl Assembly {
    fn seat(&mut self, stage: usize) -> StageSlot {
        StageSlot {
            replica: self.replica,
            stage,
            device: self.devices[stage].clone(),
            ties: std::mem::take(&mut self.ties[stage]),
            collective: std::mem::take(&mut self.collectives[stage]),
            per_group: self.per_group,
        }
    }
}
