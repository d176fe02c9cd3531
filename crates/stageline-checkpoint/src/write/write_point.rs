//! Fault-injection points of a checkpoint save, for tests that simulate a crash: [`WritePoint`].

/// A fault-injection point of a checkpoint save, where a test can simulate a crash.
/// [`Store::save_observed`](crate::Store::save_observed) passes each point to its callback, just before an operation
/// that changes what a crash would leave on disk, and at the end of the save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WritePoint {
    /// Fault-injection point before a checkpoint save creates its temporary folder.
    CreateTemporary,
    /// Fault-injection point before a checkpoint save creates the subfolder for the optimizer state in its temporary
    /// folder.
    CreateSubfolder,
    /// Fault-injection point before a checkpoint save creates a tensor file and writes the file's header, or creates
    /// and writes the whole index file.
    WriteFile {
        /// Zero-based index of the file to create, in the order of writing.
        file: usize,
    },
    /// Fault-injection point between a tensor file's header and its tensors: a crash here leaves a file with the header
    /// only.
    WriteTensors {
        /// Zero-based index of the file whose tensors are written next, in the order of writing.
        file: usize,
    },
    /// Fault-injection point before a checkpoint save syncs a tensor file or the index to disk, so that its contents
    /// survive a power loss.
    SyncFile {
        /// Zero-based index of the file to sync, in the order of writing.
        file: usize,
    },
    /// Fault-injection point before a checkpoint save syncs the optimizer state's subfolder to disk, so that the
    /// subfolder's file names survive a power loss.
    SyncSubfolder,
    /// Fault-injection point before a checkpoint save writes the manifest: a crash here leaves all other files, without
    /// a manifest.
    WriteManifest,
    /// Fault-injection point before a checkpoint save syncs the manifest to disk, so that its contents survive a power
    /// loss.
    SyncManifest,
    /// Fault-injection point before a checkpoint save syncs its temporary folder to disk, so that the folder's file
    /// names survive a power loss.
    SyncTemporary,
    /// Fault-injection point before a checkpoint save renames its complete temporary folder to the final checkpoint
    /// name. The checkpoint exists from this rename on.
    Rename,
    /// Fault-injection point before a checkpoint save syncs the folder of checkpoints to disk, so that the new
    /// checkpoint's name survives a power loss.
    SyncFolder,
    /// Fault-injection point before a checkpoint save undoes the rename of the new checkpoint, because the folder of
    /// checkpoints could not be synced to disk.
    UndoRename,
    /// Fault-injection point after a checkpoint save has undone the rename of the new checkpoint. The save then syncs
    /// the folder of checkpoints again and removes the temporary folder.
    SyncUndo,
    /// Fault-injection point before a checkpoint save hides an old checkpoint: renames it to `.removing-...`, so that
    /// its files can be removed later.
    HideOld {
        /// Zero-based index of the old checkpoint to rename, in the order of removal: first the checkpoints that a
        /// resumed run has abandoned, then the oldest.
        old: usize,
    },
    /// Fault-injection point before a checkpoint save syncs the renames of old checkpoints to `.removing-...`. Only
    /// after this sync may their files be removed, because a power loss can no longer bring back their checkpoint
    /// names.
    SyncHidden,
    /// Fault-injection point before a checkpoint save removes the files of an old checkpoint, which it has renamed to
    /// `.removing-...` before.
    RemoveOld {
        /// Zero-based index of the old checkpoint whose files are removed next, in the order of removal: first the
        /// checkpoints that a resumed run has abandoned, then the oldest.
        old: usize,
    },
    /// Fault-injection point at the end of a checkpoint save, before it returns: the new checkpoint is durable, and the
    /// old checkpoints to remove are gone.
    Done,
}
