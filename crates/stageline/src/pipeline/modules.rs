//! The trained modules of the stages, returned after the training.

use crate::runner::{ErasedModule, Runner};

/// The modules of a pipeline that has ended, one for each stage. Returned by
/// [`Pipeline::into_modules`](crate::Pipeline::into_modules).
pub struct Modules(Vec<Slot>);

/// The state of one stage's module.
enum Slot {
    Here(ErasedModule),
    Taken,
    Lost,
}

impl Modules {
    pub(crate) fn new(runners: Vec<Box<dyn Runner>>, stages: usize) -> Self {
        let mut slots: Vec<_> = (0..stages).map(|_| Slot::Lost).collect();
        for runner in runners {
            let stage = runner.stage();
            if let Some(module) = runner.into_module() {
                slots[stage] = Slot::Here(module);
            }
        }
        Self(slots)
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.0.len()
    }

    /// Removes and returns the module of `stage`, counted from 0. `M` must be the type that was passed to the builder
    /// for that stage.
    ///
    /// # Errors
    /// Returns [`ModuleError`] if there is no such stage, if its module was taken before or is lost, or if the module
    /// is not an `M`. In the last case it can still be taken as its own type.
    pub fn take<M: 'static>(&mut self, stage: usize) -> Result<M, ModuleError> {
        let stages = self.0.len();
        let slot = self.0.get_mut(stage).ok_or(ModuleError::NoSuchStage { stage, stages })?;
        match std::mem::replace(slot, Slot::Taken) {
            Slot::Here(ErasedModule { module, type_name }) => match module.downcast::<M>() {
                Ok(module) => Ok(*module),
                Err(module) => {
                    *slot = Slot::Here(ErasedModule { module, type_name });
                    let asked = std::any::type_name::<M>();
                    Err(ModuleError::OtherType { stage, found: type_name, asked })
                }
            },
            Slot::Taken => Err(ModuleError::Taken { stage }),
            Slot::Lost => {
                *slot = Slot::Lost;
                Err(ModuleError::Lost { stage })
            }
        }
    }
}

/// The reason why a module cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The pipeline has fewer stages.
    #[error("there is no stage {stage}; the pipeline has {stages}, counted from 0")]
    NoSuchStage {
        /// The requested stage.
        stage: usize,
        /// The number of stages of the pipeline.
        stages: usize,
    },
    /// The stage's module is not of the requested type.
    #[error("the module of stage {stage} is a `{found}`, not a `{asked}`; take it as its own type")]
    OtherType {
        /// The stage of the module, counted from 0.
        stage: usize,
        /// The type of the module.
        found: &'static str,
        /// The requested type.
        asked: &'static str,
    },
    /// The module was taken before.
    #[error("the module of stage {stage} was already taken")]
    Taken {
        /// The stage of the module, counted from 0.
        stage: usize,
    },
    /// The module is lost: its thread did not end, or panicked outside any action; or the stage has made a step that
    /// other stages may not have made, and cannot roll it back.
    #[error(
        "the module of stage {stage} is lost: its thread did not end, or panicked outside any action, or it has made a step that \
         cannot be undone; resume from a checkpoint"
    )]
    Lost {
        /// The stage of the module, counted from 0.
        stage: usize,
    },
}
