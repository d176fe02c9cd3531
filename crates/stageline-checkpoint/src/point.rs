//! Where a crash leaves something else behind.

/// What is about to happen in [`Store::save_observed`](crate::Store::save_observed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WritePoint {
    /// The temporary folder is made.
    CreateTemporary,
    /// The folder of the optimizer state is made in it.
    CreateSubfolder,
    /// A file is made and its header written.
    WriteFile {
        /// Which, from 0.
        file: usize,
    },
    /// The tensors of the file are written.
    WriteTensors {
        /// Which, from 0.
        file: usize,
    },
    /// The file is made to last.
    SyncFile {
        /// Which, from 0.
        file: usize,
    },
    /// The names in the folder of the optimizer state are made to last.
    SyncSubfolder,
    /// The manifest is made and written.
    WriteManifest,
    /// The manifest is made to last.
    SyncManifest,
    /// The names in the temporary folder are made to last.
    SyncTemporary,
    /// The temporary folder gets its name: from here on, the checkpoint is there.
    Rename,
    /// The name is made to last.
    SyncFolder,
    /// The name is taken back, because it could not be made to last.
    UndoRename,
    /// The loss of the name is made to last; then the temporary folder is removed.
    SyncUndo,
    /// An old checkpoint loses its name.
    HideOld {
        /// Which of those that go, from 0.
        old: usize,
    },
    /// The loss of names is made to last.
    SyncHidden,
    /// The files of an old checkpoint are removed.
    RemoveOld {
        /// Which of those that go, from 0.
        old: usize,
    },
    /// All is done.
    Done,
}
