//! The operations of a checkpoint's save between which a crash leaves different things on disk: [`WritePoint`].

/// The next operation of a checkpoint's save, as reported by [`Store::save_observed`](crate::Store::save_observed) just
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WritePoint {
    /// The save of a checkpoint is about to create its temporary folder.
    CreateTemporary,
    /// The save of a checkpoint is about to create the subfolder for the optimizer state in its temporary folder.
    CreateSubfolder,
    /// The save of a checkpoint is about to create a file, and to write the header of a tensor file or the whole index.
    WriteFile {
        /// The position of the file that is about to be created, in the order in which the save writes the checkpoint's
        /// files, counted from 0.
        file: usize,
    },
    /// The save of a checkpoint is about to write the tensors of a file, after the file's header.
    WriteTensors {
        /// The position of the file whose tensors are about to be written, in the order in which the save writes the
        /// checkpoint's files, counted from 0.
        file: usize,
    },
    /// The save of a checkpoint is about to make the contents of a file durable.
    SyncFile {
        /// The position of the file that is about to be made durable, in the order in which the save writes the
        /// checkpoint's files, counted from 0.
        file: usize,
    },
    /// The save of a checkpoint is about to make the file names in the optimizer state's subfolder durable.
    SyncSubfolder,
    /// The save of a checkpoint is about to create and write the manifest.
    WriteManifest,
    /// The save of a checkpoint is about to make the contents of the manifest durable.
    SyncManifest,
    /// The save of a checkpoint is about to make the file names in its temporary folder durable.
    SyncTemporary,
    /// The save is about to rename its temporary folder to the checkpoint's name, with which the checkpoint begins to
    /// exist.
    Rename,
    /// The save is about to make the new checkpoint's name durable by syncing the folder of checkpoints.
    SyncFolder,
    /// The save is about to undo the rename of the new checkpoint, because the new name could not be made durable.
    UndoRename,
    /// The save is about to make the undone rename of the new checkpoint durable, and then to remove its temporary
    /// folder.
    SyncUndo,
    /// The save of a checkpoint is about to rename an old checkpoint to a temporary name, before the old checkpoint's
    /// files are removed.
    HideOld {
        /// The position of the old checkpoint that is about to be renamed among those that this save removes, oldest
        /// first, counted from 0.
        old: usize,
    },
    /// The save of a checkpoint is about to make the renames of all old checkpoints durable.
    SyncHidden,
    /// The save of a checkpoint is about to remove the files of an old checkpoint.
    RemoveOld {
        /// The position of the old checkpoint whose files are about to be removed among those that this save removes,
        /// oldest first, counted from 0.
        old: usize,
    },
    /// The save of the checkpoint is complete and returns.
    Done,
}
