//! The operations of a save between which a crash leaves different things on disk: [`WritePoint`].

/// The next operation of a save, as reported by [`Store::save_observed`](crate::Store::save_observed) just before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WritePoint {
    /// The save creates the checkpoint's temporary folder.
    CreateTemporary,
    /// The save creates the subfolder for the optimizer state in the temporary folder.
    CreateSubfolder,
    /// The save creates a file of the checkpoint, and writes the header of a tensor file or the whole index.
    WriteFile {
        /// The position of the file in the order in which the save writes the checkpoint's files, counted from 0.
        file: usize,
    },
    /// The save writes the tensors of a file, after its header.
    WriteTensors {
        /// The position of the file in the order in which the save writes the checkpoint's files, counted from 0.
        file: usize,
    },
    /// The save makes the contents of a file durable.
    SyncFile {
        /// The position of the file in the order in which the save writes the checkpoint's files, counted from 0.
        file: usize,
    },
    /// The save makes the file names in the optimizer state's subfolder durable.
    SyncSubfolder,
    /// The save creates and writes the checkpoint's manifest.
    WriteManifest,
    /// The save makes the contents of the manifest durable.
    SyncManifest,
    /// The save makes the file names in the temporary folder durable.
    SyncTemporary,
    /// The save renames the temporary folder to the checkpoint's name: from here on, the checkpoint exists.
    Rename,
    /// The save makes the checkpoint's name durable by syncing the store's folder.
    SyncFolder,
    /// The save undoes the rename of the new checkpoint, because the new name could not be made durable.
    UndoRename,
    /// The save makes the undone rename durable, and then removes the temporary folder.
    SyncUndo,
    /// The save renames an old checkpoint to a temporary name, before its files are removed.
    HideOld {
        /// The position of the old checkpoint among those that this save removes, oldest first, counted from 0.
        old: usize,
    },
    /// The save makes the renames of all old checkpoints durable.
    SyncHidden,
    /// The save removes the files of an old checkpoint.
    RemoveOld {
        /// The position of the old checkpoint among those that this save removes, oldest first, counted from 0.
        old: usize,
    },
    /// The save of the checkpoint is complete and returns.
    Done,
}
