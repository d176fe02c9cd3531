//! The points of a checkpoint's save at which a crash would leave different things on disk: [`WritePoint`].

/// A point of a checkpoint's save, named by the operation that comes next.
/// [`Store::save_observed`](crate::Store::save_observed) reports it just before that operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WritePoint {
    /// The point of a checkpoint's save just before the save creates its temporary folder.
    CreateTemporary,
    /// The point of a checkpoint's save just before the save creates the subfolder for the optimizer state in its
    /// temporary folder.
    CreateSubfolder,
    /// The point just before a save creates one of the checkpoint's files. After this point the save writes the header
    /// of a tensor file, or the whole index.
    WriteFile {
        /// The position of the file that the save creates next, in the order in which it writes the checkpoint's files,
        /// counted from 0.
        file: usize,
    },
    /// The point of a checkpoint's save just before the save writes the tensors of a file, after the file's header.
    WriteTensors {
        /// The position of the file whose tensors the save writes next, in the order in which it writes the
        /// checkpoint's files, counted from 0.
        file: usize,
    },
    /// The point of a checkpoint's save just before the save makes the contents of a file durable by syncing them to
    /// disk.
    SyncFile {
        /// The position of the file that the save makes durable next, in the order in which it writes the checkpoint's
        /// files, counted from 0.
        file: usize,
    },
    /// The point of a checkpoint's save just before the save makes the file names in the optimizer state's subfolder
    /// durable.
    SyncSubfolder,
    /// The point of a checkpoint's save just before the save creates and writes the manifest.
    WriteManifest,
    /// The point of a checkpoint's save just before the save makes the contents of the manifest durable.
    SyncManifest,
    /// The point of a checkpoint's save just before the save makes the file names in its temporary folder durable.
    SyncTemporary,
    /// The point of a checkpoint's save just before the save renames its temporary folder to the checkpoint's name,
    /// with which the checkpoint begins to exist.
    Rename,
    /// The point of a checkpoint's save just before the save makes the new checkpoint's name durable by syncing the
    /// folder of checkpoints.
    SyncFolder,
    /// The point of a checkpoint's save just before the save undoes the rename of the new checkpoint, because the new
    /// name could not be made durable.
    UndoRename,
    /// The point of a checkpoint's save just before the save makes the reversal of the new checkpoint's rename durable.
    /// After that, the save removes the checkpoint's temporary folder.
    SyncUndo,
    /// The point of a checkpoint's save just before the save renames an old checkpoint to a temporary name. The old
    /// checkpoint's files are removed after that.
    HideOld {
        /// The index of the old checkpoint that the save renames next. The old checkpoints to remove are counted from
        /// 0, beginning with the oldest.
        old: usize,
    },
    /// The point of a checkpoint's save just before the save makes the renames of all old checkpoints durable.
    SyncHidden,
    /// The point of a checkpoint's save just before the save removes the files of an old checkpoint.
    RemoveOld {
        /// The index of the old checkpoint whose files the save removes next. The old checkpoints to remove are counted
        /// from 0, beginning with the oldest.
        old: usize,
    },
    /// The end of a checkpoint's save: the save is complete and returns.
    Done,
}
