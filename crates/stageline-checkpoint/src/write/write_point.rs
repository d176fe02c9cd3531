//! The points of a save at which a crash leaves something else behind.

/// The next operation in [`Store::save_observed`](crate::Store::save_observed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WritePoint {
    /// Creates the temporary folder.
    CreateTemporary,
    /// Creates the folder of the optimizer state in it.
    CreateSubfolder,
    /// Creates a file and writes its header.
    WriteFile {
        /// The number of the file, from 0.
        file: usize,
    },
    /// Writes the tensors of the file.
    WriteTensors {
        /// The number of the file, from 0.
        file: usize,
    },
    /// Makes the file durable.
    SyncFile {
        /// The number of the file, from 0.
        file: usize,
    },
    /// Makes the names in the folder of the optimizer state durable.
    SyncSubfolder,
    /// Creates and writes the manifest.
    WriteManifest,
    /// Makes the manifest durable.
    SyncManifest,
    /// Makes the names in the temporary folder durable.
    SyncTemporary,
    /// Gives the temporary folder its name: from here on, the checkpoint exists.
    Rename,
    /// Makes the name durable.
    SyncFolder,
    /// Undoes the rename, because the name could not be made durable.
    UndoRename,
    /// Makes the undo durable, and then removes the temporary folder.
    SyncUndo,
    /// Renames an old checkpoint, so that it loses its name.
    HideOld {
        /// The number of the old checkpoint among those that are removed, from 0.
        old: usize,
    },
    /// Makes these renames durable.
    SyncHidden,
    /// Removes the files of an old checkpoint.
    RemoveOld {
        /// The number of the old checkpoint among those that are removed, from 0.
        old: usize,
    },
    /// Returns; the save is complete.
    Done,
}
