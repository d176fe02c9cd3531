//! A stage's optimizer step, with its commit and rollback. `Trained` holds a stage's module, the module's copy in a
//! lower precision, the optimizer and the learning-rate schedule. It also reads their state for checkpoints and
//! restores it.

use std::collections::HashMap;
use std::sync::OnceLock;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, TensorData};

use crate::device::location::{host, is_host};
use crate::state::convert::{read_now, tensor_of};
use crate::state::frozen::{FrozenFrom, hashes, is_left_out};
use crate::state::layout::{Restored, StageState};
use crate::state::optimizer_check::{Given, Unfit, unfit};
use crate::state::optimizer_state;
use crate::update::moments::second_moments;
use crate::update::precision::{Frozen, Precision, Rounding};
use crate::update::state_memory::counting_moved;
use crate::update::take_ownership::settle;
use stageline_checkpoint::FrozenTensor;
use stageline_nn::params::{self, Description, unify, zero_gradients};

pub(super) struct Before<M> {
    module: M,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
}

/// A stage's module with its optimizer and learning-rate schedule, and the state to which its last optimizer step can
/// be rolled back.
///
/// burn's `ModuleOptimizer` and `ModuleLrScheduler` are type-erased, so a stage needs no type parameter for them. The
/// learning rate changes once for each optimizer step, never for each micro-batch.
pub(crate) struct Trained<M> {
    /// The stage's module in full precision. `None` only while the module is being changed, as in an optimizer step.
    module: Option<M>,
    /// The copy of the stage's module in a lower precision, for forward and backward passes. `None` in full precision.
    copy: Option<M>,
    precision: Precision,
    rounding: Option<Rounding>,
    optimizer: ModuleOptimizer,
    learning_rate: ModuleLrScheduler,
    /// Hashes of the frozen tensors whose values have not changed after the pipeline was built. Checkpoints may store
    /// these hashes instead of the values. Computed when the first checkpoint needs them.
    frozen: OnceLock<HashMap<ParamId, FrozenTensor>>,
    /// The stage's module and optimizer before its last optimizer step, for a rollback. They are dropped when all
    /// stages are known to have stepped.
    before: Option<Before<M>>,
    /// Whether the stage stores its state from before each optimizer step, so that the step can be rolled back.
    rollback: Rollback,
    /// Whether the stage has made an optimizer step that it cannot roll back and that other stages may not have made
    /// yet.
    is_ahead: bool,
    /// Whether an error has left the stage torn (inconsistent with other stages): it has made an optimizer step that it
    /// cannot roll back and that they may not have made.
    is_torn: bool,
}

/// Whether every stage stores its state from before a training step until all stages have stepped, so that the step can
/// be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rollback {
    /// Every stage stores its state from before the step. If an error occurs at the end of the step, every stage rolls
    /// the step back.
    Kept,
    /// No stage stores its state from before the step, so optimizer steps cannot be undone. An error while the
    /// optimizers step therefore ends the training run.
    Off,
}

pub(crate) struct Made {
    /// The optimizer step's base learning rate. It applies to all parameters that have no learning rate of their own.
    pub(crate) learning_rate: f64,
    /// The number of bytes of optimizer states that the step moved from the stage's device to the host.
    pub(crate) states_on_host: u64,
}

impl<M: Module> Trained<M> {
    pub(crate) fn new(
        module: M,
        precision: Precision,
        optimizer: ModuleOptimizer,
        learning_rate: ModuleLrScheduler,
        rollback: Rollback,
    ) -> Self {
        let rounding = precision.rounding(&module);
        let copy = rounding.as_ref().map(|rounding| rounding.copy_of(&module, None));
        Self {
            module: Some(module),
            copy,
            precision,
            rounding,
            optimizer,
            learning_rate,
            frozen: OnceLock::new(),
            before: None,
            rollback,
            is_ahead: false,
            is_torn: false,
        }
    }

    /// Returns the stage's module in full precision. Panics if the module was lost in a panic during an optimizer step.
    pub(crate) fn module(&self) -> &M {
        self.module.as_ref().expect("a worker whose stage has panicked executes no more commands")
    }

    /// Returns a copy of the stage's optimizer after one step with zero gradients for the stage's own parameters
    /// (`own`). The copy shows which fields the optimizer state in a checkpoint must have. The stage itself does not
    /// change.
    fn stepped_once(&self, own: impl Iterator<Item = ParamId>) -> ModuleOptimizer {
        let (mut optimizer, mut learning_rate) = (self.optimizer.clone(), self.learning_rate.clone());
        let gradients = zero_gradients(self.module(), &own.collect());
        drop(optimizer.step(learning_rate.step(), self.module().clone(), gradients));
        optimizer
    }

    /// Returns the module for forward and backward passes: the copy in a lower precision, or the module itself in full
    /// precision.
    pub(crate) fn computing(&self) -> &M {
        self.copy.as_ref().unwrap_or_else(|| self.module())
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Makes one optimizer step of the stage, which is final only after [`commit`](Self::commit). In a rehearsal, which
    /// only measures memory, the step can always be rolled back.
    pub(crate) fn step(&mut self, gradients: GradientsParams, is_rehearsal: bool) -> Made {
        if is_rehearsal || self.rollback == Rollback::Kept {
            let (module, optimizer) = (self.module().clone(), self.optimizer.clone());
            self.before = Some(Before { module, optimizer, learning_rate: self.learning_rate.clone() });
        } else {
            self.is_ahead = true;
        }
        let learning_rate = self.learning_rate.step();
        let base = learning_rate.base();
        let frozen = self.frozen_copies();
        let module = self.take();
        let optimizer = &mut self.optimizer;
        let (stepped, states_on_host) = counting_moved(|| optimizer.step(learning_rate, module, gradients));
        self.put_with(unify(stepped), frozen);
        Made { learning_rate: base, states_on_host }
    }

    /// Makes the stage's last optimizer step final, because all stages have stepped. Drops the state from before the
    /// step.
    pub(crate) fn commit(&mut self) {
        self.before = None;
        self.is_ahead = false;
    }

    /// Rolls back the stage's last optimizer step, unless the step is committed. If the state from before the step was
    /// not stored, the stage keeps the step and becomes torn (inconsistent): other stages may not have made this step.
    pub(crate) fn roll_back(&mut self) {
        if let Some(before) = self.before.take() {
            (self.optimizer, self.learning_rate) = (before.optimizer, before.learning_rate);
            self.put(before.module);
        }
        self.is_torn |= std::mem::take(&mut self.is_ahead);
    }

    /// Whether an error has left the stage torn (inconsistent with other stages): it has made an optimizer step that it
    /// cannot roll back and that they may not have made.
    pub(crate) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Copies the stage's optimizer state, and its trained parameters in host memory or on a CUDA device, to memory
    /// that the calling thread allocates, so that host memory is near the thread's cores. If burn's default device is a
    /// GPU, the optimizer state stays where it is, because burn would copy it to that GPU.
    pub(crate) fn settle(&mut self) {
        let module = self.take();
        self.put(settle(module));
        if host() == Some(Device::default())
            && let Ok(state) = self.optimizer.into_bytes()
            && let Ok(optimizer) = self.optimizer.clone().from_bytes(state)
        {
            self.optimizer = optimizer;
        }
    }

    /// Returns the stage's tensors and optimizer states, copied to the host, for a checkpoint. If resumed runs take
    /// frozen parameters from the model ([`FrozenFrom::Model`]), large frozen parameters are returned as hashes, unless
    /// their values have changed after the pipeline was built.
    pub(crate) fn state(&self, stage: usize, frozen_from: FrozenFrom) -> StageState {
        let module = self.module();
        let hashes = match frozen_from {
            FrozenFrom::Model => self.frozen.get_or_init(|| hashes(module, is_left_out)),
            FrozenFrom::Checkpoint => &HashMap::new(),
        };
        let mut frozen = Vec::new();
        let read = |Description { id, trained, .. }, read: &dyn Fn() -> _| match hashes.get(&id) {
            Some(hash) if !trained => {
                frozen.push((id, hash.clone()));
                None
            }
            _ => Some((id, read())),
        };
        let mut tensors: Vec<_> = params::read_each(module, read).into_iter().flatten().collect();
        // The bytes are read here, after the stage's own work, so that an error of the device counts as an error of
        // this stage.
        if !module.devices().iter().all(is_host) {
            tensors.iter_mut().for_each(|(_, data)| *data = read_now(data));
        }
        StageState { stage, tensors, frozen, optimizer: optimizer_state::read(&self.optimizer) }
    }

    /// Restores the stage's tensors, optimizer state and learning rate from a checkpoint. Returns the base learning
    /// rate of the checkpoint's last optimizer step; `None` before the first step.
    ///
    /// # Errors
    /// Returns the checkpoint's entries that do not match the stage, if there are any: fields of optimizer states, and
    /// frozen tensors whose values differ from the stage's.
    pub(crate) fn restore(
        &mut self,
        restored: &mut Restored,
        frozen_from: FrozenFrom,
    ) -> Result<Option<f64>, Vec<Unfit>> {
        self.compare_frozen(restored, frozen_from)?;
        self.restore_tensors(restored);
        let Restored { optimizer, stateless, own, optimizer_steps: steps, .. } = restored;
        let optimizer = std::mem::take(optimizer);
        let own = || own.iter().map(|(id, path)| (*id, path.as_str()));
        let stepped = self.stepped_once(own().map(|(id, _)| id));
        let unfit = unfit(&stepped, &Given { fields: &optimizer, stateless, steps: *steps });
        if !unfit.is_empty() {
            return Err(unfit);
        }
        // burn's schedulers can only be stepped, not set. The number of steps was validated before, so this loop is
        // bounded.
        let last = (0..*steps).fold(None, |_, _| Some(self.learning_rate.step().base()));
        let restored = optimizer_state::write(self.optimizer.clone(), optimizer, own());
        self.optimizer = restored.map_err(|fields| fields.into_iter().map(Unfit::from).collect::<Vec<_>>())?;
        Ok(last)
    }

    /// Compares the stage's frozen tensors with the hashes that the checkpoint stores in place of their values. Also
    /// records which frozen tensors later checkpoints store as hashes: all except those whose values in this checkpoint
    /// differ from the stage's.
    ///
    /// # Errors
    /// Returns the frozen tensors whose hash in the checkpoint differs from the stage's.
    fn compare_frozen(&mut self, restored: &Restored, frozen_from: FrozenFrom) -> Result<(), Vec<Unfit>> {
        let Restored { frozen, tensors, .. } = restored;
        if frozen.is_empty() && frozen_from == FrozenFrom::Checkpoint {
            return Ok(());
        }
        let mut found = hashes(self.module(), |tensor| is_left_out(tensor) || frozen.contains_key(&tensor.id));
        let is_other = |id: &ParamId| frozen.get(id).is_some_and(|hash| found.get(id) != Some(hash));
        // A tied tensor is compared in every stage that has it.
        let others = frozen.keys().copied().filter(is_other);
        let others: Vec<_> = others.map(|id| Unfit::Frozen { id }).collect();
        if !others.is_empty() {
            return Err(others);
        }
        let is_same = |data: &TensorData, hash: &FrozenTensor| FrozenTensor::of(&tensor_of(data.clone())) == *hash;
        found.retain(|id, hash| tensors.get(id).is_none_or(|data| is_same(data, hash)));
        self.frozen = found.into();
        Ok(())
    }

    /// Restores the tensors of the stage's module from a checkpoint, without the optimizer state. Used for replicas
    /// other than replica 0, which have no optimizers, and by [`restore`](Self::restore).
    pub(crate) fn restore_tensors(&mut self, restored: &Restored) {
        let module = self.take();
        self.put(unify(params::write(module, &restored.tensors)));
    }

    /// Replaces the stage's module by the result of `change`, which must leave frozen parameters as they are. If
    /// `change` fails, the module that it returns with its error is stored, and the error is returned.
    pub(crate) fn change<E>(&mut self, change: impl FnOnce(M) -> Result<M, (M, E)>) -> Result<(), E> {
        let frozen = self.frozen_copies();
        let (module, result) = match change(self.take()) {
            Ok(module) => (module, Ok(())),
            Err((module, error)) => (module, Err(error)),
        };
        self.put_with(module, frozen);
        result
    }

    /// Returns, for each parameter, the optimizer's second moment of the gradient (a running mean of its square),
    /// averaged over the parameter's elements.
    pub(crate) fn second_moments(&self) -> HashMap<ParamId, f64> {
        second_moments(&self.optimizer)
    }

    /// Removes and returns the stage's module, and drops the module's copy in a lower precision. Afterwards,
    /// [`put`](Self::put) must store a module again.
    fn take(&mut self) -> M {
        // The copy is dropped first, so that its memory is free while the module changes.
        self.copy = None;
        self.module.take().expect("a worker whose stage has panicked executes no more commands")
    }

    /// Stores `module` as the stage's module, and makes its copy in a lower precision if the stage computes in one.
    fn put(&mut self, module: M) {
        self.put_with(module, None);
    }

    /// Returns the rounded frozen parameters of the module's lower-precision copy, which the next copy can reuse.
    /// `None` in full precision.
    fn frozen_copies(&self) -> Option<Frozen> {
        self.rounding.as_ref().zip(self.copy.as_ref()).map(|(rounding, copy)| rounding.frozen(copy))
    }

    /// Stores `module` as [`put`](Self::put) does. `frozen` has the frozen parameters of the module's copy in a lower
    /// precision if they are known, so that they are not rounded again.
    fn put_with(&mut self, module: M, frozen: Option<Frozen>) {
        self.copy = self.rounding.as_ref().map(|rounding| rounding.copy_of(&module, frozen));
        self.module = Some(module);
    }

    /// Whether the stage's module can still be used: it was not lost in a panic, and has no optimizer step that other
    /// stages may not have made.
    pub(crate) fn is_whole(&self) -> bool {
        self.module.is_some() && !self.is_torn
    }

    /// Returns the stage's module; `None` if the module was lost in a panic during an optimizer step.
    pub(crate) fn into_module(self) -> Option<M> {
        self.module
    }
}
