//! [`Modules`]: the trained modules of all stages, which the caller takes after training. [`ModuleError`]: the reason
//! why a module cannot be taken.

use crate::runner::ErasedModule;

/// The modules of a pipeline's stages. The caller takes each one by its stage index and Rust type
/// ([`take`](Self::take)). [`Pipeline::into_modules`](crate::Pipeline::into_modules) returns the trained modules
/// themselves, and [`Pipeline::snapshot`](crate::Pipeline::snapshot) returns copies of them.
pub struct Modules(Vec<Slot>);

/// The state of one stage's module in [`Modules`]: present, taken by the caller, or lost.
enum Slot {
    Here(ErasedModule),
    Taken,
    Lost,
}

impl Modules {
    /// Creates the modules of a pipeline with `stages` stages from pairs of a zero-based stage index and the stage's
    /// module. A stage that is in no pair counts as lost.
    pub(crate) fn new(modules: impl IntoIterator<Item = (usize, ErasedModule)>, stages: usize) -> Self {
        let mut slots: Vec<_> = (0..stages).map(|_| Slot::Lost).collect();
        for (stage, module) in modules {
            slots[stage] = Slot::Here(module);
        }
        Self(slots)
    }

    /// Returns the number of stages of the pipeline, including stages whose modules were taken or are lost.
    pub fn stages(&self) -> usize {
        self.0.len()
    }

    /// Removes and returns the module of the stage with the zero-based index `stage`. `M` must be the type that was
    /// passed to the builder for that stage.
    ///
    /// # Errors
    /// Returns [`ModuleError`] if the pipeline has no such stage, if the stage's module was taken before or is lost, or
    /// if the module is not an `M`. A module that is not an `M` can still be taken with its own type.
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

/// The reason why the caller cannot take a stage's module from [`Modules`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The caller requested the module of a stage that does not exist, because the pipeline has fewer stages.
    #[error("there is no stage {stage}; the pipeline has {stages}, counted from 0")]
    NoSuchStage {
        /// Zero-based index of the requested stage, which does not exist.
        stage: usize,
        /// The number of stages of the pipeline. The highest valid stage index is one less.
        stages: usize,
    },
    /// The caller requested a stage's module as the wrong Rust type. Call `take` with the module's actual type,
    /// `found`.
    #[error(
        "the module of stage {stage} has the type `{found}`, not `{asked}`; take it with its own type: `take::<{found}>({stage})`"
    )]
    OtherType {
        /// Zero-based index of the stage whose module does not have the requested type.
        stage: usize,
        /// The name of the actual Rust type of the requested stage's module.
        found: &'static str,
        /// The name of the Rust type that the caller requested for the module.
        asked: &'static str,
    },
    /// The caller requested the module of a stage a second time; the module was already taken.
    #[error("the module of stage {stage} was already taken")]
    Taken {
        /// Zero-based index of the stage whose module was already taken.
        stage: usize,
    },
    /// The module of the requested stage cannot be returned; resume from a checkpoint instead. There are two possible
    /// causes:
    ///
    /// - The stage's worker thread did not end, or panicked outside any action such as a forward pass.
    /// - The stage has made a training step that other stages may not have made, and that cannot be rolled back.
    #[error(
        "the module of stage {stage} is lost: its thread did not end, or panicked outside any action, or it has made a step that \
         cannot be undone; resume from a checkpoint"
    )]
    Lost {
        /// Zero-based index of the stage whose module is lost, so that the caller can never take it.
        stage: usize,
    },
    /// The caller joined the stage modules into one model by a [`Row`](crate::Row) whose number of blocks differs from
    /// theirs. Join them with the row that the pipeline was built from.
    #[error(
        "the stages have {found} blocks, and the row has {expected}; join them with the row from which the pipeline was built, \
         halved if that was"
    )]
    Blocks {
        /// The number of blocks in the modules of all stages. Halves of blocks that cannot be joined count as blocks.
        found: usize,
        /// The number of blocks of the row whose `join` the caller called.
        expected: usize,
    },
}
