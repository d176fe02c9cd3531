//! The stages' modules, given back.

use crate::runner::{ErasedModule, Runner};

/// The modules of a pipeline that has ended, by stage.
pub struct Modules(Vec<Slot>);

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

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.0.len()
    }

    /// Takes the module of `stage`, which is of the type that the builder was given.
    ///
    /// # Errors
    /// [`ModuleError`]; a module of another type stays where it is.
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

/// Why a module cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The pipeline has fewer stages.
    #[error("there is no stage {stage}; the pipeline has {stages}, counted from 0")]
    NoSuchStage {
        /// The stage asked for.
        stage: usize,
        /// How many there are.
        stages: usize,
    },
    /// The stage's module is of another type.
    #[error("the module of stage {stage} is a `{found}`, not a `{asked}`; take it as what it is")]
    OtherType {
        /// The stage.
        stage: usize,
        /// Its type.
        found: &'static str,
        /// The type asked for.
        asked: &'static str,
    },
    /// It was taken before.
    #[error("the module of stage {stage} was already taken")]
    Taken {
        /// The stage.
        stage: usize,
    },
    /// Its thread did not end, or panicked outside any action; or it has made a step that other stages may not have made, and keeps
    /// no copy of what was before.
    #[error(
        "the module of stage {stage} is lost: its thread did not end, or panicked outside any action, or it has made a step that \
         cannot be undone; start from a checkpoint"
    )]
    Lost {
        /// The stage.
        stage: usize,
    },
}
