//! The points of a checkpoint's save where a crash would leave different things on disk: [`WritePoint`].

/// A moment in the save of a checkpoint just before an operation that changes what a crash would leave on disk. The end
/// of the save is such a moment too. [`Store::save_observed`](crate::Store::save_observed) reports each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WritePoint {
    /// A point in saving a checkpoint: the save is about to create its temporary folder.
    CreateTemporary,
    /// A point in saving a checkpoint: the save is about to create the subfolder for the optimizer state in the
    /// temporary folder.
    CreateSubfolder,
    /// A point in saving a checkpoint: the save is about to create a tensor file and write its header. The index file
    /// has this point too; it is then written as a whole.
    WriteFile {
        /// The index of the file that the save creates next, counted from 0 in the order of writing the checkpoint's
        /// files.
        file: usize,
    },
    /// A point in saving a checkpoint: the save is about to write the tensors of a file, after the file's header.
    WriteTensors {
        /// The index of the file whose tensors the save writes next, counted from 0 in the order of writing the
        /// checkpoint's files.
        file: usize,
    },
    /// A point in saving a checkpoint: the save is about to make the contents of a file durable by syncing them to
    /// disk.
    SyncFile {
        /// The index of the file that the save makes durable next, counted from 0 in the order of writing the
        /// checkpoint's files.
        file: usize,
    },
    /// A point in saving a checkpoint: the save is about to make the file names in the optimizer state's subfolder
    /// durable.
    SyncSubfolder,
    /// A point in saving a checkpoint: the save is about to create and write the manifest.
    WriteManifest,
    /// A point in saving a checkpoint: the save is about to make the contents of the manifest durable.
    SyncManifest,
    /// A point in saving a checkpoint: the save is about to make the file names in its temporary folder durable.
    SyncTemporary,
    /// A point in saving a checkpoint: the save is about to rename its temporary folder to the checkpoint's name. The
    /// checkpoint exists from this rename on.
    Rename,
    /// A point in saving a checkpoint: the save is about to make the new checkpoint's name durable by syncing the
    /// folder of checkpoints.
    SyncFolder,
    /// A point in saving a checkpoint: the save is about to undo the rename of the new checkpoint. The new name could
    /// not be made durable.
    UndoRename,
    /// A point in saving a checkpoint: the save has undone the rename, and is about to make this durable by syncing the
    /// folder of checkpoints. The checkpoint's temporary folder is removed after that.
    SyncUndo,
    /// A point in saving a checkpoint: the save is about to rename an old checkpoint to a temporary name. The old
    /// checkpoint's files are removed after that.
    HideOld {
        /// The index of the old checkpoint that the save renames next, counted from 0 in the order of removal.
        /// Checkpoints that a resumed run has abandoned are removed first, then the oldest.
        old: usize,
    },
    /// A point in saving a checkpoint: the save is about to sync the folder of checkpoints to disk. Old checkpoints have
    /// been renamed to hidden names, under which they are deleted. After the sync, a crash cannot bring back their old
    /// names.
    SyncHidden,
    /// A point in saving a checkpoint: the save is about to remove the files of an old checkpoint.
    RemoveOld {
        /// The index of the old checkpoint whose files the save removes next, counted from 0 in the order of removal.
        /// Checkpoints that a resumed run has abandoned are removed first, then the oldest.
        old: usize,
    },
    /// The last point in saving a checkpoint: the save is about to return. All files are written, the checkpoint has
    /// its final name, and the old checkpoints to remove are gone.
    Done,
}
